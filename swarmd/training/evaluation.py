"""Accuracy on held-out questions, and the guard against losing skills.

Tasks whose held-out accuracy has fallen are drawn more often until they recover. A measured accuracy p over n questions
has the variance p(1-p)/n. Each task has an exponential mean of its measurements, and the best value of that mean. The
task has fallen if the mean is below the best by more than `DEVIATIONS` standard deviations of their difference; its
weight then grows with the lost share of the best, up to `WEIGHT_MAX`. The best decays slowly towards the mean, so that
a skill that does not come back finally stops taking slots.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import torch

from swarmd.config import TrainingConfig
from swarmd.core.values import SKILL_NAME_MAX, SKILLS_MAX, Skill
from swarmd.logger import get_logger
from swarmd.swarms.plan import CORRECT, Plan, Question, Score, hash_number, hold_out_questions
from swarmd.training.cancellation import Cancellation
from swarmd.training.models.model import Policy
from swarmd.training.plan_failures import warn_of_failure
from swarmd.training.progress import CountSink
from swarmd.training.sampling import BaseSampler
from swarmd.training.turns import complete_prompts, make_turn_sampler, score_drawn

BATCH_QUESTIONS = 128  # answered together
FRESH = 0.5  # weight of the newest measurement in the mean
FORGOTTEN = 0.02  # share of the way that the best moves to the mean at each measurement: half-way after 34
DEVIATIONS = 2.5  # standard deviations of the difference beyond which a task has fallen
WEIGHT_MAX = 3.0  # largest weight of a fallen task
GONE_MOST = 0.5  # lost share of the best, beyond chance, at which the weight is largest
SKIPPED_MAX = 64  # questions skipped in a row in favour of fallen tasks

log = get_logger(__name__)


class Accuracy(msgspec.Struct, frozen=True):
    """Accuracy on one task's questions, with one completion for each."""

    correct: float
    formatted: float
    questions: int


def measure_held_out(
    policy: Policy,
    sampler: BaseSampler,
    plan: Plan,
    training: TrainingConfig,
    batch_questions: int,
    cancellation: Cancellation,
    tell: CountSink = lambda done, total: None,
) -> dict[str, Accuracy]:
    """Measure accuracy on the held-out questions by task, as many of each as configured. Raises Cancelled: the stage
    was cancelled; SwarmError: the plan returned something other than questions."""
    questions = {task: hold_out_questions(plan, task, training.held_out_questions) for task in plan.tasks}
    result = evaluate(
        *(policy, sampler, plan, questions, training.completion_tokens, training.temperature, training.seed),
        cancellation=cancellation,
        batch_questions=batch_questions,
        prompt_tokens=training.prompt_tokens,
        tell=tell,
    )
    cancellation.raise_if_requested()  # a plan may return anything in a cancelled stage
    return result


