"""A plugin for mypy: words are checked against `Literal` types also where mypy by itself takes any text.

By itself mypy tells of `chart == "idel"`, and not of `chart in ("idel", "busy")`, `[chart] == ["idel"]`, `chart in
NAMES` with an unannotated `NAMES`, nor of `replace(link, chrat="up")`. With it, it does, in the product and in tests.
"""

from collections.abc import Callable, Iterator
from functools import partial

from mypy.checker import TypeChecker
from mypy.errorcodes import COMPARISON_OVERLAP
from mypy.nodes import (
    ARG_NAMED_OPT,
    ARG_STAR2,
    ComparisonExpr,
    Context,
    DictExpr,
    Expression,
    ListExpr,
    SetExpr,
    StrExpr,
    TupleExpr,
    TypeInfo,
)
from mypy.plugin import FunctionSigContext, MethodSigContext, Plugin
from mypy.plugins.dataclasses import replace_function_sig_callback
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    LiteralType,
    ProperType,
    TupleType,
    Type,
    UnionType,
    get_proper_type,
)

CONTAINERS = ("tuple", "list", "set", "frozenset", "dict")
# Methods whose keyword arguments are fields of a structure.
CHANGES = {
    "swarmd.core.turn.StepContext.fire_link_trigger": "swarmd.core.state.NetworkLink",
    "swarmd.core.turn.StepContext.fire_trainer_trigger": "swarmd.core.state.Trainer",
    "swarmd.core.turn.StepContext.fire_chain_trigger": "swarmd.core.state.ChainState",
    "swarmd.core.turn.StepContext.fire_submission_trigger": "swarmd.core.state.Submission",
    "swarmd.core.turn.StepContext.update_chain": "swarmd.core.state.ChainState",
    "swarmd.results.history.HistorySummary._set_fields": "swarmd.results.history.TrainingHistory",
}

_OWNERS = {f"builtins.{name}" for name in CONTAINERS} | {
    f"typing.{name}" for name in ("Sequence", "Collection", "Iterable", "Container", "AbstractSet", "Mapping")
}


class Literals(Plugin):
    """What is checked beyond what mypy checks."""

    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], FunctionLike] | None:
        return replace_function_sig_callback if fullname == "msgspec.structs.replace" else None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        if fullname in CHANGES:
            return partial(self.with_fields, CHANGES[fullname])
        owner, _, name = fullname.rpartition(".")
        if owner not in _OWNERS:
            return None
        return {
            "__contains__": contains,
            "__getitem__": contains,
            "get": contains,
            "__eq__": equals,
            "__ne__": equals,
        }.get(name)

    def with_fields(self, struct: str, ctx: MethodSigContext) -> FunctionLike:
        """The method's signature, with the fields of the structure in the place of `**fields`."""
        sig, known = ctx.default_signature, self.lookup_fully_qualified(struct)
        assert known is not None and isinstance(known.node, TypeInfo), f"there is no {struct}"
        fields = known.node.get_method("__mypy-replace")
        assert fields is not None and isinstance(fields.type, CallableType), f"{struct} has no fields"
        own = [place for place, kind in enumerate(sig.arg_kinds) if kind != ARG_STAR2]
        return sig.copy_modified(
            arg_types=[*(sig.arg_types[place] for place in own), *fields.type.arg_types],
            arg_kinds=[*(sig.arg_kinds[place] for place in own), *[ARG_NAMED_OPT] * len(fields.type.arg_kinds)],
            arg_names=[*(sig.arg_names[place] for place in own), *fields.type.arg_names],
        )


def plugin(version: str) -> type[Plugin]:
    """Where mypy begins."""
    return Literals


# --- words ---


def words_of(kind: ProperType) -> frozenset[str] | None:
    """The texts that a `Literal` type allows (and None), or None for any other type."""
    if isinstance(kind, LiteralType):
        return frozenset([kind.value]) if isinstance(kind.value, str) else None
    if not isinstance(kind, UnionType):
        return None
    words: set[str] = set()
    for item in kind.relevant_items():
        known = words_of(get_proper_type(item))
        if known is None:
            return None
        words |= known
    return frozenset(words) or None


