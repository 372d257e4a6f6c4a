"""Real nodes for a benchmark: laid out, started, stopped with nothing left behind, and read by their logs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.place import Unavailable
from swarmd.cli.local_swarm import DaemonProcess, LocalSwarm
from swarmd.core.events import Envelope
from swarmd.errors import SwarmdError
from swarmd.eventlog.reader import read_commits

QUICK = {  # a stage of about a second
    "training.steps": 1,
    "training.questions": 4,
    "training.generations": 4,
    "training.peer_questions": 2,
    "training.held_out_questions": 0,
}
READY_S = 120.0  # longest start of a swarm, on a busy machine
LOOK_S = 0.05


@contextmanager
def swarm_of(directory: Path, nodes: int, rounds: int, settings: dict[str, Any]) -> Iterator[LocalSwarm]:
    """A running swarm. Raises Unavailable with the end of a daemon's log when it does not do what it should."""
    os.environ["OMP_NUM_THREADS"] = "1"
    swarm = LocalSwarm(directory, nodes)
    swarm.prepare_nodes(rounds, settings | {"logs.format": "json", "logs.level": "info"})
    try:
        swarm.start()
        yield swarm
    except SwarmdError as error:
        tails = "\n".join("\n".join(daemon.last_output_lines(3)) for daemon in swarm.daemons)
        raise Unavailable(f"the nodes of this benchmark did not get on: {error}\n{tails}") from error
    finally:
        swarm.stop()


def wait_over(swarm: LocalSwarm, within_s: float) -> None:
    """Until every node has heard that the rounds are over. Raises LocalSwarmFailed."""
    swarm.wait_until(lambda: bool(swarm.rows()) and all(swarm.are_rounds_over), within_s, "the rounds to be over")


def history_of(events: Path) -> list[Envelope]:
    """All events of a node."""
    return [envelope for commit in read_commits(events) for envelope in commit.envelopes()]


class Line(msgspec.Struct, frozen=True):
    """A line of a daemon's log that reports an event; it is written after the event is durable and acted upon."""

    timestamp: datetime
    seq: int
    event: str
    round: int = -1
    opened_at: float = 0.0
    final: bool = False
    entered: str = ""  # the state that it led to, where the state changed

    @property
    def at(self) -> float:
        """POSIX seconds."""
        return self.timestamp.timestamp()


def event_lines(output: Path) -> list[Line]:
    """The lines of a daemon.log that report events."""
    lines = []
    for text in output.read_bytes().splitlines():
        try:
            lines.append(msgspec.json.decode(text, type=Line))
        except msgspec.DecodeError:
            continue  # of something else, or what a library printed
    return lines


def wait_for(daemon: DaemonProcess, wanted: Callable[[Line], bool], within_s: float = READY_S) -> Line:
    """The first line of a daemon's log that is wanted. Raises Unavailable when none comes."""
    until, never = time.monotonic() + within_s, threading.Event()
    while daemon.is_running and time.monotonic() < until:
        for line in event_lines(daemon.place.output):
            if wanted(line):
                return line
        never.wait(LOOK_S)
    tail = "\n".join(daemon.last_output_lines(3))
    raise Unavailable(f"{daemon.place.name} did not get there, see {daemon.place.output}:\n{tail}")
