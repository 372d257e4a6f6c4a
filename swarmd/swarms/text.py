"""Answer tags in completions, and how text that nobody vouches for is made harmless."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

OPENING = "<answer>"
CLOSING = "</answer>"
TAGS = ("<think>", "</think>", OPENING, CLOSING)
MARKS_MAX = 30  # combining marks in a row, as in UAX #15's stream-safe text: composing them takes their square
ANSWER_CHARACTERS_MAX = 4096  # a longer answer counts as none: scorers may be slow on long text


def extract_answer(completion: str) -> str | None:
    """What stands between the last pair of answer tags, stripped; None where there is no pair or it is too long.

    A pair begins at the first opening tag after the last pair's end, as a search from the left finds them. From the
    right it takes time linear in the text, however many tags are never closed.
    """
    opened = completion.rfind(OPENING, 0, max(completion.rfind(CLOSING), 0))
    if opened < 0:
        return None
    begin = completion.find(OPENING, completion.rfind(CLOSING, 0, opened) + 1) + len(OPENING)
    end = completion.find(CLOSING, begin)
    return completion[begin:end].strip() if end - begin <= ANSWER_CHARACTERS_MAX else None


def span_answer(completion: str, answer: str, margin: str = "") -> tuple[tuple[int, int], ...]:
    """Where the last pair of answer tags stands, in characters, if just this answer stands in it, with the margin on
    both sides and no other blank."""
    pair = f"{OPENING}{margin}{answer}{margin}{CLOSING}"
    begin = completion.rfind(pair)
    return ((begin, begin + len(pair)),) if begin >= 0 and extract_answer(completion) == answer else ()


def is_well_formed(completion: str) -> bool:
    """Whether the completion holds exactly one pair of answer tags and ends with it."""
    text = completion.rstrip()
    return text.count(OPENING) == 1 and text.count(CLOSING) == 1 and text.endswith(CLOSING)


def canonical_of(text: str) -> str:
    """The text without differences of white space: what the split goes by."""
    return " ".join(text.split())


def compose(text: str) -> str:
    """The text in Unicode's composed form (NFC), without what would take long to bring into it."""
    return text if text.isascii() else unicodedata.normalize("NFC", _part_marks(text))


def _part_marks(text: str) -> str:
    """Text in which no more than `MARKS_MAX` combining marks follow each other."""
    parted, marks = [], 0
    for letter in text:
        joins = unicodedata.combining(letter) > 0
        parted.append("\ufffd" if joins and marks == MARKS_MAX else letter)
        marks = marks + 1 if joins and marks < MARKS_MAX else 0
    return "".join(parted)


def escape_markers(text: str, markers: Iterable[str] = TAGS) -> str:
    """Text in which no marker is left: a blank is put behind its first character.

    A tokenizer turns a marker in a question into the control token of that name, so a question could end its own turn
    or open an answer. The text stays readable: `<answer>` becomes `< answer>`.
    """
    for marker in sorted(set(markers), key=len, reverse=True):
        if len(marker) > 1 and marker in text:
            text = text.replace(marker, f"{marker[0]} {marker[1:]}")
    return text


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
    """Whether a harmless answer is a wrong one that the scorer of `task` would pay for, as it may pay in full.

    `entry` has the question with its truth, as reasoning-gym gives them.
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