def _report(ctx: MethodSigContext, message: str, where: Context) -> None:
    """Report an error also while mypy tries things out: of `in` it keeps only whether it is supported at all."""
    assert isinstance(ctx.api, TypeChecker)
    errors = ctx.api.errors
    watchers, errors._watchers = errors._watchers, []
    ctx.api.fail(message, where, code=COMPARISON_OVERLAP)
    errors._watchers = watchers


def contains(ctx: MethodSigContext) -> FunctionLike:
    """`word in table`, `table[word]`, `table.get(word)`."""
    if ctx.args and ctx.args[0]:
        asked = ctx.args[0][0]
        kind = get_proper_type(ctx.api.get_expression_type(asked))
        _check_container(ctx, asked, kind)
    return ctx.default_signature


def _check_container(ctx: MethodSigContext, asked: Expression, kind: ProperType) -> None:
    words, table = words_of(kind), _right_of(ctx.context, asked)
    if isinstance(table, TupleExpr | ListExpr | SetExpr):
        for word in [word for item in table.items for word in _strangers(kind, item)]:
            _report(ctx, f'"{word}" is none of the words that are looked for here', table)
        if words is not None:
            return
    items = [get_proper_type(item) for item in _items_of(ctx.type)]
    if words is not None and any(_is_any_text(item) for item in items):
        _report(ctx, "A word with a Literal type is looked for among any texts: annotate the table", ctx.context)
    held = [words_of(item) for item in items]
    if isinstance(asked, StrExpr) and held and all(each is not None and asked.value not in each for each in held):
        _report(ctx, f'"{asked.value}" is none of the words that this table has', ctx.context)


def _right_of(context: object, asked: Expression) -> Expression | None:
    if isinstance(context, ComparisonExpr):
        for left, right in zip(context.operands, context.operands[1:], strict=False):
            if left is asked:
                return right
    return None


def _items_of(container: Type) -> list[Type]:
    kind = get_proper_type(container)
    if isinstance(kind, TupleType):
        return list(kind.items)
    return list(kind.args[:1]) if isinstance(kind, Instance) else []


def _is_any_text(kind: ProperType) -> bool:
    return isinstance(kind, Instance) and kind.type.fullname == "builtins.str" and kind.last_known_value is None


def equals(ctx: MethodSigContext) -> FunctionLike:
    """`(chart, 1) == ("idle", 1)`, `[each.chart for each in ...] == ["sent"]`, from either side."""
    if isinstance(ctx.context, ComparisonExpr) and ctx.args and ctx.args[0]:
        kinds = (ctx.type, ctx.api.get_expression_type(ctx.args[0][0]))  # either may stand for the left side
        wrong = {word for kind in kinds for shown in ctx.context.operands for word in _strangers(kind, shown)}
        for word in sorted(wrong):
            _report(ctx, f'"{word}" is none of the words that it is compared with', ctx.context)
    return ctx.default_signature


def _strangers(kind: Type, shown: Expression) -> Iterator[str]:
    """Texts written out in an expression that a value of the type never has in their place."""
    proper = get_proper_type(kind)
    if isinstance(proper, AnyType):
        return
    if isinstance(shown, StrExpr):
        words = words_of(proper)
        if words is not None and shown.value not in words:
            yield shown.value
    elif isinstance(shown, TupleExpr | ListExpr | SetExpr):
        for item, each in zip(shown.items, _places(proper, len(shown.items)), strict=False):
            yield from _strangers(each, item)
    elif isinstance(shown, DictExpr) and isinstance(proper, Instance) and len(proper.args) == 2:
        for key, value in shown.items:
            if key is not None:
                yield from _strangers(proper.args[0], key)
            yield from _strangers(proper.args[1], value)


def _places(kind: ProperType, count: int) -> list[Type]:
    """The type of each of `count` items."""
    if isinstance(kind, TupleType):
        return list(kind.items)
    return list(kind.args) * count if isinstance(kind, Instance) and len(kind.args) == 1 else []
