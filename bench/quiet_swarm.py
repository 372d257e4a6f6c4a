"""`python bench/quiet_swarm.py DIRECTORY NODES SECONDS`: what a quiet swarm's network uses, as JSON, one entry a node.

It runs whatever checkout comes first on the module path, also one of before, so it imports little of it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from swarmd.cli.local_swarm import DaemonProcess, LocalSwarm
from swarmd.dht.p2p.sockets import socket_directory

FAST = {
    "swarm.id": "test-swarm",
    "training.steps": 20,  # of a tenth of a second
    "training.questions": 4,
    "training.generations": 4,
    "training.peer_questions": 2,
    "training.held_out_questions": 0,
    "coordinator.stage_s": 15.0,
    "coordinator.start_s": 120.0,
    "dht.poll_s": 5.0,
    "logs.level": "info",
}
READY_S = 180.0
STARTED_ROUND = 3  # the network has found itself by then


class Quiet(msgspec.Struct, frozen=True):
    """What a node's network worker and p2pd use: of a core; of bytes that p2pd reads and writes in a round."""

    core_percent: float
    round_kib: float
    rounds_minute: float


class ScriptedDaemon(DaemonProcess):
    """A node whose trainer has no model."""

    @property
    def command(self) -> list[str]:
        runner = Path.cwd() / "tests/daemon/run_fake.py"
        return [sys.executable, str(runner), str(self.place.config), str(self.place.root), "real", "scripted"]


class Meter:
    """Counts of one node, at a moment."""

    def __init__(self, swarm: LocalSwarm, number: int) -> None:
        status = swarm.status(number)
        assert status is not None and status.network.worker.pid, f"node {number} does not answer"
        note = (socket_directory(swarm.places[number - 1].sockets) / "p2pd.json").read_bytes()
        p2pd = int(msgspec.json.decode(note)["pid"])
        self.at = time.monotonic()
        self.cpu_s = cpu_s(status.network.worker.pid) + cpu_s(p2pd)
        self.bytes = passed_bytes(p2pd)
        self.round = status.round.round

    def since(self, before: Meter) -> Quiet:
        """What was used between two moments."""
        took_s, rounds = self.at - before.at, max(1, self.round - before.round)
        percent = 100 * (self.cpu_s - before.cpu_s) / took_s
        return Quiet(percent, (self.bytes - before.bytes) / rounds / 1024, 60 * rounds / took_s)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def passed_bytes(pid: int) -> int:
    """Bytes that a process has read and written: p2pd's pass to and from peers, and to and from its worker."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines())
    return int(lines["rchar"]) + int(lines["wchar"])


def main(directory: Path, nodes: int, seconds: float) -> list[Quiet]:
    """Run the swarm, and look at it for so long."""
    swarm = LocalSwarm(directory, nodes)
    swarm.daemons = tuple(ScriptedDaemon(place) for place in swarm.places)
    swarm.prepare_nodes(0, FAST)
    try:
        swarm.start()
        swarm.wait_until(lambda: all(is_on(swarm, place.number) for place in swarm.places), READY_S, "the first rounds")
        before = [Meter(swarm, place.number) for place in swarm.places]
        threading.Event().wait(seconds)
        return [Meter(swarm, place.number).since(first) for place, first in zip(swarm.places, before, strict=True)]
    finally:
        swarm.stop()


def is_on(swarm: LocalSwarm, number: int) -> bool:
    """Whether a node has come to a round in which all is as it will go on."""
    status = swarm.status(number)
    return status is not None and status.round.round >= STARTED_ROUND


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # its nodes are to end before it
    print(msgspec.json.encode(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))).decode())
