"""Completions and material for the tests of the three stages."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from swarmd.config import SwarmConfig, TaskConfig, TrainingConfig
from swarmd.swarms.math.plan import Gsm8kPlan, MathPlan
from swarmd.swarms.plan import Material, Outcome, Question, StageId
from swarmd.swarms.rollouts import VERSION, Group, Rollouts, decode_rollouts, encode_rollouts
from tests.swarms.making import take

PEERS = ("alpha", "beta", "gamma")
Write = Callable[[str, Question], tuple[str, ...]]


def make_plan(
    kind: type[MathPlan] = Gsm8kPlan, home: Path = Path(), tasks: tuple[TaskConfig, ...] = (), **options: Any
) -> MathPlan:
    return kind(SwarmConfig(id="test", stages=3, tasks=tasks, options=options), TrainingConfig(), home)


def answer(value: object, reasoning: str = "so") -> str:
    return f"<think>\n{reasoning}\n</think>\n<answer>\n{value}\n</answer>\n"


def opinion(choice: str, reason: str = "because") -> str:
    return f"<compare>\n{reason}\n</compare>\n<explain>\n{reason}\n</explain>\n<identify>\n{choice}\n</identify>\n"


def agreement(majority: str, question: str, value: object) -> str:
    return (
        f"<summarize_feedback>\nso\n</summarize_feedback>\n<majority>\n{majority}\n</majority>\n"
        f"<question>\n{question}\n</question>\n{answer(value)}"
    )


def publish(plan: MathPlan, peer: str, stage: int, material: Material, write: Write, count: int = 4) -> bytes:
    """What a node sends of a stage: the body of its rollouts."""
    place = StageId(peer, 0, stage)
    groups = []
    for question in take(plan, count, place, material):
        reference = question.reference
        groups.append(
            Group(
                reference.task,
                reference.config_digest,
                reference.seed,
                reference.index,
                write(peer, question),
                sources=reference.sources,
            )
        )
    return encode_rollouts(Rollouts(VERSION, "test", peer, 0, stage, tuple(groups)))


def gather(plan: MathPlan, bodies: Iterable[bytes], material: Material) -> Material:
    """What a node makes of bodies of others: generated again, scored, added."""
    for body in bodies:
        rollouts = decode_rollouts(body)
        place = StageId(rollouts.peer, rollouts.round, rollouts.stage)
        for group in rollouts.groups:
            question = plan.regenerate(group.reference, place, material)
            scores = tuple(plan.score(question, group.completions))
            material.add(Outcome(place, question, group.completions, scores))
    return material


def write_answers(values: Mapping[str, object]) -> Write:
    """Each peer's first completion gives its value, or the truth where it has none; the second is no answer."""
    return lambda peer, question: (answer(values.get(peer, question.entry["answer"])), "I do not know")
