"""Restated questions are compared as difflib compares them, and none for ever."""

from __future__ import annotations

import time
from difflib import SequenceMatcher

import pytest

from swarmd.swarms.math import compat, fixed
from swarmd.swarms.math.reading import compare_within

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


def test_what_takes_too_many_steps_is_not_alike() -> None:
    assert compare_within(15, "abcabc", "abc") == SequenceMatcher(None, "abcabc", "abc").ratio()
    assert compare_within(10, "abcabc", "abc") == 0


@pytest.mark.parametrize("length", [60, 190, 900, 3000])
def test_honest_texts_are_as_alike_as_difflib_says(length: int) -> None:
    question = PROSE[:length]
    words = question.split(" ")
    for restated in (question, question.upper(), " ".join(words[::-1]), " ".join(words[: len(words) // 2]), "2+2"):
        assert compat.likeness(restated, question) == SequenceMatcher(None, restated, question).ratio()
        by_word = SequenceMatcher(None, restated.split()[:401], question.split()[:400], autojunk=False).ratio()
        assert fixed.likeness(restated, question) == by_word
