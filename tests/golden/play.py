"""The logs of a simulated swarm, as its nodes would have written them to disk."""

from pathlib import Path
from typing import Any

from swarmd.core.events import NodeStarted, NodeStopped, StopRequested
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.store import EventLog
from swarmd.sim.node import SimNode
from swarmd.sim.profile import draw_profile
from swarmd.sim.world import World
from tests.eventlog.making import write_planned

END = "signal SIGTERM"


def play(seed: int, **given: Any) -> World:
    """Play a swarm to its end, with fields of the profile as for `swarmd sim --set`."""
    world = World(seed, draw_profile(seed, **given))
    world.run_and_check()
    return world


def write_log(events: Path, node: SimNode) -> None:
    """The commits of a simulated node, each life in a segment of its own; it is stopped in order at the end."""
    log: EventLog | None = None
    for commit in node.disk.log.commits:
        first = commit.events[0]
        if isinstance(first, NodeStarted):
            if log is not None:
                log.close()
            log = EventLog.open(events, node.peer, first.run)
        assert log is not None, "a log begins with the start of a node"
        log.append(commit.at, commit.events, commit.commands_digest)
    if log is not None:
        _stop(log, node.disk.log.commits[-1].at)
        log.close()


def _stop(log: EventLog, at: float) -> None:
    state, _ = load_state(log.directory)
    for event in (StopRequested(END), NodeStopped(END)):
        if state.chart not in ("stopped", "failed"):
            state = write_planned(log, [event], state, at)
