"""Values of a type with numbers as extreme as can be: found by reflection, so that no field is forgotten."""

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

INTEGERS = (2**64 - 1, 2**63, 2**53 + 1, -1, -(2**63))
REALS = (1e308, -1e308, float("inf"), float("-inf"), float("nan"))
Path = tuple[str | int, ...]


def examples(kind: Any, named: dict[str, Any]) -> list[Any]:
    """Plain values (as `msgspec.to_builtins` gives them) of a type: one, or one for each member of a union."""
    return _examples(inspect.type_info(kind), named)


def _examples(info: inspect.Type, named: dict[str, Any]) -> list[Any]:
    if isinstance(info, inspect.UnionType):
        members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
        return [value for member in members for value in _examples(member, named)]
    if isinstance(info, inspect.StructType):
        return _structs(info, named)
    if isinstance(info, inspect.VarTupleType | inspect.ListType):
        return [[value] for value in _examples(info.item_type, named)]
    if isinstance(info, inspect.TupleType):
        return [[_examples(item, named)[0] for item in info.item_types]]
    if isinstance(info, inspect.DictType):
        return [{"key": _examples(info.value_type, named)[0]}]
    if isinstance(info, inspect.LiteralType):
        return [info.values[0]]
    scalars = {inspect.IntType: 1, inspect.FloatType: 1.0, inspect.BoolType: False, inspect.BytesType: b""}
    return [scalars.get(type(info), "x")]


def _structs(info: inspect.StructType, named: dict[str, Any]) -> list[Any]:
    fields = {field.encode_name: _examples(field.type, named) for field in info.fields}
    known = {name: value for name, value in named.items() if name in fields and _is_alike(value, fields[name][0])}
    first = {name: values[0] for name, values in fields.items()} | known
    if info.tag_field is not None:
        first = {info.tag_field: info.tag, **first}
    others = [first | {name: value} for name, values in fields.items() for value in values[1:]]
    made = [first, *others]
    return [list(each.values()) for each in made] if info.array_like else made


def _is_alike(one: Any, other: Any) -> bool:
    return isinstance(one, list | dict) == isinstance(other, list | dict)


def numbers(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where numbers stand in a plain value."""
    if isinstance(value, dict | list):
        places = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in places:
            yield from numbers(each, (*path, name))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def extremes(kind: Any, named: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Every example of a type with one of its numbers replaced by every extreme one; the path says which."""
    for example in examples(kind, named):
        for path in numbers(example):
            for number in REALS if isinstance(at(example, path), float) else INTEGERS:
                yield path, put(example, path, number)


def at(value: Any, path: Path) -> Any:
    """What stands at a place."""
    for step in path:
        value = value[step]
    return value


def put(value: Any, path: Path, number: float) -> Any:
    """A copy with another number at a place."""
    made = copy.deepcopy(value)
    at(made, path[:-1])[path[-1]] = number
    return made


def convert(value: Any, kind: Any) -> Any:
    """The typed value. Raises msgspec.ValidationError where the type refuses it."""
    return msgspec.convert(value, kind, builtin_types=(bytes,))
