"""A swarm of small conversations: find a digit, told after each guess whether it is larger or smaller."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import RecordRejected
from swarmd.swarms.conversation import ConversationPlan
from swarmd.swarms.options import TurnLimits
from swarmd.swarms.plan import Material, Message, Question, StageId, hash_number
from swarmd.swarms.rollouts import Reference


class Guessing:
    """One game. `act` may be replaced, to make it behave badly."""

    closed = 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.guess = -1

    def reset(self, question: Question) -> None:
        self.guess = -1

    def act(self, text: str) -> str | None:
        found = re.findall(r"\d", text)
        self.guess = int(found[-1]) if found else -1
        if self.guess == self.number:
            return None
        return "larger" if self.guess < self.number else "smaller"

    def reward(self) -> float:
        return 1.0 - abs(self.guess - self.number) / 10

    def close(self) -> None:
        Guessing.closed += 1


class GuessingPlan(ConversationPlan):
    """Find a digit."""

    reward_max = 1.0
    tasks = ("guess",)

    def __init__(
        self, limits: TurnLimits | None = None, spoil: Callable[[Any], None] = lambda environment: None
    ) -> None:
        super().__init__(SwarmConfig(id="test"), TrainingConfig(), Path())
        self.limits = limits or TurnLimits(turns=3, seconds=20.0)
        self._spoil = spoil

    def open_environment(self, question: Question) -> Guessing:
        environment = Guessing(question.reference.index % 10)
        self._spoil(environment)
        return environment

    def draw(self, place: StageId, material: Material) -> Iterator[Question]:
        return (ask(index, place) for index in itertools.count())

    def hold_out(self, task: str, count: int) -> list[Question]:
        return [ask(index, StageId("held-out", 0, 0)) for index in range(count)]

    def regenerate(self, reference: Reference, place: StageId, material: Material) -> Question:
        if reference.seed != ask(0, place).reference.seed:
            raise RecordRejected("seed", "another stage's")
        return ask(reference.index, place)


def ask(index: int, place: StageId) -> Question:
    seed = hash_number("guess", place.peer, place.round, place.stage)
    return Question(Reference("guess", "1", seed, index), (Message("user", "Which digit?"),), {})


def hang(environment: Any) -> None:
    """Let it hang at the first guess that is wrong."""
    act = environment.act

    def wait_for_ever(text: str) -> str | None:
        if act(text) is not None:
            threading.Event().wait(60)
        return None

    environment.act = wait_for_ever
