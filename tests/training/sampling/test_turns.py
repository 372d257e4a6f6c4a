"""Completions in turns: each within its own room, and given up as soon as the stage is cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.swarms.gym.reasoning_gym import DigitsPlan
from swarmd.swarms.plan import NO_MATERIAL, Question, StageId
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.sampling.turns import SamplingLimits, Turns
from tests.log_capture import capture_logs

PLACE = StageId("a", 0, 0)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(TrainingConfig(device="cpu"))


class Asking(DigitsPlan):
    """Pauses at a question mark, and answers with as many letters as the turn before had."""

    stops = ("?",)

    def __init__(self, react: Any) -> None:
        super().__init__(SwarmConfig(id="test"))
        self.react = react  # type: ignore[method-assign]


class Texts:
    """A sampler of texts as written, turn by turn, that notes how much room it was given."""

    def __init__(self, policy: Policy, turns: Sequence[Sequence[str]]) -> None:
        self._policy = policy
        self._turns = iter(turns)
        self.rooms: list[list[int]] = []

    def sample(self, prompts: Any, group: int, tokens_max: int, *rest: Any) -> list[list[int]]:
        self.rooms.append(list(rest[4]) or [tokens_max] * len(prompts) * group)
        return [self._policy.encode_completion(text, True, 10_000) for text in next(self._turns)]


def ask(plan: Any, policy: Policy, sampler: Any, texts: int, tokens_max: int, cancellation: Cancellation) -> list[Any]:
    question: Question = next(plan.draw(PLACE, NO_MATERIAL))
    turns = Turns(plan, policy, sampler, SamplingLimits(tokens_max, 1.0))
    return turns.complete([question], [[1, 2]], texts, torch.Generator(), cancellation)


def test_each_completion_is_drawn_within_its_own_room(policy: Policy) -> None:
    sampler = Texts(policy, [["12?", "12345678?"], ["3?", "4"], ["5"]])
    drawn = ask(Asking(lambda *_: "00"), policy, sampler, 2, 20, Cancellation())
    lengths = [len(policy.encode_completion(text, True, 100)) for text in ("12?00", "12345678?00", "12?003?00")]
    assert sampler.rooms == [[20, 20], [20 - lengths[0], 20 - lengths[1]], [20 - lengths[2]]]
    assert [each.text for each in drawn] == ["12?003?005", "12345678?004"]


def test_a_completion_over_which_the_plan_raises_ends_there(policy: Policy) -> None:
    def react(question: Question, text: str) -> str:
        return {"1?": "+"}[text]

    with capture_logs() as told:
        drawn = ask(Asking(react), policy, Texts(policy, [["1?", "2?"], ["5"]]), 2, 12, Cancellation())
    assert [each.text for each in drawn] == ["1?+5", "2?"]
    assert [line["event"] for line in told] == ["completions are not continued"]
    assert told[0]["plan"] == "KeyError('2?')"


def test_a_cancellation_waits_for_no_reaction(policy: Policy) -> None:
    """Nor are those begun that were waiting for their turn."""
    cancellation, going = Cancellation(), threading.Event()
    begun: list[str] = []

    def react(question: Question, text: str) -> str:
        begun.append(text)
        cancellation.ask()
        going.wait(30)
        return "00"

    started = time.monotonic()
    try:
        with pytest.raises(Cancelled):
            ask(Asking(react), policy, Texts(policy, [["1?"] * 16]), 16, 20, cancellation)
        assert time.monotonic() - started < 10.0
    finally:
        going.set()
    assert 1 <= len(begun) <= 2
