"""Nothing in swarmd stands there unused."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
READS_NAMES = {".html", ".js", ".toml", ".txt", ".yaml"}  # of the product: what they name counts as used
OWN_USES_MAX = 2  # of what is looked into
WORD = re.compile(r"\w+")
DOTTED = re.compile(r"[\w.: ]{1,80}")

# What nothing in swarmd names, with who does.
CALLED_FROM_OUTSIDE = {
    "accelerate": {"_prepare_for_training"},
    "aiohttp": {"startup"},
    "difflib": {"find_longest_match"},
    "hivemind": {
        "_get_handle_name",
        "_read_from_persistent_conn",
        "_read_outputs",
        "_write_to_persistent_conn",
        "call_find",
        "call_unary_handler",
        "sign_value",
        "strip_value",
    },
    "tarfile": {"_proc_member"},
    "transformers": {"_get_grad_norm", "training_step", "on_pre_optimizer_step", "on_step_begin", "on_step_end"},
    "trl": {"_compute_loss", "_generate_and_score_completions"},
    "typer": {"compact_log", "import_key", "reference_server", "resolve_command", "uninstall"},
    "verifiers": {"launch"},
    "uvicorn": {
        "capture_signals",
        "connection_lost",
        "connection_made",
        "data_received",
        "on_response_complete",
        "send_400_response",
    },
    "web3": {"make_request"},
}
FOR_TESTS_AND_BENCHES = {
    "BENCH",
    "EMBEDDED_DIR",
    "LEAN",
    "client_count",
    "make_invitation",
    "wait_until",
}


class Definition(NamedTuple):
    """A function, class or constant of a module, or a method."""

    name: str
    line: int
    node: ast.AST

    def is_unused(self, read: int) -> bool:
        """Whether what reads its name so often is itself."""
        return read == 0 or (read <= OWN_USES_MAX and uses(self.node)[self.name] >= read)


def uses(tree: ast.AST) -> Counter[str]:
    """How often each name is read, as a name, an attribute or a word of a short string."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found[node.attr] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            found.update(WORD.findall(node.value))
    return found


def definitions(body: list[ast.stmt], in_class: bool = False) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Definition(node.name, node.lineno, node)
        if isinstance(node, ast.ClassDef):
            yield from definitions(node.body, in_class=True)
        if isinstance(node, ast.Assign) and not in_class:
            yield from (Definition(each.id, node.lineno, each) for each in node.targets if isinstance(each, ast.Name))
        if isinstance(node, ast.If | ast.Try):
            yield from definitions(node.body, in_class)


def unused(modules: dict[str, str], named_elsewhere: frozenset[str] = frozenset()) -> set[tuple[str, int, str]]:
    """Module, line and name of everything that nothing but itself reads."""
    trees = {module: ast.parse(source) for module, source in modules.items()}
    read: Counter[str] = Counter()
    for tree in trees.values():
        read.update(uses(tree))
    return {
        (module, each.line, each.name)
        for module, tree in trees.items()
        for each in definitions(tree.body)
        if each.is_unused(read[each.name]) and not each.name.startswith("__") and each.name not in named_elsewhere
    }


def product() -> tuple[dict[str, str], frozenset[str]]:
    """The sources of swarmd's modules, and the words of its other files."""
    files = [path for path in (ROOT / "swarmd").rglob("*") if path.is_file()]
    modules = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files if path.suffix == ".py"}
    others = [path.read_text("utf-8") for path in files if path.suffix in READS_NAMES]
    return modules, frozenset(WORD.findall("\n".join([*others, (ROOT / "pyproject.toml").read_text("utf-8")])))


def test_everything_in_swarmd_is_used_and_no_exception_is_needless() -> None:
    allowed, found = FOR_TESTS_AND_BENCHES.union(*CALLED_FROM_OUTSIDE.values()), unused(*product())
    assert {each for each in found if each[2] not in allowed} == set()
    assert allowed - {name for _, _, name in found} == set()
