"""Puts a small mistake into code that is loaded, and takes it out again.

A mutant replaces one piece of text in one module's source, which must occur there exactly once. The changed source is
executed beside the module, and the module's own functions and methods get the code that came of it: so the mistake is
wherever a function is held, be it in a table, as a default or under another module's name. A changed plain constant is
set in the module.
"""

import functools
import importlib
import inspect
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from tests.patches import Patch, read_patches

PLAIN = (bool, int, float, str, bytes, tuple, frozenset)  # constants that are compared by value


class Mutant(NamedTuple):
    """One mistake: `instead` of `text` in `module`; `given` fields of the profile bring it to light sooner."""

    name: str
    module: ModuleType
    text: str
    instead: str
    given: tuple[tuple[str, Any], ...] = ()


def read_mutants(listed: str) -> tuple[Mutant, ...]:
    """Mutants of a list of patches; what is given stands behind `with`, as in `with nodes=3 chain=False`."""
    return tuple(_mutant_of(patch) for patch in read_patches(listed))


def _mutant_of(patch: Patch) -> Mutant:
    module = importlib.import_module(patch.file.removesuffix(".py").replace("/", "."))
    words = [word.partition("=") for line in patch.more for word in line.removeprefix("with ").split()]
    given = tuple((name, literal_eval(value)) for name, _, value in words)
    return Mutant(patch.name, module, patch.text, patch.instead, given)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The mistake is in the code."""
    source = inspect.getsource(mutant.module)
    assert source.count(mutant.text) == 1, f"{mutant.name}: the text stands there {source.count(mutant.text)} times"
    changed = execute_beside(mutant.module, source.replace(mutant.text, mutant.instead))
    kept: list[tuple[FunctionType, CodeType]] = []
    constants: dict[str, Any] = {}
    try:
        for own, other in function_pairs(mutant.module, vars(mutant.module), changed):
            kept.append((own, own.__code__))
            own.__code__ = other.__code__
        for name, value in changed.items():
            if isinstance(value, PLAIN) and not name.startswith("__") and vars(mutant.module).get(name) != value:
                constants[name] = vars(mutant.module)[name]
                setattr(mutant.module, name, value)
        yield
    finally:
        for own, code in kept:
            own.__code__ = code
        for name, value in constants.items():
            setattr(mutant.module, name, value)


def execute_beside(module: ModuleType, source: str) -> dict[str, Any]:
    """What the module would hold if this were its source."""
    space = {name: vars(module).get(name) for name in ("__name__", "__file__", "__package__", "__builtins__")}
    exec(compile(source, str(module.__file__), "exec"), space)
    return space


def function_pairs(
    module: ModuleType, own: dict[str, Any], other: dict[str, Any]
) -> Iterator[tuple[FunctionType, FunctionType]]:
    """Each function and method that the module defines, with the one of the same name in the other space."""
    for name, value in own.items():
        if isinstance(value, type):
            if value.__module__ == module.__name__ and isinstance(other.get(name), type):
                yield from function_pairs(module, dict(vars(value)), dict(vars(other[name])))
            continue
        here, there = plain_function(value), plain_function(other.get(name))
        if here is not None and there is not None and here.__module__ == module.__name__:
            assert here.__code__.co_freevars == there.__code__.co_freevars, f"{name} closes over other names now"
            yield here, there


def plain_function(value: Any) -> FunctionType | None:
    """The function within a property, a class method, a cache or another wrapper; None where there is none."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    elif isinstance(value, classmethod | staticmethod):
        value = value.__func__
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None
