"""The default rewards: what upstream got wrong pays the right way round here."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.swarms.math import compat, fixed
from swarmd.swarms.math.fixed import NONE, ScoringFacts
from tests.swarms.math.voices import agreement, answer, opinion

ONE_RIGHT = {"Student #1": True, "Student #2": False}
ALL_WRONG = {"Student #1": False, "Student #2": False}
ALL_RIGHT = {"Student #1": True, "Student #2": True}


def choose(choice: str, right: dict[str, bool]) -> fixed.Parts:
    return fixed.score_choice(ScoringFacts("4", right=right), opinion(choice))


@pytest.mark.parametrize(("right", "pays"), [(ONE_RIGHT, 0), (ALL_WRONG, 2), (ALL_RIGHT, 0), ({}, 2)])
def test_none_pays_where_no_answer_is_right(right: dict[str, bool], pays: float) -> None:
    for words in ("None", "none.", "No one is correct", "ALL ANSWERS WERE WRONG"):
        assert choose(words, right)["correctness"] == pays


@pytest.mark.parametrize(
    ("choice", "known", "pays"),
    [
        ("Student #1", 0.5, 2),
        ("student  #1", 0.5, 2),
        ("Student #2", 0.5, 0),
        ("Student #3", 0, 0),
        ("1", 0, 0),
        ("", 0, 0),
    ],
)
def test_a_choice_pays_where_the_student_is_right(choice: str, known: float, pays: float) -> None:
    parts = choose(choice, ONE_RIGHT)
    assert (parts["proper_id"], parts["correctness"]) == (known, pays)


def test_reasoning_over_several_lines_has_the_form() -> None:
    text = answer(4, "first\nsecond")
    assert compat.score_answers("", "4", [text])[0]["strict_format"] == 0
    assert fixed.score_answer(ScoringFacts("4"), text)["strict_format"] == 0.5
    assert fixed.score_answer(ScoringFacts("4"), text[:-1])["strict_format"] == 0.5


@pytest.mark.parametrize(
    ("gold", "said"), [("1,000", "1000"), ("4", "4.0"), ("-4", "-4"), ("18", "$18"), ("0.5", "1/2")]
)
def test_numbers_written_otherwise_are_right(gold: str, said: str) -> None:
    parts = fixed.score_answer(ScoringFacts(gold), answer(said))
    assert (parts["int"], parts["correctness"]) == (0.5, 2)
    assert compat.score_answers("", gold, [answer(said)])[0]["correctness"] == 2 * (gold == said)


def test_the_tag_of_the_majority_earns_two_at_most() -> None:
    facts = ScoringFacts("4", "What is 2+2?", ONE_RIGHT, ["Student #1"])
    parts = fixed.score_agreement(facts, agreement("Student #1", "What is 2+2?", 4))
    assert parts == {
        "consensus": 1,
        "concensus_correctness": 1,
        "question_recreation": 1,
        "final_correctness": 2,
        "strict_format": 0.5,
        "soft_format": 0,
        "xmlcount": 1.25,
    }


@given(st.text(max_size=300), st.integers(0, 2))
def test_rewards_are_finite_and_bounded(text: str, stage: int) -> None:
    facts = ScoringFacts("4", "What is 2+2?", ONE_RIGHT, [NONE])
    reward = sum(fixed.SCORERS[stage](facts, text).values())
    assert math.isfinite(reward) and 0 <= reward <= (3.5, 3.75, 6.75)[stage]
