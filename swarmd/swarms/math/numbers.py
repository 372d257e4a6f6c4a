"""Answers as numbers, compared exactly.

A number may have a sign, commas between thousands, decimals, an exponent, or be a fraction; around it may stand units,
a currency, a per-cent sign or the marks of LaTeX, none of which changes its value. A text with several numbers is none.
"""

from __future__ import annotations

import re
from fractions import Fraction

ANSWER_CHARACTERS_MAX = 256  # a longer answer is no number
EXPONENT_MAX = 400  # 10 to a higher power is no number

_PLAIN = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"([-+]?)\s?({_PLAIN})(?:[eE]([-+]?\d{{1,4}})(?![\d.]))?(?:\s?/\s?({_PLAIN})(?![\d.]))?", re.ASCII
)
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\s?\{([^{}]*)\}\s?\{([^{}]*)\}")
_LATEX_NAME = re.compile(r"\\(?:boxed|text|mathrm|left|right|,|!|;|\(|\)|\[|\])")
_MARKS = str.maketrans({"\u2212": "-", "\u2013": "-", **dict.fromkeys("$€£¥{}*\\", " ")})


def read_number(answer: str) -> Fraction | None:
    """The one number in an answer; None where there is none, or more than one."""
    if len(answer) > ANSWER_CHARACTERS_MAX:
        return None
    text = _LATEX_FRACTION.sub(r"\1/\2", answer)
    text = _LATEX_NAME.sub(" ", text).translate(_MARKS)
    text = re.sub(r"-\s+(?=[\d.])", "-", text)  # a sign before a currency: -$4
    found = list(_NUMBER.finditer(text))
    if len(found) != 1 or _is_part_of_word(text, found[0].start()):
        return None
    return _value(*found[0].groups())


def same_answer(answer: str, truth: str) -> bool:
    """Whether an answer is the true one: the same number, or the same words where the truth is no number."""
    expected = read_number(truth)
    if expected is not None:
        return read_number(answer) == expected
    return len(answer) <= len(truth) + ANSWER_CHARACTERS_MAX and _words(answer) == _words(truth)


def _value(sign: str, number: str, exponent: str | None, divisor: str | None) -> Fraction | None:
    power, below = int(exponent or 0), Fraction((divisor or "1").replace(",", ""))
    if abs(power) > EXPONENT_MAX or below == 0:
        return None
    value = Fraction(number.replace(",", "")) * Fraction(10) ** power / below
    return -value if sign == "-" else value


def _is_part_of_word(text: str, start: int) -> bool:
    """x2, 2.3.4: a letter, digit or point right before it."""
    return start > 0 and (text[start - 1].isalnum() or text[start - 1] in "._")


def _words(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")
