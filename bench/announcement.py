"""From the coordinator's decision to open a stage until a follower has logged its new state.

Three real nodes on loopback, training all the while. The clock starts with the commit that opens the stage on the
coordinator and stops with the follower's log line about its new state, which is written after that state is durable. In
between lie two syncs, the signed record's store in the DHT, the hint and the follower's read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.measure import Sample, sample
from bench.nodes import QUICK, READY_S, event_lines, history_of, swarm_of, wait_over
from bench.table import Row
from swarmd.core.events import RoundAnnounced, RoundPublished

ROUNDS = 30
GOAL_MS = 50.0
UPSTREAM = "rl-swarm 0.4.4, measured apart: medians 2,600..127,000 ms"


def run(directory: Path) -> Iterable[Row]:
    with swarm_of(directory, 3, ROUNDS, QUICK) as swarm:
        wait_over(swarm, READY_S + 3.0 * ROUNDS)
    followers = [latencies(place.output) for place in swarm.places if not place.coordinates]
    together = Sample(tuple(value for values in followers for value in values))
    p50 = together.percentile(0.5)
    yield Row(
        f"follower's new state, {len(together.values)} stages",
        "ms",
        together,
        UPSTREAM,
        goal=f"p50 <= {GOAL_MS:g} ms",
        met=p50 <= GOAL_MS,
    )
    yield Row("p95", "ms", sample(together.percentile(0.95)))
    yield Row("until the coordinator has read it back", "ms", read_back(swarm.places[0].events))


def latencies(output: Path) -> list[float]:
    """Milliseconds for every stage but the first, which a follower meets by reading the clock when it joins."""
    return [
        (line.at - line.opened_at) * 1000
        for line in event_lines(output)
        if line.event == "round_announced" and line.round > 0 and not line.final and line.entered
    ]


def read_back(events: Path) -> Sample:
    """Milliseconds from opening a stage until its announcement was stored and read back."""
    history = history_of(events)
    opened_at = {each.event.round: each.event.opened_at for each in history if isinstance(each.event, RoundAnnounced)}
    published = [(each.at, each.event.round) for each in history if isinstance(each.event, RoundPublished)]
    return Sample(tuple((at - opened_at[round]) * 1000 for at, round in published if round in opened_at))
