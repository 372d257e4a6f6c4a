"""Digit tasks in other words, and the one that is not in the default mixture."""

from __future__ import annotations

from itertools import islice

import pytest

from swarmd.config import SwarmConfig, TaskConfig
from swarmd.errors import SwarmError
from swarmd.swarms.gym.reasoning_gym import DigitsPlan
from swarmd.swarms.plan import NO_MATERIAL, Question, StageId


def plan(task: str, **config: object) -> DigitsPlan:
    return DigitsPlan(SwarmConfig(id="test", tasks=(TaskConfig(task, config=dict(config)),)))


def number_of(question: Question) -> str:
    return "".join(character for character in question.messages[-1].content if character.isdigit())


def test_a_wording_changes_the_question_and_neither_the_answer_nor_the_split() -> None:
    plain, other = plan("digits_rotate"), plan("digits_rotate", wording="Move the first digit of {number} to the end.")
    drawn = list(islice(other.draw(StageId("a", 0, 0), NO_MATERIAL), 200))
    held_out = {number_of(question) for question in plain.hold_out("digits_rotate", 400)}
    for question in drawn:
        number = number_of(question)
        assert question.messages[-1].content == f"Move the first digit of {number} to the end."
        assert question.entry["answer"] == number[1:] + number[0]
        assert number not in held_out
    assert drawn[0].reference.config_digest != plain.hold_out("digits_rotate", 1)[0].reference.config_digest


@pytest.mark.parametrize("wording", ["no number", "{number} and {number}", "{number}" + "x" * 200])
def test_a_wording_has_the_number_once_and_is_short(wording: str) -> None:
    with pytest.raises(SwarmError, match="wording"):
        plan("digits_sort", wording=wording)
