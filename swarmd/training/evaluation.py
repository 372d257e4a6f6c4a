"""Accuracy on held-out questions, and what follows from it: no skill is lost.

Tasks whose held-out accuracy has fallen are drawn more until they are back. A measurement of n questions that comes out
at p has a variance of p(1-p)/n. Each task has an exponential mean of its measurements and the best value that this mean
had. It has fallen where the mean lies below the best by more than `DEVIATIONS` standard deviations of their difference;
from there on its weight grows with the share of the best that is gone, up to `WEIGHT_MAX`. The best sinks towards the
mean, slowly: a skill that does not come back is let go in time, and takes no more places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import torch

from swarmd.config import TrainingConfig
from swarmd.core.values import SKILL_NAME_MAX, SKILLS_MAX, Skill
from swarmd.logger import get_logger
from swarmd.swarms.plan import Plan, Question, Score, hash_number, hold_out_questions
from swarmd.training.cancellation import Cancellation
from swarmd.training.models.model import Policy
from swarmd.training.plan_failures import score_own, warn_of
from swarmd.training.progress import CountSink
from swarmd.training.sampling import Sampling, Turns

CORRECT_SCORE = 0.99  # from here on an answer counts as correct: partial credit is no answer
BATCH_QUESTIONS = 128  # drawn together
FRESH = 0.5  # share of the newest measurement in the mean
FORGOTTEN = 0.02  # of the distance between best and mean, at each measurement: half of it in 34
DEVIATIONS = 2.5  # of the difference, beyond which a task has fallen
WEIGHT_MAX = 3.0  # times that a task which has fallen is drawn as often as one that has not
GONE_MOST = 0.5  # share of the best that is gone, beyond what may be chance, at which the weight is the greatest
SKIPPED_MAX = 64  # questions in a row that are passed over for those of tasks that have fallen

log = get_logger(__name__)


class Accuracy(msgspec.Struct, frozen=True):
    """Shares of one task's questions, one completion each."""

    correct: float
    formatted: float
    questions: int


def measure_held_out(
    policy: Policy,
    sampler: Sampling,
    plan: Plan,
    training: TrainingConfig,
    batch_questions: int,
    cancellation: Cancellation,
    tell: CountSink = lambda done, total: None,
) -> dict[str, Accuracy]:
    """Accuracy on the held-out questions by task, as many of each as the configuration says.

    Raises:
        Cancelled: it was cancelled meanwhile.
        SwarmError: the plan gave something else than questions.
    """
    questions = {task: hold_out_questions(plan, task, training.held_out_questions) for task in plan.tasks}
    result = evaluate(
        *(policy, sampler, plan, questions, training.completion_tokens, training.temperature, training.seed),
        cancellation=cancellation,
        batch_questions=batch_questions,
        prompt_tokens=training.prompt_tokens,
        tell=tell,
    )
    cancellation.check()  # what a plan gives of a stage that was cancelled is not what it would give
    return result


def evaluate(
    policy: Policy,
    sampler: Sampling,
    plan: Plan,
    questions: Mapping[str, Sequence[Question]],
    tokens_max: int,
    temperature: float = 1.0,
    seed: int = 0,
    cancellation: Cancellation | None = None,
    batch_questions: int = BATCH_QUESTIONS,
    prompt_tokens: int = 0,
    tell: CountSink = lambda done, total: None,
) -> dict[str, Accuracy]:
    """One completion for each question; the seed fixes the draws.

    Args:
        temperature: 0 takes the likeliest tokens.
        batch_questions: drawn together.
        prompt_tokens: questions of more are left out, as in training; 0: all are asked.
        tell: how many of the questions are done, of how many.
    """
    generator = torch.Generator(policy.device).manual_seed(hash_number("evaluation", seed))
    turns = Turns(plan, policy, sampler, tokens_max, temperature)
    result = {}
    raised: BaseException | None = None
    done, total = 0, sum(map(len, questions.values()))
    for task, wanted in questions.items():
        marks: list[Score] = []
        encoded = [(question, policy.encode_prompt(question.messages)) for question in wanted]
        asked = [(question, prompt) for question, prompt in encoded if len(prompt) <= (prompt_tokens or len(prompt))]
        if len(asked) < len(encoded):
            log.info("held-out questions are too long", left_out=len(encoded) - len(asked), prompt_tokens=prompt_tokens)
        done += len(encoded) - len(asked)
        for start in range(0, len(asked), batch_questions):
            tell(done, total)
            batch = [question for question, _ in asked[start : start + batch_questions]]
            prompts = [prompt for _, prompt in asked[start : start + batch_questions]]
            drawn = turns.complete(batch, prompts, 1, generator, cancellation or Cancellation())
            for question, completion in zip(batch, drawn, strict=True):
                scores, failed = score_own(plan, question, [completion.text])
                marks += scores
                raised = raised or failed
            done += len(batch)
        if marks:
            correct = sum(mark.accuracy >= CORRECT_SCORE for mark in marks) / len(marks)
            result[task] = Accuracy(correct, sum(mark.format for mark in marks) / len(marks), len(marks))
    if raised is not None:
        warn_of(plan, raised, "scorers failed, answers to held-out questions count as wrong")
    return result


