"""Write the logs of a simulated swarm as a swarm's directory, for `tests.golden.record`.

`python -m tests.golden.play SWARM_DIR SEED [KEY=VALUE ...]`, with fields of the profile as for `swarmd sim --set`. For
rules that a real swarm comes to only by luck: the cores are the real ones, and so is what writes the logs. Before you
record, take away the directories of nodes that show nothing new.
"""

from __future__ import annotations

import sys
from pathlib import Path

from swarmd.cli.sim import parse_fields
from swarmd.core.events import NodeStarted
from swarmd.eventlog.store import EventLog
from swarmd.sim.node import SimNode
from swarmd.sim.profile import draw_profile
from swarmd.sim.world import World


def play(swarm: Path, seed: int, given: list[str]) -> None:
    """Play the swarm to its end and write every node's log, each life as a segment of its own."""
    world = World(seed, draw_profile(seed, **parse_fields(given, None, None)))
    world.play()
    for node in world.nodes:
        write_log(swarm / f"node-{node.index + 1}" / "events", node)


def write_log(events: Path, node: SimNode) -> None:
    """The commits of a simulated node, as the real log writes them."""
    log: EventLog | None = None
    for commit in node.disk.log.commits:
        first = commit.events[0]
        if isinstance(first, NodeStarted):
            if log is not None:
                log.close()
            log = EventLog.open(events, node.peer, first.run)
        assert log is not None, "a log begins with the start of a node"
        log.append(commit.at, commit.events, commit.commands_digest, commit.rules)
    if log is not None:
        log.close()


if __name__ == "__main__":
    play(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
