"""Tests of a problem: `assert solve(LITERALS) == LITERAL`, and nothing else.

A test is read, never run: its arguments go into the sandbox, its expected value stays outside and is compared there. So
a program that ends itself early, prints what it likes or looks for the tests gains nothing, and a test is no code.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from typing import Any

import msgspec

FUNCTION = "solve"
TESTS_MIN = 4
TESTS_MAX = 8
SHOWN = 2  # in the question; the others decide
RESULT_CHARACTERS_MAX = 1000  # of one value that a program returned, as `repr` writes it
PLAIN = (bool, int, float, str)

_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


class Test(msgspec.Struct, frozen=True):
    """One call and what it must return, both as `repr` writes them, so that equal tests are equal texts."""

    arguments: str  # a tuple
    expected: str

    @property
    def line(self) -> str:
        """The test as Python."""
        inside = self.arguments[1:-1].removesuffix(",")
        return f"assert {FUNCTION}({inside}) == {self.expected}"


def make_test(arguments: tuple[Any, ...], expected: Any) -> Test:
    """A test of plain values."""
    return Test(repr(arguments), repr(expected))


def read_test(line: str) -> Test | None:
    """The test in a line; None where it is none."""
    tree = _parse(line.strip())
    statement = tree.body[0] if isinstance(tree, ast.Module) and len(tree.body) == 1 else None
    if not isinstance(statement, ast.Assert) or statement.msg is not None:
        return None
    compared = statement.test
    if not isinstance(compared, ast.Compare) or len(compared.ops) != 1 or not isinstance(compared.ops[0], ast.Eq):
        return None
    call = compared.left
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != FUNCTION:
        return None
    if call.keywords:
        return None
    try:
        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
        expected = ast.literal_eval(compared.comparators[0])
        return make_test(arguments, expected) if is_plain((arguments, expected)) else None
    except _UNREADABLE:
        return None


def is_plain(value: Any) -> bool:
    """Whether a literal has one way to be written: no set, no bytes, no complex number, no float that is no number."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(inner) for key, inner in value.items())
    if isinstance(value, float):
        return abs(value) < float("inf")
    return value is None or isinstance(value, PLAIN)


def passes(test: Test, returned: str) -> bool:
    """Whether what a program returned, as `repr` wrote it, equals what the test expects, as Python compares them."""
    if returned == test.expected:
        return True
    if len(returned) > RESULT_CHARACTERS_MAX:
        return False
    try:
        tree = _parse(returned, "eval")
        return tree is not None and bool(ast.literal_eval(tree) == ast.literal_eval(test.expected))
    except _UNREADABLE:
        return False


def is_telling(tests: Sequence[Test]) -> bool:
    """Whether the hidden tests tell a solution from none: no constant passes them, and no argument given back."""
    hidden = tests[SHOWN:]
    calls = [ast.literal_eval(test.arguments) for test in hidden]
    expected = [ast.literal_eval(test.expected) for test in hidden]
    if all(value == expected[0] for value in expected):  # as `passes` compares them: True is 1, and 1 is 1.0
        return False
    places = min(map(len, calls))
    return not any(all(call[at] == value for call, value in zip(calls, expected, strict=True)) for at in range(places))


def _parse(text: str, mode: str = "exec") -> ast.AST | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a literal like "\d" is a warning to whoever wrote it
            return ast.parse(text, mode=mode)
    except _UNREADABLE:
        return None
