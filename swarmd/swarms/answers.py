"""Answers that a scorer would run as code, or do as often as they say, and which of them may reach it.

Some of reasoning-gym's scorers hand the answer to `eval`, or to sympy's `parse_expr`, which evaluates too. An answer is
text from a model or a peer, so for these tasks peers' completions are refused and this node's own are let through only
where evaluating them can neither call anything nor grow without bound. Peers' are refused, too, where a scorer compares
trees: how long that takes goes by the truth as well, and a peer chooses among its questions.

Others make of a few characters as much work as these like: ten to a power, or a move so many times. Nobody's answer
reaches them that asks for more than a right one does. Two take NaN for a right answer.

And three pay wrong answers in full, the same one to every question of a task. These count as wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
PARSED = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
COMPARED = frozenset({"codeio"})  # as trees, which takes the product of their sizes: 7 s for a kilobyte of brackets
UNSAFE_TASKS = EVALUATED | PARSED | COMPARED
RAISED = frozenset({"coin_flip"})  # `Fraction` makes a number of all digits that an exponent stands for
REPEATED = frozenset({"rubiks_cube", "rush_hour"})  # each move is made as often as the number behind it says
TAKES_NAN = frozenset({"complex_arithmetic", "number_sorting"})  # no comparison with NaN holds
PROBABILITY_TOLERANCE = 1e-4  # of coin_flip, as its scorer has it
MOVES_MAX = 512  # in all; right answers have some 200

# Without a call, a product, a shift or a nested loop an expression does nothing and stays as small as its text.
_CALLS_OR_GROWS = re.compile(r"\(|\*|<<|\bfor\b|\blambda\b|:=")

_LARGE_EXPONENT = re.compile(r"[eE][-+]?\d{4}")
_BEYOND_FLOATS = re.compile(r"[eE][-+]?\d{3}")  # in a formula: sympy looks for the sine of 1e400 without an end
_SKIPPED = str.maketrans("", "", ",_")  # between digits, by the scorer or by `Fraction`
_FORMULA = re.compile(r"[A-Za-z0-9+\-*/^(). \n]*")
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "pi"}
)
_POWER = re.compile(r"\*\*|\^")
_SMALL_POWER = re.compile(
    r"(?:[A-Za-z0-9]|\([^()^*]*(?:\*(?!\*)[^()^*]*)*\))\s*(?:\*\*|\^)\s*"  # a base without powers in it
    r"(?:\d{1,2}|\(-?\d{1,2}(?:/\d{1,2})?\))(?![\d.(eE])(?!\s*(?:\*\*|\^))"  # to a small power, and no further
)


def is_harmless(task: str, answer: str) -> bool:
    """Whether the scorer of `task` may see `answer`."""
    if task in EVALUATED:
        return not _CALLS_OR_GROWS.search(answer)
    if task in RAISED:
        return not _LARGE_EXPONENT.search(answer.translate(_SKIPPED))
    if task in TAKES_NAN:
        return "nan" not in "".join(answer.split()).lower()
    if task in REPEATED:
        return _has_few_moves(answer)
    return task not in PARSED or _is_plain_formula(answer)


def is_overpaid(task: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether it is a wrong answer that the scorer of `task` would pay for, as it may pay in full.

    Args:
        answer: one that is harmless.
        entry: the question with its truth, as reasoning-gym has them.
    """
    is_right = _RIGHT.get(task)
    return is_right is not None and not is_right(answer.strip(), entry)


def _is_probability(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer pays for digits in common by their share of the shorter number: "0" begins all of them."""
    try:
        found, right = (Fraction(text.replace(",", "")) for text in (answer, entry["answer"]))
    except (ValueError, ZeroDivisionError):
        return False
    return abs(found - right) <= PROBABILITY_TOLERANCE


def _is_truth_value(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer asks whether both are texts."""
    return answer.lower() == str(entry["answer"]).lower()


def _makes_24(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer takes any four numbers, and what is rounded down to 24."""
    from sympy import parse_expr

    if sorted(map(int, re.findall(r"\d+", answer))) != sorted(entry["metadata"]["numbers"]):
        return False
    try:
        return bool(parse_expr(answer) == 24)
    except Exception:  # whatever a parser of Python raises
        return False


_RIGHT: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "coin_flip": _is_probability,
    "game_of_life_halting": _is_truth_value,
    "puzzle24": _makes_24,
}


def _has_few_moves(answer: str) -> bool:
    """Moves with one digit behind them at most, and few altogether."""
    if re.search(r"\d\d", answer):
        return False
    return len(answer.split()) + sum(map(int, re.findall(r"\d", answer))) <= MOVES_MAX


def _is_plain_formula(answer: str) -> bool:
    """Numbers, one-letter names, known functions and small powers; no attributes, strings or towers of powers."""
    if _BEYOND_FLOATS.search(answer):
        return False
    if not _FORMULA.fullmatch(answer) or re.search(r"\.\D|\D\.|\d{13}", f" {answer} ".replace(". ", " ")):
        return False
    if any(len(name) > 1 and name not in _FUNCTIONS for name in re.findall(r"[A-Za-z]+", answer)):
        return False
    return len(_POWER.findall(answer)) == len(_SMALL_POWER.findall(answer))
