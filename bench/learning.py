"""Does the embedded model learn? Nodes with the settings that are the default, and nothing else, over some rounds.

The figure is the accuracy on questions that nobody trains on, as a node measures it itself after each round, against
the same measure before the first step. One node by itself, then three that exchange what they publish; the seeds differ
in the swarm's id, and so in all questions and draws.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.measure import Sample, ratios, sample
from bench.sharing import deliver
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

ROUNDS = 8
SEEDS = (0, 1, 2)
SIZES = {"one node": 1, "three nodes": 3}
GOAL = 2.0  # times the accuracy before the first step


def run(directory: Path, seeds: Sequence[int] = SEEDS, rounds: int = ROUNDS) -> Iterable[Row]:
    """Rows by number of nodes and round, over seeds."""
    silence_libraries()
    for name, size in SIZES.items():
        runs = [learn(directory / f"{size}-{seed}", f"learning-{size}-{seed}", size, rounds) for seed in seeds]
        before = sample(*(accuracies[0] for accuracies in runs))
        yield Row(f"{name}: before the first step", "", before)
        for round in range(1, rounds + 1):
            after = sample(*(accuracies[round] for accuracies in runs))
            yield make_row(f"{name}: after round {round}", before, after, is_last=round == rounds)


def make_row(what: str, before: Sample, after: Sample, is_last: bool) -> Row:
    ratio = ratios(after, before)
    if not is_last:
        return Row(what, "", after, "before", before, ratio)
    return Row(what, "", after, "before", before, ratio, f">= {GOAL:g}x", ratio.low >= GOAL)


def learn(directory: Path, swarm: str, size: int, rounds: int) -> list[float]:
    """Mean held-out accuracy of the nodes before the first step and after each round; their data is removed."""
    nodes = []
    for place in range(size):
        training = TrainingConfig(device="cpu", threads=1)
        config = Config(SwarmConfig(id=swarm), training=training, storage=StorageConfig(free_bytes_min=0))
        paths = NodeDirectory(directory / f"node-{place}")
        engine = TrainingEngine(config, paths, f"node-{place}", make_plan(config.swarm, training))
        nodes.append((engine, BlobStore(paths.blobs)))
    accuracies: list[float] = []
    published: tuple[RolloutsRef, ...] = ()
    try:
        for round in range(rounds):
            order = Train(f"train/{round}/0", round, 0, published)
            events = [engine.train(order, Cancellation()) for engine, _ in nodes]
            if not round:
                accuracies.append(sum(event.held_out_before or 0.0 for event in events) / size)
            accuracies.append(sum(event.held_out or 0.0 for event in events) / size)
            published = tuple(event.rollouts for event in events)
            deliver(published, [store for _, store in nodes])
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return accuracies
