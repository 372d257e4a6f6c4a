"""No skill is lost: tasks whose held-out accuracy has fallen are drawn more until they are back.

A measurement of n questions that comes out at p has a variance of p(1-p)/n. Each task has an exponential mean of its
measurements and the best value that this mean had. It has fallen where the mean lies below the best by more than
`DEVIATIONS` standard deviations of their difference; from there on its weight grows with the share of the best that is
gone, up to `WEIGHT_MAX`. The best sinks towards the mean, slowly: a skill that does not come back is let go in
time, and takes no more places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import msgspec

from swarmd.core.values import SKILL_NAME_MAX, SKILLS_MAX, Skill
from swarmd.swarms.plan import Question
from swarmd.training.sampling.evaluation import Accuracy

FRESH = 0.5  # share of the newest measurement in the mean
FORGOTTEN = 0.02  # of the distance between best and mean, at each measurement: half of it in 34
DEVIATIONS = 2.5  # of the difference, beyond which a task has fallen
WEIGHT_MAX = 3.0  # times that a task which has fallen is drawn as often as one that has not
GONE_MOST = 0.5  # share of the best that is gone, beyond what may be chance, at which the weight is the greatest
SKIPPED_MAX = 64  # questions in a row that are passed over for those of tasks that have fallen


class SkillRecord(msgspec.Struct, frozen=True):
    """What is known of one task: accuracies on its held-out questions."""

    latest: float
    mean: float  # exponential, over measurements
    best: float  # of the mean, sinking slowly
    questions: int  # in the latest measurement

    @property
    def noise(self) -> float:
        """Standard deviation of the difference between mean and best, from the number of questions alone.

        The accuracy counts two right and two wrong answers more than there were (Agresti and Coull), so that nobody is
        sure after few questions. Mean and best are taken as independent, which they are not at first: that errs on
        the quiet side.
        """
        share = (self.best * self.questions + 2) / (self.questions + 4)
        of_mean = FRESH / (2 - FRESH)  # variance of an exponential mean, as a share of one measurement's
        return math.sqrt(2 * of_mean * share * (1 - share) / (self.questions + 4))

    @property
    def gone(self) -> float:
        """The share of the best that is gone beyond what may be chance; 0 for a task that has not fallen."""
        fall = self.best - self.mean - DEVIATIONS * self.noise
        return fall / self.best if fall > 0 else 0.0

    @property
    def weight(self) -> float:
        """How often the task is drawn, as a multiple of one that has not fallen: from 1 to `WEIGHT_MAX`."""
        return 1 + (WEIGHT_MAX - 1) * min(self.gone / GONE_MOST, 1.0)


def follow(known: Mapping[str, SkillRecord], measured: Mapping[str, Accuracy]) -> dict[str, SkillRecord]:
    """The records after one more measurement, of the tasks that it has; what was not measured leaves all as it was."""
    if not measured:
        return dict(known)
    return {task: _follow_one(known.get(task), found) for task, found in measured.items()}


def _follow_one(record: SkillRecord | None, found: Accuracy) -> SkillRecord:
    if record is None:
        return SkillRecord(found.correct, found.correct, found.correct, found.questions)
    mean = record.mean + FRESH * (found.correct - record.mean)
    best = max(mean, record.best - FORGOTTEN * (record.best - mean))
    return SkillRecord(found.correct, mean, best, found.questions)


def weights_of(records: Mapping[str, SkillRecord]) -> dict[str, float]:
    """The weights of the tasks that have fallen; all others have 1."""
    return {task: record.weight for task, record in records.items() if record.gone > 0}


def tell(records: Mapping[str, SkillRecord], guarded: bool) -> tuple[Skill, ...]:
    """The tasks as events have them, those that have fallen most first, `SKILLS_MAX` at most.

    Args:
        guarded: whether what has fallen is drawn more; else all weights are 1.
    """
    ordered = sorted(records.items(), key=lambda entry: -entry[1].gone)
    return tuple(
        Skill(
            task[:SKILL_NAME_MAX],
            record.latest,
            record.questions,
            record.best,
            record.gone > 0,
            round(record.weight, 2) if guarded else 1.0,
        )
        for task, record in ordered[:SKILLS_MAX]
    )


def favour(questions: Iterator[Question], weights: Mapping[str, float], seed: int) -> Iterator[Question]:
    """The questions without some of them, so that a task's share is proportional to its weight.

    Where nothing has fallen, all of them. The seed decides what is passed over, so that all ranks pass over the same;
    `SKIPPED_MAX` in a row at most.
    """
    if not weights:
        return questions
    return _pass_over(questions, weights, Random(seed))


def _pass_over(questions: Iterator[Question], weights: Mapping[str, float], random: Random) -> Iterator[Question]:
    most, skipped = max(weights.values()), 0
    for question in questions:
        if random.random() * most < weights.get(question.task, 1.0) or skipped == SKIPPED_MAX:
            skipped = 0
            yield question
        else:
            skipped += 1


class SkillGuard:
    """The records of one node, which its checkpoints hold.

    Args:
        guarded: whether tasks that have fallen are drawn more; they are followed and told all the same.
    """

    def __init__(self, guarded: bool) -> None:
        self._guarded = guarded
        self._records: dict[str, SkillRecord] = {}

    def note(self, measured: Mapping[str, Accuracy]) -> None:
        """Take one more measurement."""
        self._records = follow(self._records, measured)

    @property
    def weights(self) -> dict[str, float]:
        """Of the tasks that are drawn more."""
        return weights_of(self._records) if self._guarded else {}

    @property
    def best(self) -> dict[str, float]:
        """The best accuracy of each task, see `SkillRecord`."""
        return {task: record.best for task, record in self._records.items()}

    def tell(self) -> tuple[Skill, ...]:
        """See `tell`."""
        return tell(self._records, self._guarded)

    def read(self) -> dict[str, Any]:
        """The records as plain values, for a checkpoint."""
        return {task: msgspec.structs.asdict(record) for task, record in self._records.items()}

    def load(self, records: Mapping[str, Any]) -> None:
        """Take up the records of a checkpoint."""
        self._records = {task: SkillRecord(**record) for task, record in records.items()}
