r"""Finds and parses answers in completions and data sets, and escapes peers' text.

- An answer stands in the last pair of answer tags, in the last box, or in the last line or number: `find_answer`.
- `read_number` accepts a single number with at most words around it: `$9,500`, `18\%`, `-\frac{2}{3}`, `18 \text{
  dollars}`, `x = 5`. It rejects formulas (`2\pi`, `3x`, `10^3`), two numbers, and a number times a word (`2 million`):
  paying for a part of these would reward a wrong answer.
- `1.000` is one, `1,000` a thousand; `1.000,5` and `1.000.000` are unambiguous. `1,5` may be two numbers, and is
  rejected.
- `extract_final_answer` takes the answer out of a worked solution, where GSM8K and MATH mark it.

All functions take time linear in the text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Literal

OPENING = "<answer>"
CLOSING = "</answer>"
TAGS = ("<think>", "</think>", OPENING, CLOSING)
MARKS_MAX = 30  # combining marks in a row, as in UAX #15's stream-safe text: composing them takes quadratic time
ANSWER_CHARACTERS_MAX = 4096  # a longer answer counts as none, since scorers may be slow on long text


def extract_answer(completion: str) -> str | None:
    """The stripped text between the last pair of answer tags; None if there is no pair or it is too long.

    As in a search from the left, a pair begins at the first opening tag after the previous pair. Searching from the
    right takes linear time, however many tags are never closed.
    """
    opened = completion.rfind(OPENING, 0, max(completion.rfind(CLOSING), 0))
    if opened < 0:
        return None
    begin = completion.find(OPENING, completion.rfind(CLOSING, 0, opened) + 1) + len(OPENING)
    end = completion.find(CLOSING, begin)
    return completion[begin:end].strip() if end - begin <= ANSWER_CHARACTERS_MAX else None


def span_answer(completion: str, answer: str, margin: str = "") -> tuple[tuple[int, int], ...]:
    """The span of the last pair of answer tags, if it holds exactly this answer with `margin` on both sides."""
    pair = f"{OPENING}{margin}{answer}{margin}{CLOSING}"
    begin = completion.rfind(pair)
    return ((begin, begin + len(pair)),) if begin >= 0 and extract_answer(completion) == answer else ()


def is_well_formed(completion: str) -> bool:
    """Whether the completion holds exactly one pair of answer tags and ends with it."""
    text = completion.rstrip()
    return text.count(OPENING) == 1 and text.count(CLOSING) == 1 and text.endswith(CLOSING)


def collapse_whitespace(text: str) -> str:
    """The text with runs of white space as single spaces; it decides the side of the split."""
    return " ".join(text.split())


def normalize_unicode(text: str) -> str:
    """The text in NFC, without long runs of combining marks, which are slow to compose."""
    return text if text.isascii() else unicodedata.normalize("NFC", _limit_combining_marks(text))


def _limit_combining_marks(text: str) -> str:
    """The text with at most `MARKS_MAX` combining marks in a row."""
    parted, marks = [], 0
    for letter in text:
        joins = unicodedata.combining(letter) > 0
        parted.append("\ufffd" if joins and marks == MARKS_MAX else letter)
        marks = marks + 1 if joins and marks < MARKS_MAX else 0
    return "".join(parted)


def escape_markers(text: str, markers: Iterable[str] = TAGS) -> str:
    """Defuse markers in a text by inserting a blank after the first character of each.

    A tokenizer turns a marker in a question into a control token, so a question could end its own turn or open an
    answer. The text stays readable: `<answer>` becomes `< answer>`.
    """
    for marker in sorted(set(markers), key=len, reverse=True):
        if len(marker) > 1 and marker in text:
            text = text.replace(marker, f"{marker[0]} {marker[1:]}")
    return text


# --- numbers ---

NUMBER_CHARACTERS_MAX = 256  # a longer text is not parsed as a number
EXPONENT_MAX = 400  # nor are larger powers of ten
MARK = "####"  # marks GSM8K's answers
BOXED = "\\boxed{"

_MARKED = re.compile(rf"(?:^|\n){MARK}[ \t]*([^\n]*\S)\s*\Z")

# A number uses one separator between all its groups of three digits.
_PLAIN = (
    r"(?:\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}"
    r"|\d{1,3}(?:(?: \d{3})+|(?:'\d{3})+)(?!\d)(?:\.\d+|,\d{1,2}(?!\d))?"
    r"|\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<![\w.])\.\d+)(?!\d)"
)
_POWER = r"(?:[eE]([-+]?\d{1,4})(?![\d.])|\s?(?:\\times|\\cdot|[×·*x])\s?10\^\{?([-+]?\d{1,4})\}?(?![\d.]))?"
_MIXED = r"(?:(\d{1,9})\s{1,2}(?=[1-9]\d*\s?/\s?[1-9]))?"  # as 2 1/2
_NUMBER = re.compile(rf"([-+]?){_MIXED}({_PLAIN}){_POWER}(?:\s?/\s?({_PLAIN})(?![\d.]))?", re.ASCII)
_FRACTION = re.compile(r"\\[dtc]?frac\s?(?:\{([^{}]{0,64})\}|(\d))\s?(?:\{([^{}]{0,64})\}|(\d))")
_IN_PROSE = re.compile(
    rf"[-+]?\s?(?:\\?[$€£¥]\s?)?(?:(?:\d{{1,9}}\s?)?{_FRACTION.pattern}|{_NUMBER.pattern})", re.ASCII
)

_TEXT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\s?\{([^{}]*)\}")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z]{2})(\}?)(?:\^\{?[23]\}?|[²³])")  # as in cm^2
_GROUPING = re.compile(r"(?<=\d)(?:\\[,;: ]|~)(?=\d{3})")
_SPACING = re.compile(r"\\(?:[,;: \\]|quad|qquad|displaystyle|left|right)(?![A-Za-z])|~")
_DEGREES = re.compile(r"(?:\^?\{?(?:\\circ|\\degree)(?![A-Za-z])\}?|°)(?:\s?[CF](?![A-Za-z]))?")
_ASSIGNED = re.compile(r"\s*[A-Za-z]\s*=(?=[^=]*\Z)")  # as x = 5
_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*|\S")
_LETTERS = re.compile(r"[A-Za-z\u0370-\u03ff]")  # letters used for variables
_SINGLE = frozenset("aImgshlL")  # one-letter words and units
_UNITS = re.compile(r"(?:cm|mm|km|kg|mg|ml|mL|ft|in|lbs?|oz|mph|min|hrs?|am|pm|st|nd|rd|th)(?![A-Za-z])")
_FACTORS = frozenset(
    (
        *("hundred", "thousand", "million", "billion", "trillion", "dozen", "half", "infinity"),
        *("pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "mod"),
    )
)  # words that multiply a number
_AROUND = frozenset("()[]\"'.,;:?!/-")
_MARKS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\u2010\u2011\ufe63\uff0d", "-"),
        **dict.fromkeys("\u2019\u02bc\uff07", "'"),
        **dict.fromkeys("\u00a0\u2007\u2009\u202f", " "),
        "\u066b": ".",
        "\u066c": ",",
        "\uff0c": ",",
        "\uff0e": ".",
        "\uff05": "%",
    }
)


def fold_text(text: str) -> str:
    """The text without invisible characters, case, repeated white space and variants of Unicode composition."""
    return " ".join(_remove_invisible(normalize_unicode(text).casefold()).split())


def _remove_invisible(text: str) -> str:
    """The text without zero-width spaces, direction and byte order marks, and soft hyphens."""
    return text if text.isascii() else "".join(each for each in text if unicodedata.category(each) != "Cf")


def extract_final_answer(text: str) -> str:
    """The answer of a worked solution: after GSM8K's mark in its last line, or in the last box."""
    marked = _MARKED.search(text)
    return (marked[1] if marked else extract_last_boxed(text) or text).strip()


