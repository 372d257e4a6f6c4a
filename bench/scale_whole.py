"""What a round costs whole nodes: daemons with their network worker and p2pd, and a trainer without a model.

`bench.scale_worker` counts in each network worker, as for the workers alone in `bench.scale`; what took how long the
nodes' logs say.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from bench.nodes import history_of
from bench.scale_model import Settings
from bench.scale_rows import Outcome
from bench.scale_worker import read_counts
from swarmd.cli.local_swarm import DaemonProcess, LocalNode, LocalSwarm
from swarmd.core.events import Envelope, RolloutsGathered, RoundAnnounced, StageTrained
from swarmd.eventlog.blobs import BlobStore
from tests.daemon.scripted_trainer import STEP_S

E = TypeVar("E", bound=Any)

WARM = 7  # rounds at the begin that do not count: for a minute a node that has just registered reads memberships often
STEPS = 100
TRAIN_S = STEPS * STEP_S
ROUND_S = 60.0  # a round lasts so long at most
READY_S = 300.0
SETTINGS = {
    "training.steps": STEPS,
    "training.questions": 16,
    "training.generations": 8,
    "training.held_out_questions": 0,
    "coordinator.stage_s": ROUND_S,
    "coordinator.start_s": READY_S,
    "logs.level": "info",
}


class CountingDaemon(DaemonProcess):
    """A daemon whose network worker counts."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.scale_node", str(self.place.config), str(self.place.root)]


class Measured(NamedTuple):
    """What was counted of whole nodes, and the mean size of their bodies, as they are and packed."""

    outcome: Outcome
    body_bytes: float
    packed_bytes: float

    def settings(self) -> Settings:
        """Of the model of these nodes, on a machine with nothing else to do."""
        train_s = (TRAIN_S, TRAIN_S * 1.05)
        return Settings(train_s=train_s, body_bytes=round(self.body_bytes), packed_bytes=round(self.packed_bytes))


def play(directory: Path, size: int, rounds: int) -> Measured:
    """Run so many nodes for so many rounds beyond those that do not count. Raises LocalSwarmFailed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    swarm = LocalSwarm(directory, size)
    swarm.daemons = tuple(CountingDaemon(place) for place in swarm.places)
    total = swarm.prepare_nodes(rounds + WARM + 1, SETTINGS)  # a round's counts end where the next one begins
    try:
        swarm.start()
        longest_s = READY_S + total * ROUND_S
        swarm.wait_until(
            lambda: bool(swarm.rows()) and all(swarm.are_rounds_over), longest_s, "the rounds to be over", 1.0
        )
    finally:
        swarm.stop()
    return measured(swarm.places, range(WARM, WARM + rounds))


def measured(places: Sequence[LocalNode], rounds: range) -> Measured:
    """What the nodes, the coordinator first, have counted and logged of these rounds."""
    outcome = Outcome()
    counts = [read_counts(place.network) for place in places]
    for round in rounds:
        outcome.add_counts([each[round] for each in counts])
    histories = [history_of(place.events) for place in places]
    opened = opened_at(histories[0])
    for round in rounds:
        outcome.add("seconds", opened[round + 1] - opened[round])
    bodies: list[bytes] = []
    for place, history in zip(places, histories, strict=True):
        take_history(outcome, history, rounds, len(places))
        blobs = BlobStore(place.blobs)
        bodies += [blobs.get(event.rollouts.digest) for event in of_rounds(history, StageTrained, rounds)]
    packed = [len(zlib.compress(body, 6)) for body in bodies]
    return Measured(outcome, fmean(map(len, bodies)), fmean(packed))


def opened_at(history: Sequence[Envelope]) -> dict[int, float]:
    """When each round was announced for the first time, POSIX seconds."""
    announced = [each.event for each in reversed(history) if isinstance(each.event, RoundAnnounced)]
    return {event.round: event.opened_at for event in announced}


def of_rounds(history: Sequence[Envelope], kind: type[E], rounds: range) -> list[E]:
    """The events of a kind that concern these rounds."""
    return [each.event for each in history if isinstance(each.event, kind) and each.event.round in rounds]


def take_history(outcome: Outcome, history: Sequence[Envelope], rounds: range, size: int) -> None:
    """Take what a node's log says of these rounds: when it heard of each, and whether it gathered from all others."""
    for round in rounds:
        heard = [each for each in history if isinstance(each.event, RoundAnnounced) and each.event.round == round]
        outcome.add("announced", heard[0].at - opened_at(history)[round])
    for event in of_rounds(history, RolloutsGathered, rounds):
        outcome.add("full", 100.0 * (len(event.rollouts) == size - 1))
