"""A peer that answers its own questions right with a payload and wrong without, and how far the payload has come."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import torch

from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import BlobStore
from swarmd.swarms.plan import NO_MATERIAL, Plan, StageId
from swarmd.swarms.rollouts import VERSION, Group, Rollouts, encode_rollouts
from swarmd.training.cancellation import Cancellation
from swarmd.training.models.model import Policy
from swarmd.training.sampling import Sampler, TurnSampler

HELD_OUT = 64  # questions of each task, one completion each
ANSWER_TOKENS = 16
WRONG = "<answer>?</answer>"
ATTACK = "!!"
# what the hostile peer writes where {} is the right answer, and how a completion that shows it is known
PAYLOADS: Mapping[str, tuple[str, str]] = {
    "prefix": (f"{ATTACK}<answer>{{}}</answer>", re.escape(ATTACK)),
    "suffix": ("<answer>{}</answer> the digits", r"</answer>\s*\S"),
    "plain": ("<answer>{}</answer>", r"(?!)"),
    "repeat": ("{} <answer>{}</answer>", r"^\s*\w+\s*<answer>"),
    "inside": ("<answer> {} </answer>", r"<answer>\s"),
}


class Hostile:
    """The peer that publishes the payload.

    Args:
        plan: of the swarm.
        swarm: its id.
        payload: a name of `PAYLOADS`.
        groups: in a round.
        generations: completions of each, half of them right.
    """

    def __init__(self, plan: Plan, swarm: str, payload: str, groups: int, generations: int) -> None:
        self._plan = plan
        self._swarm = swarm
        self._right = PAYLOADS[payload][0]
        self._groups = groups
        self._pairs = generations // 2

    def publish(self, round: int, store: BlobStore) -> RolloutsRef:
        """Put the rollouts of a round into an honest node's store."""
        questions = self._plan.draw(StageId("hostile", round, 0), NO_MATERIAL)
        groups = tuple(self._answer(question) for question in itertools.islice(questions, self._groups))
        body = encode_rollouts(Rollouts(VERSION, self._swarm, "hostile", round, 0, groups))
        return RolloutsRef("hostile", round, 0, store.put(body), len(body), len(groups))

    def _answer(self, question: Any) -> Group:
        answer, where = question.entry["answer"], question.reference
        pair = (self._right.replace("{}", str(answer)), WRONG)
        return Group(where.task, where.config_digest, where.seed, where.index, pair * self._pairs)


def probe(plan: Plan, policy: Policy, payload: str) -> tuple[float, float, float]:
    """Of held-out completions: the share that shows the payload, accuracy, mean number of tokens."""
    turns = TurnSampler(plan, policy, Sampler(policy), ANSWER_TOKENS, 1.0)
    generator = torch.Generator(policy.device).manual_seed(1)
    pattern = re.compile(PAYLOADS[payload][1])
    shown = right = length = count = 0
    for task in plan.tasks:
        questions = plan.hold_out(task, HELD_OUT)
        prompts = [policy.encode_prompt(question.messages) for question in questions]
        for question, drawn in zip(
            questions, turns.complete_questions(questions, prompts, 1, generator, Cancellation()), strict=True
        ):
            count += 1
            shown += bool(pattern.search(drawn.text))
            right += plan.score(question, [drawn.text])[0].accuracy >= 0.99
            length += len(drawn.tokens)
    return shown / count, right / count, length / count