def extract_last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}, with matched braces; None if there is none."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    depth = 1
    inside = text[start + len(BOXED) :]
    for place, character in enumerate(inside):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return inside[:place].strip()
    return None


def find_number(text: str) -> str | None:
    """The last number in prose, as spelled there."""
    found = [match[0].strip() for match in _IN_PROSE.finditer(_normalize_number_marks(text))]
    return found[-1] if found else None


def read_number(text: str) -> Fraction | None:
    """The single number in a text; None if there is none, more than one, or it is part of a formula."""
    text = extract_final_answer(text)
    if len(text) > NUMBER_CHARACTERS_MAX:
        return None
    plain = _remove_markup(_normalize_number_marks(text))
    found = list(_NUMBER.finditer(plain))
    if len(found) != 1 or not _is_standalone_number(plain, found[0]):
        return None
    return _make_fraction(*found[0].groups())


def _normalize_number_marks(text: str) -> str:
    """Normalize digits, signs and blanks to ASCII, and drop LaTeX's blanks between digits and powers of units."""
    if not text.isascii():
        text = _remove_invisible(text.translate(_MARKS))
        text = "".join(str(unicodedata.decimal(each)) if each.isdecimal() else each for each in text)
    text = _GROUPING.sub(" ", text.replace("{,}", ",").replace("\\!", ""))
    return _UNIT_POWER.sub(r"\1", text)