def mean_accuracy(result: Mapping[str, Accuracy]) -> float | None:
    """Mean over tasks, each counting the same; None without questions."""
    return sum(accuracy.correct for accuracy in result.values()) / len(result) if result else None


def estimate_noise(share: float, questions: int) -> float:
    """Standard deviation of the difference of two measurements of an accuracy, each with so many questions.

    Two right and two wrong answers more count than there were (Agresti and Coull), so that nobody is sure after few
    questions.
    """
    share = (share * questions + 2) / (questions + 4)
    return math.sqrt(2 * share * (1 - share) / (questions + 4))


class SkillRecord(msgspec.Struct, frozen=True):
    """What is known of one task: accuracies on its held-out questions."""

    latest: float
    mean: float  # exponential, over measurements
    best: float  # of the mean, sinking slowly
    questions: int  # in the latest measurement

    @property
    def noise(self) -> float:
        """Standard deviation of the difference between mean and best, from the number of questions alone.

        Mean and best are taken as independent, which they are not at first: that errs on the quiet side.
        """
        of_mean = FRESH / (2 - FRESH)  # variance of an exponential mean, as a share of one measurement's
        return math.sqrt(of_mean) * estimate_noise(self.best, self.questions)

    @property
    def gone(self) -> float:
        """The share of the best that is gone beyond what may be chance; 0 for a task that has not fallen."""
        fall = self.best - self.mean - DEVIATIONS * self.noise
        return fall / self.best if fall > 0 else 0.0

    @property
    def weight(self) -> float:
        """How often the task is drawn, as a multiple of one that has not fallen: from 1 to `WEIGHT_MAX`."""
        return 1 + (WEIGHT_MAX - 1) * min(self.gone / GONE_MOST, 1.0)


def measure_again(record: SkillRecord | None, found: Accuracy) -> SkillRecord:
    """The record of a task after one more measurement."""
    if record is None:
        return SkillRecord(found.correct, found.correct, found.correct, found.questions)
    mean = record.mean + FRESH * (found.correct - record.mean)
    best = max(mean, record.best - FORGOTTEN * (record.best - mean))
    return SkillRecord(found.correct, mean, best, found.questions)


class SkillGuard:
    """The records of one node, which its checkpoints hold."""

    def __init__(self) -> None:
        self.guarded = True  # whether tasks that have fallen are drawn more; they are followed and told all the same
        self.records: dict[str, SkillRecord] = {}  # by task

    def note(self, measured: Mapping[str, Accuracy]) -> None:
        """Take one more measurement, of the tasks that there are now; an empty one leaves all as it was."""
        if measured:
            self.records = {task: measure_again(self.records.get(task), found) for task, found in measured.items()}

    @property
    def weights(self) -> dict[str, float]:
        """Of the tasks that have fallen and are drawn more for it; all others have 1."""
        return {task: record.weight for task, record in self.records.items() if self.guarded and record.gone > 0}

    @property
    def best(self) -> dict[str, float]:
        """The best accuracy of each task, see `SkillRecord`."""
        return {task: record.best for task, record in self.records.items()}

    def tell(self) -> tuple[Skill, ...]:
        """The tasks as events have them, those that have fallen most first, `SKILLS_MAX` at most."""
        ordered = sorted(self.records.items(), key=lambda entry: -entry[1].gone)
        return tuple(
            Skill(
                *(task[:SKILL_NAME_MAX], record.latest, record.questions, record.best, record.gone > 0),
                round(record.weight, 2) if self.guarded else 1.0,
            )
            for task, record in ordered[:SKILLS_MAX]
        )

    def read(self) -> dict[str, Any]:
        """The records as plain values, for a checkpoint."""
        return {task: msgspec.structs.asdict(record) for task, record in self.records.items()}

    def load(self, records: Mapping[str, Any]) -> None:
        """Take up the records of a checkpoint."""
        self.records = {task: SkillRecord(**record) for task, record in records.items()}


def favour(questions: Iterator[Question], weights: Mapping[str, float], seed: int) -> Iterator[Question]:
    """The questions without some of them, so that a task's share is proportional to its weight; without weights, all.

    The seed decides what is passed over, so that all ranks pass over the same; `SKIPPED_MAX` in a row at most.
    """
    if not weights:
        yield from questions
        return
    random, most, skipped = Random(seed), max(weights.values()), 0
    for question in questions:
        if random.random() * most < weights.get(question.task, 1.0) or skipped == SKIPPED_MAX:
            skipped = 0
            yield question
        else:
            skipped += 1
