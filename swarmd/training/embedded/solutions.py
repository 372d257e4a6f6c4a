"""Right completions of both stages of the kind `proposer-solver`: problems of small values with tests, and programs."""

from __future__ import annotations

from random import Random
from typing import Any

from swarmd.swarms.proposer.cases import TESTS_MIN, is_telling
from swarmd.swarms.proposer.pool import FAMILIES, NUMBER, NUMBERS, Family, Steps, compose, find_steps
from swarmd.swarms.proposer.proposals import SECTIONS, Problem

TRIES_MAX = 200  # at values whose tests tell something
PYTHON = {  # of the steps of the built-in problems, by their words
    "add {k}": "x + {k}",
    "multiply by {k}": "x * {k}",
    "subtract {k}": "x - {k}",
    "take the remainder after dividing by {k}": "x % {k}",
    "divide by {k} and drop the remainder": "x // {k}",
    "count the digits, without a sign": "len(str(abs(x)))",
    "add up the digits, without a sign": "sum(int(c) for c in str(abs(x)))",
    "add {k} to each": "[n + {k} for n in x]",
    "multiply each by {k}": "[n * {k} for n in x]",
    "keep those above {k}": "[n for n in x if n > {k}]",
    "keep those below {k}": "[n for n in x if n < {k}]",
    "keep the even ones": "[n for n in x if n % 2 == 0]",
    "keep the odd ones": "[n for n in x if n % 2 == 1]",
    "reverse the order": "x[::-1]",
    "sort them, the smallest first": "sorted(x)",
    "leave out the first {k}": "x[{k}:]",
    "add them up": "sum(x)",
    "count them": "len(x)",
    "take the largest, or 0 if there is none": "max(x, default=0)",
    "reverse it": "x[::-1]",
    "leave out the vowels": "''.join(c for c in x if c not in 'aeiou')",
    "write every letter {k} times": "''.join(c * {k} for c in x)",
    "keep the first {k} letters": "x[:{k}]",
    "leave out the first {k} letters": "x[{k}:]",
    "sort the letters": "''.join(sorted(x))",
    "leave out every letter that stands further to the left already": "''.join(dict.fromkeys(x))",
    "count the letters": "len(x)",
    "count the vowels": "sum(c in 'aeiou' for c in x)",
    "write it in capitals": "x.upper()",
}
EASY = {  # of these, what a tiny model can compute the tests of
    *(
        "add {k}",
        "subtract {k}",
        "reverse the order",
        "leave out the first {k}",
        "take the largest, or 0 if there is none",
    ),
    *("add {k} to each", "sort them, the smallest first", "reverse it", "keep the first {k} letters"),
    *("leave out the first {k} letters", "write it in capitals"),
}
LETTERS = "kquvxz"


def write_program(steps: Steps) -> str:
    """The function `solve`, one line for each step."""
    lines = [f"    x = {PYTHON[step.words].format(k=k)}" for step, k in steps]
    return "\n".join(["def solve(x):", *lines, "    return x"])


def read_problem(problem: Problem) -> tuple[Family, Steps]:
    """The steps of a built-in problem."""
    found = find_steps(problem.text)
    assert found is not None, problem.text
    return found


def write_sections(problem: Problem, random: Random) -> dict[str, str] | None:
    """A proposal of the same steps with tests on small values; None where that is not easy, or they tell nothing."""
    family, steps = read_problem(problem)
    for _ in range(TRIES_MAX if EASY.issuperset(step.words for step, _ in steps) else 0):
        small = compose(family, steps, [(value,) for value in draw_small(family, random)]).problem
        if len({test.arguments for test in small.tests}) == TESTS_MIN and is_telling(small.tests):
            tests = "\n".join(test.line for test in small.tests)
            return dict(zip(SECTIONS, (small.text, tests, write_program(steps)), strict=True))
    return None


def draw_small(family: Family, random: Random) -> list[Any]:
    """Values for the tests of a proposal: numbers one after the other, short lists, short texts."""
    if family is NUMBER:
        first = random.randint(0, 9)
        return list(range(first, first + TESTS_MIN))
    if family is NUMBERS:
        return [[random.randint(0, 5) for _ in range(2)] for _ in range(TESTS_MIN)]
    return ["".join(random.choices(LETTERS, k=3)) for _ in range(TESTS_MIN)]


assert set(PYTHON) == {step.words for family in FAMILIES for step in (*family.steps, *family.endings)}
