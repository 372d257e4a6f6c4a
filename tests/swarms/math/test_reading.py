"""Numbers, forms and likeness: read exactly, in bounded time."""

from __future__ import annotations

import time
from difflib import SequenceMatcher
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.swarms.math import compat, fixed
from swarmd.swarms.math.texts import SENTENCES, TAGS, is_template, read_last, read_number, read_sections, same_answer
from tests.swarms.math.voices import agreement, answer, opinion


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,000", 1000), ("1,234,567.50", Fraction("1234567.5")), ("-4", -4), ("\u22124", -4), ("$-4", -4), ("-$4", -4),
        ("€ 12.30", Fraction("12.3")), ("18 dollars", 18), ("x = 5", 5), ("50%", 50), ("3/4", Fraction(3, 4)),
        ("6 / 8", Fraction(3, 4)), (r"\frac{3}{4}", Fraction(3, 4)), (r"$\dfrac{-3}{4}$", Fraction(-3, 4)),
        (r"\boxed{42}", 42), (r"\(7\)", 7), ("1e3", 1000), (".5", Fraction(1, 2)), ("9 apples.", 9), ("007", 7),
    ],
)  # fmt: skip
def test_numbers(text: str, value: Fraction | int) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "none", "3+4=7", "1 or 2", "1,00", "2.3.4", "x2", "1/0", "1e99999", "10^3", "5-3", "٣", "1,2,3", "9" * 300],
)
def test_no_numbers(text: str) -> None:
    assert read_number(text) is None


@given(st.integers(-(10**12), 10**12))
def test_commas_and_decimals_change_nothing(value: int) -> None:
    assert same_answer(f"{value:,}", str(value))
    assert same_answer(f"{value}.00", f"{value:,}")
    assert not same_answer(str(value + 1), str(value))


def test_words_are_compared_where_the_truth_is_no_number() -> None:
    assert same_answer(" Blue  whale.", "blue whale")
    assert not same_answer("whale", "blue whale")
    assert not same_answer("blue", "4")


PROSE = f"What is 2+2? {compat.__doc__} {fixed.__doc__}".replace("\n", " ") * 4
LETTERS = [chr(0x4E00 + number % 50) for number in range(2000)]
WORDS = [f"w{number % 20}" for number in range(200)]


def test_texts_that_are_made_to_share_single_letters_are_not_compared_for_ever() -> None:
    restated, question = "".join(2 * LETTERS), "".join(f"{letter}-" for letter in LETTERS)
    began = time.process_time()
    assert compat.likeness(restated, question) == 0
    assert time.process_time() - began < 2.0


def test_texts_that_are_made_to_share_single_words_are_not_compared_for_ever() -> None:
    assert fixed.likeness(" ".join(2 * WORDS), " ".join(f"{word} -" for word in WORDS)) == 0


@pytest.mark.parametrize("length", [60, 190, 900, 3000])
def test_honest_texts_are_as_alike_as_difflib_says(length: int) -> None:
    question = PROSE[:length]
    words = question.split(" ")
    for restated in (question, question.upper(), " ".join(words[::-1]), " ".join(words[: len(words) // 2]), "2+2"):
        assert compat.likeness(restated, question) == SequenceMatcher(None, restated, question).ratio()
        by_word = SequenceMatcher(None, restated.split()[:401], question.split()[:400], autojunk=False).ratio()
        assert fixed.likeness(restated, question) == by_word


def test_sections_and_lines() -> None:
    for text, stage in ((answer(4, "two\nlines"), 0), (opinion("None"), 1), (agreement("None", "q", 4), 2)):
        sections = read_sections(text, TAGS[stage])
        assert sections is not None and is_template(text, sections)
        assert not is_template(text.replace("\n", " "), sections)
    assert read_sections(answer(4) * 2, TAGS[0]) is None
    assert read_sections(f"Well, {answer(4)}", TAGS[0]) is None
    assert read_last("<answer>1</answer> no, <answer> 2 </answer>", "answer") == "2"
    assert read_last("</answer><answer>", "answer") is None


HOSTILE = [
    "</think><answer>" * 1000,
    "<think>" + "</think><answer>" * 1000,
    "<summarize_feedback>"
    + "".join(
        "</summarize_feedback><majority></majority><question></question><think></think><answer>" for _ in range(180)
    ),
    "<summarize_feedback>" + "</summarize_feedback>" + " " * 16000,
    "<compare>" * 1800,
    "<identify>" * 1600,
    "a " * 8000,
    "the the of " * 1500,
    "9" * 16384,
    "9," * 8192,
    "<answer>" + "-" * 8000 + " " * 8000 + "</answer>",
    "<question>" + "e" * 4000 + "</question>",
    SENTENCES[0] * 500,
    "\n" * 16384,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_completion_takes_long_to_score(text: str) -> None:
    prompt = "The question we were given is: " + "How many of the eleven trees are there? " * 6
    facts = fixed.ScoringFacts("4", prompt, {"Student #1": True}, ["None"])
    began = time.process_time()
    for stage in range(3):
        assert compat.SCORERS[stage](prompt, "4", [text])[0].keys() == fixed.SCORERS[stage](facts, text).keys()
    read_number(text)
    assert time.process_time() - began < 1.5
