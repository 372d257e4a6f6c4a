"""The logs of a simulated swarm, as its nodes would have written them to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swarmd.core.events import NodeStarted
from swarmd.eventlog.store import EventLog
from swarmd.sim.node import SimNode
from swarmd.sim.profile import draw_profile
from swarmd.sim.world import World


def play(seed: int, **given: Any) -> World:
    """Play a swarm to its end, with fields of the profile as for `swarmd sim --set`."""
    world = World(seed, draw_profile(seed, **given))
    world.play()
    return world


def write_log(events: Path, node: SimNode) -> None:
    """The commits of a simulated node, each life in a segment of its own."""
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
        log.close()
