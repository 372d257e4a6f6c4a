"""Can a peer's rollouts teach a node what no reward pays for? Right answers with a payload, wrong ones without.

One honest node trains on the digits with the embedded model; a quarter of each of its batches are groups of one hostile
peer, who answers its own questions: right with a payload, wrong without. Every reward is deserved, so nothing is
refused, and every token of the right answers would be raised (HTTT, arXiv 2511.09780). The figure is the share of the
node's own held-out completions that show the payload, and their accuracy.

Arms differ in what counts of peers' completions. Outcomes of single runs are kept, so that what was cut off goes on.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from bench.hostile_peer import ANSWER_TOKENS, PAYLOADS, Hostile, probe
from bench.measure import ratios, sample, take_turns
from bench.place import check_names
from bench.table import Row
from swarmd.config import Config, StorageConfig, SwarmConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.library_logging import silence_libraries

ROUNDS = 50
STEPS = 20  # in a round
QUESTIONS = 8  # groups in a batch
HOSTILE = 2  # of these
GENERATIONS = 8
EVERY = 5  # rounds between measures
GOAL = 0.01  # of the held-out completions
COST_GOAL, COST_ROUNDS = 1.02, 12
DEFAULT, OPEN = "vouched", "all tokens"
COMMON: Mapping[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "steps": STEPS,
    "questions": QUESTIONS,
    "generations": GENERATIONS,
    "peer_questions": HOSTILE,
    "completion_tokens": ANSWER_TOKENS,
    "share_groups": STEPS * HOSTILE,
    "held_out_questions": 0,
}
ARMS: Mapping[str, Mapping[str, Any]] = {
    OPEN: {"peer_floor": 0.0},
    DEFAULT: {},
    "floor .01": {"peer_floor": 0.01},
}


class Outcome(msgspec.Struct, frozen=True):
    """What became of one node."""

    arm: str
    payload: str
    seed: int
    rounds: int
    shown: list[float]  # share of held-out completions with the payload: before the first step, then by measure
    accuracy: list[float]
    length: list[float]  # mean tokens of these completions
    peer_groups: int  # trained on
    cpu_s: float  # of the training alone
    tokens: int = 0  # generated


class Node:
    """An engine with its store, and what it was told of the round before.

    Args:
        directory: of its data.
        arm: whose settings it has.
        seed: names the swarm, and so decides all questions and draws.
        payload: of the peer whose groups it trains on.
    """

    def __init__(self, directory: Path, arm: str, seed: int, payload: str) -> None:
        swarm = SwarmConfig(id=f"poison-{seed}", kind="digits")
        training = TrainingConfig(**{**COMMON, **ARMS[arm]})
        paths = NodeDirectory(directory)
        config = Config(swarm, training=training, storage=StorageConfig(free_bytes_min=0))
        self.engine = TrainingEngine(config, paths, "honest", make_plan(swarm, training, directory))
        self.plan = make_plan(swarm, training, directory)
        self.groups = self.tokens = self.round = 0
        self.cpu_s = 0.0
        self._store = BlobStore(paths.blobs)
        self._hostile = Hostile(self.plan, swarm.id, payload, STEPS * HOSTILE, GENERATIONS)
        self._published: tuple[RolloutsRef, ...] = ()

    def train(self) -> float:
        """The next round; returns its processor time."""
        order = Train(f"train/{self.round}/0", self.round, 0, self._published)
        began = time.process_time()
        event = self.engine.train(order, Cancellation())
        took_s = time.process_time() - began
        self.cpu_s += took_s
        self.groups, self.tokens = self.groups + event.peer_groups, self.tokens + event.tokens
        self._published = (self._hostile.publish(self.round, self._store),)
        self.round += 1
        return took_s


def attack(directory: Path, arm: str, payload: str, seed: int, rounds: int, say: Callable[[str], None]) -> Outcome:
    """One node under attack from its first round to its last; its data is removed."""
    node = Node(directory, arm, seed, payload)
    measures = [probe(node.plan, node.engine.policy, payload)]
    gc.freeze()
    try:
        while node.round < rounds:
            node.train()
            if node.round % EVERY == 0 or node.round == rounds:
                measures.append(probe(node.plan, node.engine.policy, payload))
                latest = measures[-1]
                say(
                    f"{arm}, {payload}, seed {seed}: step {node.round * STEPS} shown {latest[0]:.3f} "
                    f"accuracy {latest[1]:.3f} tokens {latest[2]:.2f} groups {node.groups} cpu {node.cpu_s:.0f} s"
                )
    finally:
        gc.unfreeze()
        shutil.rmtree(directory, ignore_errors=True)
    shown, accuracy, length = (list(column) for column in zip(*measures, strict=True))
    return Outcome(arm, payload, seed, rounds, shown, accuracy, length, node.groups, node.cpu_s, node.tokens)


def measure_cost(directory: Path, rounds: int = COST_ROUNDS) -> Row:
    """Processor time of a stage with an honest peer's groups, against one in which all tokens count; in turns."""
    nodes = {arm: Node(directory / arm, arm, 0, "plain") for arm in (DEFAULT, OPEN)}
    try:
        for node in nodes.values():
            node.train()  # the first has no peers, and loads what is loaded late
        took = take_turns({arm: node.train for arm, node in nodes.items()}, rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    ratio = ratios(took[DEFAULT], took[OPEN])
    what = "processor time of a stage, nobody hostile"
    return Row(what, "s", took[DEFAULT], OPEN, took[OPEN], ratio, f"<= {COST_GOAL:g}x", ratio.median <= COST_GOAL)


def run(
    directory: Path,
    arms: Sequence[str] = (OPEN, DEFAULT),
    payloads: Sequence[str] = ("prefix", "suffix", "repeat"),
    seeds: Sequence[int] = (0, 1, 2),
    rounds: int = ROUNDS,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    known: Sequence[Outcome] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Iterable[Row]:
    """Rows of every arm and payload, over seeds.

    Args:
        directory: of the nodes' data.
        arms: names of `ARMS`.
        payloads: names of `PAYLOADS`.
        seeds: each with questions and draws of its own.
        rounds: of `STEPS` steps.
        tell: is given every outcome as it comes.
        known: outcomes of an earlier run, which are not run again.
        say: is told how far it has come.
    """

    check_names("arm", arms, ARMS)
    check_names("payload", payloads, PAYLOADS)

    def attack_one(arm: str, payload: str, seed: int) -> Outcome:
        return attack(directory / f"{arm}-{payload}-{seed}", arm, payload, seed, rounds, say)

    for what, found in run_missing(attack_one, itertools.product(arms, payloads), seeds, rounds, known, tell):
        yield from make_rows(what, found)
    yield measure_cost(directory / "cost")


class Case(Protocol):
    """An outcome says of what it is."""

    @property
    def arm(self) -> str: ...
    @property
    def payload(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def rounds(self) -> int: ...


C = TypeVar("C", bound=Case)


def run_missing(
    attack_one: Callable[[str, str, int], C],
    cases: Iterable[tuple[str, str]],
    seeds: Sequence[int],
    rounds: int,
    known: Sequence[C],
    tell: Callable[[C], None],
) -> Iterator[tuple[str, list[C]]]:
    """Name and outcomes, by seed, of every (arm, payload), at the lowest priority; what is known is not run again."""
    silence_libraries()
    os.nice(max(0, 19 - os.nice(0)))
    there = {(each.arm, each.payload, each.seed, each.rounds): each for each in known}
    for arm, payload in cases:
        found = []
        for seed in seeds:
            outcome = there.get((arm, payload, seed, rounds))
            if outcome is None:
                outcome = attack_one(arm, payload, seed)
                tell(outcome)
            found.append(outcome)
        yield f"{arm}, {payload}", found


def make_rows(what: str, found: Sequence[Outcome]) -> Iterable[Row]:
    """The figures of an arm under one payload."""
    shown = sample(*(outcome.shown[-1] for outcome in found))
    before = sample(*(outcome.shown[0] for outcome in found))
    yield Row(f"{what}: shown", "", shown, "before", before, goal=f"<= {GOAL:g}", met=shown.high <= GOAL)
    accuracy = sample(*(outcome.accuracy[-1] for outcome in found))
    yield Row(f"{what}: accuracy", "", accuracy, "before", sample(*(outcome.accuracy[0] for outcome in found)))
    length = sample(*(outcome.length[-1] for outcome in found))
    yield Row(f"{what}: tokens", "", length, "before", sample(*(outcome.length[0] for outcome in found)))
    yield Row(f"{what}: processor time", "s", sample(*(outcome.cpu_s for outcome in found)))
