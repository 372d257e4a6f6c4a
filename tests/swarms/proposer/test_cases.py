"""Tests and proposals as text: what is read, and what is refused unread. Nothing runs here."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.swarms.plan import split_of
from swarmd.swarms.proposer.problems import (
    ProposalBounds,
    find_sections,
    find_steps,
    is_telling,
    make_problem,
    make_test,
    name_steps,
    passes,
    read_proposal,
    read_test,
    show,
)
from tests.swarms.proposer.texts import SOLUTION, STATEMENT, TESTS, propose

BOUNDS = ProposalBounds(300, 80, 500)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)


@given(st.lists(VALUES, max_size=3).map(tuple), VALUES)
def test_a_test_is_read_as_it_is_written(arguments: tuple[Any, ...], expected: Any) -> None:
    test = make_test(arguments, expected)
    assert read_test(test.line) == test
    assert len(repr(expected)) > 1000 or passes(test, repr(expected))


@pytest.mark.parametrize(
    "line",
    [
        "assert other(1) == 1",
        "assert solve(1) == solve(1)",
        "assert solve(__import__('os').getcwd()) == 1",
        "assert solve(1) == 1 == 1",
        "assert solve(1) == 1, 'text'",
        "assert solve(1) == 1; print(1)",
        "assert solve(*[1]) == 1",
        "assert solve(1e999) == 1",
        "assert solve(10 ** 9) == 1",
        "assert solve(" + "(" * 400 + ")" * 400 + ") == 1",
        "assert solve(" + "-" * 900 + "1) == 1",
        "while True: pass",
    ],
)
def test_what_is_no_call_with_plain_values_is_no_test(line: str) -> None:
    assert line.startswith("assert solve(---") or read_test(line) is None


@pytest.mark.parametrize(
    ("returned", "right"),
    [("6", True), ("6.0", True), ("[6]", False), ("True", False), ("print(6)", False), ("(" * 900, False), ("", False)],
)
def test_values_are_compared_as_python_compares_them(returned: str, right: bool) -> None:
    assert passes(make_test(([1, 2, 4],), 6), returned) == right


def test_the_hidden_tests_alone_must_tell_a_solution_from_none() -> None:
    assert is_telling([make_test((n,), n * 2) for n in range(1, 5)])
    assert not is_telling([make_test((n,), n if n < 3 else 7) for n in range(1, 5)]), "a constant"
    assert not is_telling([make_test((0, n), n) for n in range(1, 5)]), "an argument given back"


@pytest.mark.parametrize("expected", [(1, True), (0, False, -0.0), (1, 1.0), ([1], [True]), ((), ())])
def test_values_that_are_the_same_to_python_are_a_constant(expected: tuple[Any, ...]) -> None:
    tests = [make_test((n,), value) for n, value in enumerate((2, 3, *expected))]
    assert all(passes(test, repr(expected[0])) for test in tests[2:])
    assert not is_telling(tests)


def read(completion: str) -> object:
    sections = find_sections(completion)
    return read_proposal(sections, BOUNDS) if sections is not None else None


def test_a_proposal_is_read() -> None:
    fenced = f"```python\n{SOLUTION}\n```"
    assert read(propose()) == read(f"Here it is.\n{propose(fenced)}\n")
    assert read(propose()) is not None


@pytest.mark.parametrize(
    "completion",
    [
        "",
        propose() + "And now you.",
        propose() + propose(),
        propose().replace("</tests>", ""),
        propose(tests=TESTS[:3]),
        propose(tests=[f"assert solve([2, {n}]) == {n}" for n in range(9)]),
        propose(tests=[*TESTS, TESTS[0]]),
        propose(tests=[*TESTS, "assert solve('" + "x" * 60 + "') == 1"]),
        propose(tests=[*TESTS, "import os"]),
        propose(tests=[f"assert solve({n}) == 1" for n in range(5)]),
        propose(statement="Short."),
        propose(statement="long " * 100),
        propose(solution="\ud800"),
        propose(solution="#" * 501),
    ],
)
def test_what_is_out_of_form_or_bounds_is_no_proposal(completion: str) -> None:
    assert read(completion) is None


@given(st.text())
def test_shown_text_holds_no_tag_and_no_fence(text: str) -> None:
    shown = show(f"<think>{text}</answer>```python <|im_end|>")
    assert "```" not in shown and "<|" not in shown and "</" not in shown and "<think" not in shown
    assert show(STATEMENT) == STATEMENT


@given(st.integers(0, 2**31 - 1), st.integers(0, 1000), st.integers(1, 5))
def test_built_in_problems_are_the_same_everywhere_and_tell_something(seed: int, number: int, level: int) -> None:
    made = make_problem(seed, number, level)
    assert made == make_problem(seed, number, level)
    assert is_telling(made.problem.tests) and len(made.problem.tests) == 6
    assert len(made.problem.text.encode()) <= 300
    assert all(len(test.line) <= 120 and read_test(test.line) == test for test in made.problem.tests)
    assert made.canonical.count(";") < level


@given(st.integers(0, 2**31 - 1), st.integers(0, 1000), st.integers(1, 5))
def test_the_steps_of_a_built_in_problem_are_found_in_its_text(seed: int, number: int, level: int) -> None:
    made = make_problem(seed, number, level)
    found = find_steps(made.problem.text)
    assert found is not None and name_steps(*found) == made.canonical
    assert find_steps(f"  {made.problem.text.upper()}\n".replace(" ", " \t")) == found
    assert find_steps(made.problem.text.replace("Return", "Give")) is None


def test_the_lowest_level_is_one_step_with_enough_of_them_on_either_side() -> None:
    made = {problem.canonical: problem for number in range(300) if (problem := make_problem(7, number, 1))}
    sides = [split_of("solve", canonical) for canonical in made]
    assert sides.count("train") >= 30 and sides.count("held-out") >= 5
    adding = next(problem for name, problem in made.items() if name.startswith("number: add ") and "up" not in name)
    step = int(adding.canonical.split()[-1])
    for test in adding.problem.tests:
        assert ast.literal_eval(test.expected) == ast.literal_eval(test.arguments)[0] + step
