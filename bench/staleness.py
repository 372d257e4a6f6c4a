"""What does it cost to train on groups that peers wrote eight rounds ago?

Two nodes with the same base train alone for `DELAY` rounds and publish all that they generate. From there on each arm
goes on from the same checkpoints: half of every batch is groups that the other node wrote in the round before, or
`DELAY` rounds before; or the whole of it the node's own, just generated. All arms generate as much. Bases of both nodes
are equal, so peers have nothing to teach: what is left is staleness.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from bench.measure import sample
from bench.paired import SEEDS_MIN, interval
from bench.place import check_names
from bench.sharing import COMMON, deliver
from bench.skills import build_base
from bench.specialists import SECOND, SKILLS, Goal, examine, make_tasks
from bench.table import Row
from swarmd.config import Config, StorageConfig, SwarmConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.swarms.reasoning_gym import DigitsPlan
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.library_logging import silence_libraries

DELAY = 8
ROUNDS = 12  # after those that all arms have in common
MEASURED = 3  # last rounds, after each of which held-out accuracy is measured
HELD_OUT = 300  # questions of each skill
SEEDS = tuple(range(1, 9))
NODES = 2
TAUGHT = Goal(2e-3, 400, 0.4, 10)
GOAL = 0.01
ON_POLICY, FRESH = "own", "fresh"
ARMS: Mapping[str, tuple[int, Mapping[str, Any]]] = {  # rounds between writing and training; settings
    ON_POLICY: (1, {"peer_questions": 0}),
    FRESH: (1, {}),
    "stale": (DELAY, {}),
}
SETTINGS: Mapping[str, Any] = {
    **COMMON,
    "peer_questions": 4,
    "replay_questions": 0,
    "learning_rate": 5e-4,
    "staleness_rounds": DELAY,
}


class Outcome(msgspec.Struct, frozen=True):
    """What two nodes of one arm and seed came to."""

    arm: str
    seed: int
    before: float  # held-out accuracy of the nodes where the arms part
    held_out: float  # mean of the last measurements
    rounds: list[float]  # mean reward, by round
    peers: float  # share of completions in the batches that were the other node's
    tokens: int
    cpu_s: float


class Pair:
    """Both nodes of a run, without a network.

    Args:
        directory: of the nodes' data; what is there is gone on with.
        base: model of both.
        seed: names the swarm, and so decides all questions and draws.
        settings: of [training], beside `SETTINGS`.
        published: what was published in earlier rounds.
    """

    def __init__(
        self,
        directory: Path,
        base: Path,
        seed: int,
        settings: Mapping[str, Any],
        published: Sequence[tuple[RolloutsRef, ...]] = (),
    ) -> None:
        swarm = SwarmConfig(id=f"staleness-{seed}", tasks=make_tasks(SECOND))
        training = TrainingConfig(**{**SETTINGS, **settings, "model": str(base)})
        config = Config(swarm, training=training, storage=StorageConfig(free_bytes_min=0))
        self._plan = DigitsPlan(swarm, training)
        places = [NodeDirectory(directory / f"node-{place}") for place in range(NODES)]
        self._engines = [TrainingEngine(config, paths, paths.root.name, self._plan) for paths in places]
        self._stores = [BlobStore(paths.blobs) for paths in places]
        self.published = list(published)
        self._generations = training.generations
        self.batch_rows = training.steps * training.questions * training.generations  # of a node in a round
        self.peer_rows = 0  # completions of the other in batches
        self.tokens = 0

    def train(self, delay: int) -> float:
        """One round of both nodes with what was published `delay` rounds before; returns their mean reward."""
        round = len(self.published)
        given = self.published[-delay] if round >= delay else ()
        order = Train(f"train/{round}/0", round, 0, given)
        events = [engine.train(order, Cancellation()) for engine in self._engines]
        self.published.append(tuple(event.rollouts for event in events))
        deliver(self.published[-1], self._stores)
        self.peer_rows += sum(event.peer_groups for event in events) * self._generations
        self.tokens += sum(event.tokens for event in events)
        return fmean(event.reward for event in events)

    def measure(self) -> float:
        """Held-out accuracy over nodes and skills."""
        questions = {skill: self._plan.hold_out(skill, HELD_OUT) for skill in SKILLS}
        found = [examine(engine.policy, self._plan, questions) for engine in self._engines]
        return fmean(each[skill].correct for each in found for skill in SKILLS)


def run(
    directory: Path,
    arms: Sequence[str] = tuple(ARMS),
    seeds: Sequence[int] = SEEDS,
    rounds: int = ROUNDS,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    known: Sequence[Outcome] = (),
    delay: int = DELAY,
    taught: Goal = TAUGHT,
) -> Iterable[Row]:
    """Rows of each arm, then what each has less than both that train on what is new.

    Args:
        directory: of the nodes' data; the bases are kept beside it.
        arms: of `ARMS`.
        seeds: each with a base and questions of its own.
        rounds: after those that all arms have in common.
        tell: is given every outcome as it comes.
        known: outcomes of an earlier run, which are not run again.
        delay: rounds that all arms have in common.
        taught: how well a base knows what it is asked.
    """
    check_names("arm", arms, ARMS)
    silence_libraries()
    there = {(outcome.arm, outcome.seed, len(outcome.rounds)): outcome for outcome in known}
    found: dict[str, list[Outcome]] = {arm: [] for arm in arms}
    for seed in seeds:
        missing = [arm for arm in arms if (arm, seed, rounds) not in there]
        base = build_base(directory.parent / "staleness-bases" / str(seed), seed, taught, SKILLS)
        for outcome in part(directory / str(seed), base, missing, seed, rounds, delay):
            there[outcome.arm, seed, rounds] = outcome
            tell(outcome)
        for arm in arms:
            found[arm].append(there[arm, seed, rounds])
    yield from make_rows(found)


def part(directory: Path, base: Path, arms: Sequence[str], seed: int, rounds: int, delay: int) -> Iterable[Outcome]:
    """The rounds that the arms have in common, then each arm from there; their data is removed."""
    if not arms:
        return
    common = Pair(directory / "common", base, seed, ARMS[ON_POLICY][1])
    for _ in range(delay):
        common.train(delay + 1)
    before = common.measure()
    for arm in arms:
        place = directory / arm.replace(" ", "-")
        shutil.copytree(directory / "common", place)
        yield go_on(place, base, arm, seed, rounds, common.published, before)
        shutil.rmtree(place)
    shutil.rmtree(directory)


def go_on(
    directory: Path,
    base: Path,
    arm: str,
    seed: int,
    rounds: int,
    published: Sequence[tuple[RolloutsRef, ...]],
    before: float,
) -> Outcome:
    """One arm, from where all part."""
    began = time.process_time()
    delay, settings = ARMS[arm]
    pair = Pair(directory, base, seed, settings, published)
    rewards, measured = [], []
    for round in range(rounds):
        rewards.append(pair.train(min(delay, len(published))))
        if round >= rounds - MEASURED:
            measured.append(pair.measure())
    batch = rounds * NODES * pair.batch_rows
    return Outcome(
        arm,
        seed,
        before,
        fmean(measured),
        rewards,
        pair.peer_rows / batch,
        pair.tokens,
        time.process_time() - began,
    )


def make_rows(found: Mapping[str, Sequence[Outcome]]) -> Iterable[Row]:
    """The figures of each arm over seeds, and its distance from those that are on policy."""
    for arm, outcomes in found.items():
        before, held_out = sample(*(o.before for o in outcomes)), sample(*(o.held_out for o in outcomes))
        yield Row(f"{arm}: held-out accuracy", "", held_out, "where the arms part", before)
        yield Row(f"{arm}: mean reward", "", sample(*(fmean(outcome.rounds) for outcome in outcomes)))
        yield Row(f"{arm}: share of batches from the peer", "", sample(*(outcome.peers for outcome in outcomes)))
        yield Row(f"{arm}: processor time", "s", sample(*(outcome.cpu_s for outcome in outcomes)))
    for reference in (ON_POLICY, FRESH):
        if reference in found:
            yield from compare(reference, found)


def compare(reference: str, found: Mapping[str, Sequence[Outcome]]) -> Iterable[Row]:
    """How far each stale arm stays below another; met where all of the interval is within the goal."""
    theirs = [outcome.held_out for outcome in found[reference]]
    for arm, outcomes in found.items():
        if ARMS[arm][0] == DELAY:
            below = interval(theirs, [outcome.held_out for outcome in outcomes])
            what = f"{arm}: held-out below {reference}"
            met = below.high <= GOAL if len(outcomes) >= SEEDS_MIN else None
            yield Row(what, "", below, goal=f"<= {GOAL}, of {SEEDS_MIN} seeds or more", met=met)
