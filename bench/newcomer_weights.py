"""How good a newcomer is after its first round, beside the swarm: it begins from the coordinator's weights.

Three nodes train the embedded model with the default recipe; a fourth comes when round 8 is open. All nodes are real.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

from bench.measure import Sample
from bench.table import Row
from swarmd.core.events import Event, StageTrained, WeightsAdopted, WeightsFetched
from tests.e2e.conftest import Swarm
from tests.hostile.campaign import events_of

NODES = 3
JOINS_AT = 8  # the round that is open when the fourth node starts
GOAL = 0.95
ROUND_S = 600.0  # longest
SETTINGS = {
    "coordinator.min_peers": NODES,
    "training.steps": 40,
    "training.questions": 16,
    "training.generations": 8,
    "training.peer_questions": 4,
    "training.held_out_questions": 64,
    "training.offer_weights_every": 1,
    "logs.level": "info",
}


def run(directory: Path, joins_at: int = JOINS_AT) -> Iterable[Row]:
    os.environ["OMP_NUM_THREADS"] = "1"
    swarm = Swarm(directory, NODES + 1, trained=range(1, NODES + 2))
    swarm.prepare(joins_at + 6, "", **(SETTINGS | {"training.catch_up": "weights"}))
    try:
        newcomer, ratio = join_late(swarm, joins_at)
    finally:
        swarm.stop()
    fetched = [event for event in newcomer if isinstance(event, WeightsFetched)]
    adopted = [event for event in newcomer if isinstance(event, WeightsAdopted)]
    first = next(event for event in newcomer if isinstance(event, StageTrained))
    row = "held-out accuracy of the newcomer after its first round / median of the others"
    yield Row(row, "", Sample((ratio,)), "goal", goal=f">= {GOAL}", met=ratio >= GOAL)
    yield Row("of the newcomer", "", Sample((first.held_out or 0.0,)))
    yield from (Row("of its own weights before", "", Sample((each.held_out_before,))) for each in adopted[:1])
    yield from (Row("of the coordinator's weights", "", Sample((each.held_out,))) for each in adopted[:1])
    yield from (Row("received", "bytes", Sample((float(each.received_bytes),))) for each in fetched[:1])
    yield from (Row("fetched in", "s", Sample((each.seconds,))) for each in fetched[:1])


def join_late(swarm: Swarm, joins_at: int) -> tuple[list[Event], float]:
    """Have the last node come when a round is open.

    Returns:
        What its log has after its first stage, and its accuracy over the median of the others' in that round.
    """
    for daemon in swarm.daemons[:-1]:
        daemon.start()
    swarm.wait_round(1, joins_at, ROUND_S * (joins_at + 1))
    swarm.daemons[-1].start()
    until = time.monotonic() + 3 * ROUND_S
    while not (stages := trained(events(swarm, len(swarm.places)))):
        assert time.monotonic() < until, "the newcomer has trained nothing"
        time.sleep(1.0)
    round, own = next(iter(stages.items()))
    others = range(1, len(swarm.places))
    while len(found := accuracies_in(round, swarm, others)) < len(others):
        assert time.monotonic() < until, f"the others have not trained round {round}"
        time.sleep(1.0)
    return events(swarm, len(swarm.places)), own / statistics.median(found)


def accuracies_in(round: int, swarm: Swarm, numbers: Iterable[int]) -> list[float]:
    """Held-out accuracies after a round, of those of these nodes that have trained it."""
    trained_here = [trained(events(swarm, number)) for number in numbers]
    return [accuracies[round] for accuracies in trained_here if round in accuracies]


def events(swarm: Swarm, number: int) -> list[Event]:
    """What a node's log has."""
    place = swarm.places[number - 1].events
    return [event for _, event in events_of(place)] if place.is_dir() else []


def trained(found: Iterable[Event]) -> dict[int, float]:
    """Held-out accuracy after each round."""
    stages = (event for event in found if isinstance(event, StageTrained))
    return {event.round: event.held_out for event in stages if event.held_out is not None}
