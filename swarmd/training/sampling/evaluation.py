"""Accuracy on held-out questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import torch

from swarmd.config import TrainingConfig
from swarmd.logger import get_logger
from swarmd.swarms.plan import Plan, Question, Score, hash_number, hold_out_questions
from swarmd.training.cancellation import Cancellation
from swarmd.training.models.model import Policy
from swarmd.training.plan_failures import score_own, warn_of
from swarmd.training.sampling.generation import Sampler
from swarmd.training.sampling.turns import SamplingLimits, Turns

CORRECT_SCORE = 0.99  # from here on an answer counts as correct: partial credit is no answer
BATCH_QUESTIONS = 128  # drawn together

log = get_logger(__name__)


class Accuracy(msgspec.Struct, frozen=True):
    """Shares of one task's questions, one completion each."""

    correct: float
    formatted: float
    questions: int


def measure_held_out(
    policy: Policy,
    sampler: Sampler,
    plan: Plan,
    training: TrainingConfig,
    batch_questions: int,
    cancellation: Cancellation,
) -> dict[str, Accuracy]:
    """Accuracy on the held-out questions by task, as many of each as the configuration says.

    Raises:
        Cancelled: it was cancelled meanwhile.
        SwarmError: the plan gave something else than questions.
    """
    questions = {task: hold_out_questions(plan, task, training.held_out_questions) for task in plan.tasks}
    result = evaluate(
        policy,
        sampler,
        plan,
        questions,
        training.completion_tokens,
        training.temperature,
        seed=training.seed,
        cancellation=cancellation,
        batch_questions=batch_questions,
        prompt_tokens=training.prompt_tokens,
    )
    cancellation.check()  # what a plan gives of a stage that was cancelled is not what it would give
    return result


def evaluate(
    policy: Policy,
    sampler: Sampler,
    plan: Plan,
    questions: Mapping[str, Sequence[Question]],
    tokens_max: int,
    temperature: float = 1.0,
    seed: int = 0,
    cancellation: Cancellation | None = None,
    batch_questions: int = BATCH_QUESTIONS,
    prompt_tokens: int | None = None,
) -> dict[str, Accuracy]:
    """One completion for each question; the seed fixes the draws.

    Args:
        temperature: 0 takes the likeliest tokens.
        batch_questions: drawn together.
        prompt_tokens: questions of more are left out, as in training; None: all are asked.
    """
    generator = torch.Generator(policy.device).manual_seed(hash_number("evaluation", seed))
    turns = Turns(plan, policy, sampler, SamplingLimits(tokens_max, temperature))
    result = {}
    raised: BaseException | None = None
    for task, wanted in questions.items():
        marks: list[Score] = []
        asked = encode_short(policy, wanted, prompt_tokens)
        for start in range(0, len(asked), batch_questions):
            batch = [question for question, _ in asked[start : start + batch_questions]]
            prompts = [prompt for _, prompt in asked[start : start + batch_questions]]
            drawn = turns.complete(batch, prompts, 1, generator, cancellation or Cancellation())
            for question, completion in zip(batch, drawn, strict=True):
                scores, failed = score_own(plan, question, [completion.text])
                marks += scores
                raised = raised or failed
        if marks:
            correct = sum(mark.accuracy >= CORRECT_SCORE for mark in marks) / len(marks)
            result[task] = Accuracy(correct, sum(mark.format for mark in marks) / len(marks), len(marks))
    if raised is not None:
        warn_of(plan, raised, "scorers failed, answers to held-out questions count as wrong")
    return result


def encode_short(
    policy: Policy, questions: Sequence[Question], prompt_tokens: int | None
) -> list[tuple[Question, list[int]]]:
    """The questions with their prompts, without those of more than so many tokens."""
    encoded = [(question, policy.encode_prompt(question.messages)) for question in questions]
    if prompt_tokens is None:
        return encoded
    short = [(question, prompt) for question, prompt in encoded if len(prompt) <= prompt_tokens]
    if len(short) < len(encoded):
        log.info("held-out questions are too long", left_out=len(encoded) - len(short), prompt_tokens=prompt_tokens)
    return short


def mean_accuracy(result: Mapping[str, Accuracy]) -> float | None:
    """Mean over tasks, each counting the same; None without questions."""
    return sum(accuracy.correct for accuracy in result.values()) / len(result) if result else None
