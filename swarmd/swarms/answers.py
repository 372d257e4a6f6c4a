"""Answers that a scorer would run as code, and which of them may reach it.

Some of reasoning-gym's scorers hand the answer to `eval`, or to sympy's `parse_expr`, which evaluates too. An answer is
text from a model or a peer, so for these tasks peers' completions are refused and this node's own are let through only
where evaluating them can neither call anything nor grow without bound.
"""

from __future__ import annotations

import re

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
PARSED = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
UNSAFE_TASKS = EVALUATED | PARSED

# Without a call, a product, a shift or a nested loop an expression does nothing and stays as small as its text.
_CALLS_OR_GROWS = re.compile(r"\(|\*|<<|\bfor\b|\blambda\b|:=")

_FORMULA = re.compile(r"[A-Za-z0-9+\-*/^(). \n]*")
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "pi"}
)
_POWER = re.compile(r"\*\*|\^")
_SMALL_POWER = re.compile(
    r"(?:[A-Za-z0-9]|\([^()^*]*(?:\*(?!\*)[^()^*]*)*\))\s*(?:\*\*|\^)\s*"  # a base without powers in it
    r"(?:\d{1,2}|\(-?\d{1,2}(?:/\d{1,2})?\))(?![\d.(])(?!\s*(?:\*\*|\^))"  # to a small power, and no further
)


def is_harmless(task: str, answer: str) -> bool:
    """Whether the scorer of `task` may see `answer`."""
    if task in EVALUATED:
        return not _CALLS_OR_GROWS.search(answer)
    return task not in PARSED or _is_plain_formula(answer)


def _is_plain_formula(answer: str) -> bool:
    """Numbers, one-letter names, known functions and small powers; no attributes, strings or towers of powers."""
    if not _FORMULA.fullmatch(answer) or re.search(r"\.\D|\D\.|\d{13}", f" {answer} ".replace(". ", " ")):
        return False
    if any(len(name) > 1 and name not in _FUNCTIONS for name in re.findall(r"[A-Za-z]+", answer)):
        return False
    return len(_POWER.findall(answer)) == len(_SMALL_POWER.findall(answer))
