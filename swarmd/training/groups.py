"""Groups to train on: this node's own, and those that peers published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

import msgspec

from swarmd.core.commands import Train
from swarmd.core.values import RolloutsRef
from swarmd.errors import RecordRejected, SwarmdError
from swarmd.swarms.plan import Plan, Question, Score
from swarmd.swarms.rollouts import Group, check_origin, decode_rollouts
from swarmd.training.cancellation import Cancellation
from swarmd.training.model import Policy

EXAMINED_MAX = 1024  # peers' groups generated again and scored in one stage
FLAT_RANGE = 1e-6  # a group whose rewards lie within this teaches nothing


class TrainingGroup(msgspec.Struct, frozen=True):
    """One question with its completions, ready for the trainer."""

    question: Question
    prompt: list[int]
    completions: list[list[int]]
    texts: list[str]
    rewards: list[float]
    scores: list[Score]

    @property
    def is_flat(self) -> bool:
        return max(self.rewards) - min(self.rewards) <= FLAT_RANGE


class Scorer:
    """Rewards of completions: accuracy plus a weight times format."""

    def __init__(self, plan: Plan, format_reward: float) -> None:
        self._plan = plan
        self._format_reward = format_reward
        self.failures: Counter[str] = Counter()  # tasks whose scorer raised

    def make_group(
        self, question: Question, prompt: list[int], completions: list[list[int]], texts: list[str], stage: int
    ) -> TrainingGroup:
        scores = [self._plan.score(question, text, stage) for text in texts]
        self.failures[question.task] += sum(score.failed for score in scores)
        rewards = [score.accuracy + self._format_reward * score.format for score in scores]
        return TrainingGroup(question, prompt, completions, texts, rewards, scores)


class PeerLimits(msgspec.Struct, frozen=True):
    """What is taken from peers."""

    swarm: str
    generations: int  # completions that a group must have
    groups_max: int  # of one peer in one stage
    staleness_rounds: int
    prompt_tokens: int
    completion_tokens: int


class PeerGroups:
    """Peers' groups of one stage: read, checked, generated again, scored, and dealt out once each."""

    def __init__(self, limits: PeerLimits, policy: Policy, plan: Plan, scorer: Scorer, own: str) -> None:
        self._limits = limits
        self._policy = policy
        self._plan = plan
        self._scorer = scorer
        self._own = own

    def collect(
        self, order: Train, read: Callable[[str], bytes], seed: int, cancellation: Cancellation
    ) -> tuple[list[TrainingGroup], Counter[str]]:
        """Informative groups in seeded random order, and how many were refused, by reason.

        Args:
            order: whose `rollouts` are read.
            read: the body under a digest; raises SwarmdError when it is missing or damaged.
        """
        rejected: Counter[str] = Counter()
        offers = list(self._offers(order, read, rejected))
        Random(seed).shuffle(offers)
        taken: Counter[str] = Counter()
        groups = []
        for ref, group in offers[:EXAMINED_MAX]:
            cancellation.check()
            if taken[ref.peer] >= self._limits.groups_max:
                continue
            try:
                regenerated = self._regenerate(ref, group)
            except RecordRejected as error:
                rejected[error.reason] += 1
                continue
            if not regenerated.is_flat:
                taken[ref.peer] += 1
                groups.append(regenerated)
        return groups, rejected

    def _offers(
        self, order: Train, read: Callable[[str], bytes], rejected: Counter[str]
    ) -> Iterator[tuple[RolloutsRef, Group]]:
        seen = set()
        for ref in order.rollouts:
            if ref.peer == self._own or ref.peer in seen:
                continue
            seen.add(ref.peer)
            try:
                self._check_age(ref, order)
                rollouts = decode_rollouts(read_body(ref, read))
                check_origin(rollouts, ref, self._limits.swarm)
            except RecordRejected as error:
                rejected[error.reason] += max(ref.groups, 1)
                continue
            yield from ((ref, group) for group in rollouts.groups)

    def _check_age(self, ref: RolloutsRef, order: Train) -> None:
        if (ref.round, ref.stage) >= (order.round, order.stage):
            raise RecordRejected("future", f"rollouts of round {ref.round} reached round {order.round}")
        if ref.round < order.round - self._limits.staleness_rounds:
            raise RecordRejected("stale", f"rollouts of round {ref.round} reached round {order.round}")

    def _regenerate(self, ref: RolloutsRef, group: Group) -> TrainingGroup:
        """The group under this node's own question, truth, rewards and tokens."""
        if len(group.completions) != self._limits.generations:
            raise RecordRejected("group-size", f"{ref.peer} sent a group of {len(group.completions)}")
        question = self._plan.regenerate(group.reference, ref.peer, ref.round, ref.stage)
        prompt = self._policy.encode_prompt(question.messages)
        if len(prompt) > self._limits.prompt_tokens:
            raise RecordRejected("prompt-length", f"a question of {ref.peer} has {len(prompt)} tokens here")
        limit = self._limits.completion_tokens
        tokens = [
            self._policy.encode_completion(text, index in group.cut, limit)
            for index, text in enumerate(group.completions)
        ]
        if not all(tokens):
            raise RecordRejected("empty", f"{ref.peer} sent an empty completion")
        texts = [  # what did not fit is scored as it is trained on
            text if ids[-1] == self._policy.tokenizer.eos_token_id else self._policy.decode_completion(ids)
            for text, ids in zip(group.completions, tokens, strict=True)
        ]
        return self._scorer.make_group(question, prompt, tokens, texts, ref.stage)


def read_body(ref: RolloutsRef, read: Callable[[str], bytes]) -> bytes:
    """The body a reference names. Raises RecordRejected(`missing`)."""
    try:
        return read(ref.digest)
    except RecordRejected:
        raise
    except SwarmdError as error:
        raise RecordRejected("missing", f"the rollouts of {ref.peer} are not here: {error}") from error


class Deal:
    """Hands out peers' groups over the steps of a stage, each at most once.

    Every step gets its even share, at most `share_max`; what is left beyond that may stand in for own groups that
    turned out flat.
    """

    def __init__(self, groups: Sequence[TrainingGroup], steps: int, share_max: int) -> None:
        self._left = list(groups)
        self._steps_left = steps
        self._share_max = share_max
        self.dealt = 0

    def next_share(self) -> list[TrainingGroup]:
        """The groups of the next step."""
        even = -(-len(self._left) // max(self._steps_left, 1))
        self._steps_left -= 1
        return self._take(min(even, self._share_max))

    def spare(self, wanted: int) -> list[TrainingGroup]:
        """Up to `wanted` groups that no later step's share needs."""
        return self._take(max(0, min(wanted, len(self._left) - self._steps_left * self._share_max)))

    def _take(self, count: int) -> list[TrainingGroup]:
        taken, self._left = self._left[:count], self._left[count:]
        self.dealt += len(taken)
        return taken
