"""Nodes that each know something the others do not: where the benchmark `sharing` begins.

A base learns four skills on digits under one phrasing, supervised, until it answers nearly all. Each of four nodes then
learns another phrasing of one skill, its own, from right answers; a share of the first phrasing keeps the base.
Reinforcement learning afterwards asks every node all four skills in the second phrasing. Training questions only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import msgspec
import torch

from swarmd.config import SwarmConfig, TaskConfig
from swarmd.swarms.plan import NO_MATERIAL, Plan, Question, StageId
from swarmd.swarms.reasoning_gym import DigitsPlan, ReasoningGymPlan
from swarmd.swarms.text import CLOSING, OPENING
from swarmd.training.embedded import (
    PromptAndTarget,
    build_tokenizer,
    list_training_questions,
    make_policy,
    take_supervised_step,
)
from swarmd.training.evaluation import Accuracy, evaluate, mean_accuracy
from swarmd.training.models.model import Policy
from swarmd.training.sampling import Sampler

FIRST = {
    "digits_reverse": "Reverse the digits: {number}",
    "digits_sort": "Sort the digits: {number}",
    "digits_increment": "Add 1 to every digit: {number}",
    "digits_rotate": "Rotate left: {number}",
}
SECOND = {
    "digits_reverse": "Write {number} backwards.",
    "digits_sort": "Put the digits of {number} in ascending order.",
    "digits_increment": "Shift each digit of {number} up by one.",
    "digits_rotate": "Move the first digit of {number} to the end.",
}
SKILLS = tuple(FIRST)
HIDDEN = 96
ANSWER_TOKENS = 8
PLAIN = f"{OPENING}{{}}{CLOSING}"  # how an answer is written
WORKED, WORKED_TOKENS = f"{{}} {PLAIN}", 14  # worked out in plain text before it stands in its tags
BATCH = 48
WARMUP_STEPS = 20
DEV_QUESTIONS = 64  # of each skill
BASE_RATE, BASE_STEPS_MAX, BASE_ACCURACY, BASE_EVERY = 2e-3, 500, 0.94, 20
OWN_RATE, OWN_STEPS_MAX, OWN_ACCURACY, OWN_EVERY = 5e-4, 160, 0.70, 5
FIRST_SHARE = 0.3  # of a specialist's lessons, in the first phrasing


class Goal(msgspec.Struct, frozen=True):
    """How fast and how long is taught."""

    rate: float
    steps_max: int
    accuracy: float  # on development questions, at which it ends
    every: int  # steps between looking
    tokens: int = ANSWER_TOKENS  # of a completion at most


def make_tasks(wordings: Mapping[str, str], *skills: str) -> tuple[TaskConfig, ...]:
    """The named skills, all without names, under a phrasing."""
    return tuple(TaskConfig(skill, config={"wording": wordings[skill]}) for skill in skills or SKILLS)


def make_plan(wordings: Mapping[str, str], *skills: str) -> DigitsPlan:
    return DigitsPlan(SwarmConfig(id="specialists", tasks=make_tasks(wordings, *skills)))


def build_specialists(
    directory: Path, seed: int, base_steps_max: int = BASE_STEPS_MAX, form: str = PLAIN
) -> list[Path]:
    """A model directory for each skill's specialist, all grown from one base; those that are there are kept.

    Args:
        form: what answers are written in, with {} in place of the answer.
    """
    paths = [directory / f"{seed}-{skill}" for skill in SKILLS]
    if all((path / "config.json").exists() for path in paths):
        return paths
    tokens = ANSWER_TOKENS if form == PLAIN else WORKED_TOKENS
    torch.manual_seed(seed)
    base = make_policy(build_tokenizer(list_training_questions(make_plan(FIRST), make_plan(SECOND))), HIDDEN)
    lessons = draw_lessons(base, [(make_plan(FIRST), 1.0)], seed, form)
    dev = make_plan(FIRST)
    teach(base, lessons, dev, Goal(BASE_RATE, base_steps_max, BASE_ACCURACY, BASE_EVERY, tokens))
    weights = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    for place, (skill, path) in enumerate(zip(SKILLS, paths, strict=True)):
        base.model.load_state_dict(weights)
        own = make_plan(SECOND, skill)
        mixture = [(own, 1 - FIRST_SHARE), (make_plan(FIRST), FIRST_SHARE)]
        goal = Goal(OWN_RATE, OWN_STEPS_MAX, OWN_ACCURACY, OWN_EVERY, tokens)
        teach(base, draw_lessons(base, mixture, seed * 10 + place, form), own, goal)
        base.tokenizer.save_pretrained(path)
        base.model.save_pretrained(path)
    return paths


def draw_lessons(
    policy: Policy, mixture: Sequence[tuple[Plan, float]], seed: int, form: str = PLAIN
) -> Iterator[list[PromptAndTarget]]:
    """Endless batches of training questions and right answers in their form, a share from each plan."""
    streams = [(plan.draw(StageId("specialists", seed, 0), NO_MATERIAL), share) for plan, share in mixture]
    random = Random(seed)
    while True:
        questions = [q for stream, share in streams for q in itertools.islice(stream, round(BATCH * share))]
        random.shuffle(questions)
        yield [pair_of(policy, question, form) for question in questions]


def pair_of(policy: Policy, question: Question, form: str) -> PromptAndTarget:
    """A question and its answer in its form, with the end token."""
    answer = form.replace("{}", str(question.entry["answer"]))
    ids = [*policy.tokenizer.encode(answer, add_special_tokens=False), policy.tokenizer.eos_token_id]
    return PromptAndTarget(policy.encode_prompt(question.messages), ids, [1] * len(ids))


def teach(policy: Policy, lessons: Iterator[list[PromptAndTarget]], plan: ReasoningGymPlan, goal: Goal) -> None:
    """Supervised steps until the accuracy on the plan's development questions is reached."""
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=goal.rate, betas=(0.9, 0.98), weight_decay=0.01)
    dev = {task: plan.select_questions(task, "dev", DEV_QUESTIONS) for task in plan.tasks}
    for step in range(1, goal.steps_max + 1):
        optimizer.param_groups[0]["lr"] = goal.rate * min(1.0, step / WARMUP_STEPS)
        take_supervised_step(policy, optimizer, next(lessons))
        if step % goal.every == 0:
            reached = mean_accuracy(examine(policy, plan, dev, goal.tokens)) or 0.0
            if reached >= goal.accuracy:
                return


def examine(
    policy: Policy, plan: Plan, questions: Mapping[str, Sequence[Question]], tokens: int = ANSWER_TOKENS
) -> dict[str, Accuracy]:
    """Accuracy on questions of each task, one sampled completion each."""
    return evaluate(policy, Sampler(policy), plan, questions, tokens)