def _remove_markup(text: str) -> str:
    """Remove LaTeX's markup and currencies; commands with a meaning stay, with their backslash."""
    text = text.replace("\\%", "%").replace("\\$", " ")
    text = _FRACTION.sub(lambda found: f" {found[1] or found[2] or ''}/{found[3] or found[4] or ''}", text)
    text = _TEXT.sub(lambda found: f" {found[1]} " if len(found[1].strip()) > 1 else " unit ", text)
    text = _SPACING.sub(" ", _DEGREES.sub("", text))
    text = re.sub(r"\\([()\[\]])", r"\1", text)
    text = "".join(" " if each == "*" or unicodedata.category(each) == "Sc" else each for each in text)
    text = re.sub(r"([-+])\s+(?=[\d.])", r"\1", text)  # a sign before a currency: -$4
    return re.sub(r"(?<=\d)\s?%", "", text).strip(" {}")


def _is_standalone_number(text: str, number: re.Match[str]) -> bool:
    """Whether only words surround a number: no formula, and nothing that multiplies it."""
    before, after = text[: number.start()], text[number.end() :]
    if before[-1:].isalnum() or before[-1:] in ("_", ".", "/", "-", "'") or after[:1] in ("!", "/", "_"):
        return False
    if _LETTERS.match(after) and not _UNITS.match(after):
        return False
    before = _ASSIGNED.sub("", before)
    return all(_is_word(token) or token in _AROUND for token in _TOKEN.findall(f"{before} {after}"))


def _is_word(token: str) -> bool:
    if not token[0].isalpha() or token.casefold() in _FACTORS:
        return False
    return len(token) > 1 or token in _SINGLE or not _LETTERS.match(token)


def _make_fraction(
    sign: str, whole: str | None, number: str, power: str | None, of_ten: str | None, divisor: str | None
) -> Fraction | None:
    exponent, below = int(power or of_ten or 0), _parse_digits(divisor or "1")
    if abs(exponent) > EXPONENT_MAX or below == 0:
        return None
    value = _parse_digits(number) * Fraction(10) ** exponent / below + int(whole or 0)
    return -value if sign == "-" else value


def _parse_digits(number: str) -> Fraction:
    number = number.replace(" ", "").replace("'", "")
    point = number.rfind(".")
    if number.rfind(",") > point >= 0 or number.count(".") > 1:  # 1.000,5 and 1.000.000
        return Fraction(number.replace(".", "").replace(",", "."))
    decimal_comma = re.fullmatch(r"\d+,\d{1,2}", number)  # as 1 000,5
    return Fraction(number.replace(",", "." if decimal_comma else ""))


# --- where the answer stands ---

AnswerPlace = Literal["tags", "last-number", "last-line", "boxed", "whole"]


def find_answer(completion: str, place: AnswerPlace) -> str | None:
    """The answer in a completion; None if there is none, or it is too long to be right."""
    found = _FINDERS[place](completion)
    return found if found is not None and 0 < len(found) <= ANSWER_CHARACTERS_MAX else None


def _last_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else None


_FINDERS: dict[AnswerPlace, Callable[[str], str | None]] = {
    "tags": extract_answer,
    "last-number": find_number,
    "last-line": _last_line,
    "boxed": extract_last_boxed,
    "whole": str.strip,
}