def evaluate(
    policy: Policy,
    sampler: BaseSampler,
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
    """Measure accuracy by task with one completion for each question; the seed fixes the draws.

    Args:
        temperature: 0 takes the likeliest tokens.
        batch_questions: number of questions answered together.
        prompt_tokens: longer questions are left out, as in training; 0: all are asked.
        tell: called with the number of questions done, and of all.
    """
    generator = torch.Generator(policy.device).manual_seed(hash_number("evaluation", seed))
    turns = make_turn_sampler(plan, policy, sampler, tokens_max, temperature)
    result = {}
    raised: BaseException | None = None
    done, total = 0, sum(map(len, questions.values()))
    for task, wanted in questions.items():
        marks: list[Score] = []
        encoded = [(question, policy.encode_prompt(question.messages)) for question in complete_prompts(plan, wanted)]
        asked = [(question, prompt) for question, prompt in encoded if len(prompt) <= (prompt_tokens or len(prompt))]
        if len(asked) < len(encoded):
            log.info("held-out questions are too long", left_out=len(encoded) - len(asked), prompt_tokens=prompt_tokens)
        done += len(encoded) - len(asked)
        for start in range(0, len(asked), batch_questions):
            tell(done, total)
            batch = [question for question, _ in asked[start : start + batch_questions]]
            prompts = [prompt for _, prompt in asked[start : start + batch_questions]]
            drawn = turns.complete_questions(batch, prompts, 1, generator, cancellation or Cancellation())
            for question, completion in zip(batch, drawn, strict=True):
                scores, failed = score_drawn(plan, question, [completion])
                marks += scores
                raised = raised or failed
            done += len(batch)
        if marks:
            correct = sum(mark.accuracy >= CORRECT for mark in marks) / len(marks)
            result[task] = Accuracy(correct, sum(mark.format for mark in marks) / len(marks), len(marks))
    if raised is not None:
        warn_of_failure(plan, raised, "scorers failed, answers to held-out questions count as wrong")
    return result


def mean_accuracy(result: Mapping[str, Accuracy]) -> float | None:
    """Mean over tasks, weighted equally; None without questions."""
    return sum(accuracy.correct for accuracy in result.values()) / len(result) if result else None


def estimate_noise(share: float, questions: int) -> float:
    """Standard deviation of the difference between two measurements of an accuracy with `questions` questions each. Two
    right and two wrong answers are added (Agresti and Coull), so that few questions never give certainty."""
    share = (share * questions + 2) / (questions + 4)
    return math.sqrt(2 * share * (1 - share) / (questions + 4))


class SkillRecord(msgspec.Struct, frozen=True):
    """Accuracies on the held-out questions of one task."""

    latest: float
    mean: float  # exponential mean over measurements
    best: float  # best value of `mean`, decaying slowly
    questions: int  # in the latest measurement

    @property
    def noise(self) -> float:
        """Standard deviation of the difference between mean and best, from the number of questions alone. Treats mean
        and best as independent; while they are not, at first, that makes an alarm less likely."""
        of_mean = FRESH / (2 - FRESH)  # variance of an exponential mean, as a share of one measurement's
        return math.sqrt(of_mean) * estimate_noise(self.best, self.questions)

    @property
    def lost_share(self) -> float:
        """Lost share of the best, beyond chance; 0 for a task that has not fallen."""
        fall = self.best - self.mean - DEVIATIONS * self.noise
        return fall / self.best if fall > 0 else 0.0

    @property
    def sampling_weight(self) -> float:
        """How often the task is drawn, relative to a task that has not fallen: 1 to `WEIGHT_MAX`."""
        return 1 + (WEIGHT_MAX - 1) * min(self.lost_share / GONE_MOST, 1.0)


def update_record(record: SkillRecord | None, found: Accuracy) -> SkillRecord:
    """Update a task's record with one more measurement."""
    if record is None:
        return SkillRecord(found.correct, found.correct, found.correct, found.questions)
    mean = record.mean + FRESH * (found.correct - record.mean)
    best = max(mean, record.best - FORGOTTEN * (record.best - mean))
    return SkillRecord(found.correct, mean, best, found.questions)


class SkillGuard:
    """The skill records of one node; checkpoints hold them."""

    def __init__(self) -> None:
        self.guarded = True  # whether fallen tasks are drawn more often; they are reported in any case
        self.records: dict[str, SkillRecord] = {}  # by task

    def record_measurement(self, measured: Mapping[str, Accuracy]) -> None:
        """Record a measurement. Tasks that it lacks are forgotten; an empty one changes nothing."""
        if measured:
            self.records = {task: update_record(self.records.get(task), found) for task, found in measured.items()}

    @property
    def sampling_weights(self) -> dict[str, float]:
        """Weights of fallen tasks; all others have 1."""
        return {
            task: record.sampling_weight
            for task, record in self.records.items()
            if self.guarded and record.lost_share > 0
        }

    @property
    def best_accuracies(self) -> dict[str, float]:
        """The best accuracy of each task, as in `SkillRecord`."""
        return {task: record.best for task, record in self.records.items()}

    def list_skills(self) -> tuple[Skill, ...]:
        """The tasks for an event, those that have lost most first, at most `SKILLS_MAX`."""
        ordered = sorted(self.records.items(), key=lambda entry: -entry[1].lost_share)
        return tuple(
            Skill(
                *(task[:SKILL_NAME_MAX], record.latest, record.questions, record.best, record.lost_share > 0),
                round(record.sampling_weight, 2) if self.guarded else 1.0,
            )
            for task, record in ordered[:SKILLS_MAX]
        )

    def dump_records(self) -> dict[str, Any]:
        """The records as plain values, for a checkpoint."""
        return {task: msgspec.structs.asdict(record) for task, record in self.records.items()}

    def load_records(self, records: Mapping[str, Any]) -> None:
        """Load the records of a checkpoint."""
        self.records = {task: SkillRecord(**record) for task, record in records.items()}


def thin_by_weight(questions: Iterator[Question], weights: Mapping[str, float], seed: int) -> Iterator[Question]:
    """Skip some questions, so that each task's share is proportional to its weight; without weights none. The seed
    decides which, so that all ranks skip the same; at most `SKIPPED_MAX` in a row."""
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
