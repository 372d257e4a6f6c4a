"""A swarm of which every other question teaches nothing: the digits' questions, other rewards.

Half of the questions, by their hash, give each completion the same reward; the other half give each text another one,
so that a group is flat only where all its completions are one text.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarmd.swarms.plan import Question, Score, hash_number
from swarmd.swarms.reasoning_gym import DigitsPlan
from swarmd.swarms.registry import BUILT_IN, SwarmKind

NAME = "half-flat"


def make_known() -> None:
    """Let `swarm.kind` name it, in this process."""
    BUILT_IN[NAME] = SwarmKind(NAME, "Digits, every other group flat.", 1, "bench.half_flat:HalfFlatPlan")


class HalfFlatPlan(DigitsPlan):
    """See the module's text."""

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        return [Score(0.0 if is_flat(question) else reward_of(text)) for text in completions]


def is_flat(question: Question) -> bool:
    """Whether all completions of the question are worth the same."""
    reference = question.reference
    return hash_number("flat", reference.task, reference.seed, reference.index) % 2 == 0


def reward_of(text: str) -> float:
    """A number in [0, 1) that says nothing of the text but tells it from others."""
    return hash_number("reward", text, bits=20) / (1 << 20)
