"""The simulator: events of a simulated swarm a second of processor time, every commit checked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.measure import Sample, sample
from bench.table import Row
from swarmd.sim.profile import BENCH
from swarmd.sim.world import RunSummary
from swarmd.sim.world import run_simulation as play

SEEDS = range(5)
CALM_HOURS = 6.0
RATE_GOAL = 60_000.0


def run(directory: Path) -> Iterable[Row]:
    runs = [play(seed, BENCH) for seed in SEEDS]
    rate = Sample(tuple(each.events_per_s for each in runs))
    yield Row("simulated events", "events/s", rate, "goal", goal=f">= {RATE_GOAL:,.0f}", met=rate.median >= RATE_GOAL)
    yield Row("replayed at restarts, on top", "events/s", Sample(tuple(each.replayed / each.cpu_s for each in runs)))
    yield Row("simulated node-hours", "h/s", Sample(tuple(map(node_hours, runs))))
    yield Row("events of a run", "events", sample(*(float(each.events) for each in runs)))


def node_hours(summary: RunSummary) -> float:
    """Node-hours simulated in a second of processor time."""
    return summary.profile.nodes * summary.profile.hours / summary.cpu_s
