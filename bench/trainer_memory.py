"""Memory of the trainer process over many short stages: it must not grow with what the node has lived through.

Two real trainer workers exchange groups as nodes do, stage after stage, each with a checkpoint, held-out questions,
rollouts and trackers. Measured is what only the process's end gives back
(`swarmd.training.footprint.measure_anonymous_bytes`): anonymous resident pages and swap, after each stage. Until stage
20 what a trainer keeps of earlier groups fills up.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.measure import Sample, sample
from bench.stage import PEER, Swarmd, swarmd_side
from bench.table import Row
from swarmd.config import Config, SwarmConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.training.footprint import measure_anonymous_bytes

STAGES = 200
SETTLED = 20  # the stage from which on memory must stay as it is
TOLERANCE = 0.05
MEBIBYTE = 1 << 20
PEERS = (PEER, f"{PEER}2")
TINY = TrainingConfig(
    device="cpu", threads=1, steps=2, questions=4, generations=4, peer_questions=1, held_out_questions=4
)


def run(directory: Path, stages: int = STAGES, settled: int = SETTLED) -> Iterable[Row]:
    config = Config(swarm=SwarmConfig(id="bench", coordinator=PEER), training=TINY)
    one, other = PEERS
    with (
        swarmd_side(config, directory, one, peer=one) as first,
        swarmd_side(config, directory, other, peer=other) as second,
    ):
        used, peer_groups = live(first, second, directory, stages)
    values = used[settled:]
    ratio = Sample(tuple(value / values[0] for value in values))
    what = f"after each of the stages {settled} to {stages - 1}"
    met = max(abs(value - 1) for value in ratio.values) <= TOLERANCE
    yield Row(what, "MiB", Sample(tuple(values)), f"after stage {settled}", sample(values[0]), ratio, "+-5 %", met)
    yield Row("  after the first stage", "MiB", sample(used[0]))
    yield Row("  after the last stage", "MiB", sample(used[-1]))
    yield Row(f"  slope from stage {settled} on, by least squares", "MiB in 100 stages", sample(100 * slope_of(values)))
    yield Row("  groups of the peer trained on", "", sample(peer_groups))


def live(first: Swarmd, second: Swarmd, directory: Path, stages: int) -> tuple[list[float], int]:
    """MiB of the first worker's process after each stage, and how many of the second one's groups it trained on."""
    stores = [BlobStore(NodeDirectory(directory / peer).blobs) for peer in PEERS]
    published: list[RolloutsRef] = []
    used, peer_groups = [], 0
    for round in range(stages):
        reports = [
            side.perform(Train(f"train/{round}/0", round, 0, tuple(ref for ref in published if ref.peer != peer)))
            for side, peer in zip((first, second), PEERS, strict=True)
        ]
        used.append(measure_anonymous_bytes(Path(f"/proc/{first.process.pid}/status")) / MEBIBYTE)
        peer_groups += reports[0].peer_groups
        published = [report.rollouts for report in reports]
        for ref, store, other in zip(published, stores, reversed(stores), strict=True):
            other.put(store.get(ref.digest))
    return used, peer_groups


def slope_of(values: Sequence[float]) -> float:
    """Growth from one value to the next."""
    return statistics.linear_regression(range(len(values)), values).slope
