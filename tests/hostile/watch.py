"""Whole nodes under attack: memory and processor time of their network workers, closed rounds, credited peers."""

import os
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from bench.measure import process_tree
from swarmd.cli.local_swarm import DaemonProcess, LocalNode, LocalSwarm
from swarmd.core.events import RoundsSkipped, StopRequested, WorkerExited
from swarmd.dht.p2p.sockets import socket_directory
from swarmd.eventlog.fold import fold_commits
from swarmd.eventlog.reader import read_commits
from tests.daemon.node import RUNNER
from tests.dht.driver import SWARM
from tests.hostile.priority import set_session_priority

LOOK_S = 0.5
READY_S = 180.0  # longest start of a swarm, on a busy machine
FAST: dict[str, object] = {
    "swarm.id": SWARM,
    "training.steps": 20,  # of a tenth of a second
    "training.questions": 4,
    "training.generations": 4,
    "training.peer_questions": 2,
    "training.held_out_questions": 0,
    "coordinator.stage_s": 15.0,
    "coordinator.start_s": 120.0,
    "dht.poll_s": 1.0,
    "logs.level": "info",
}


class Closed(msgspec.Struct, frozen=True):
    """A round that the coordinator closed."""

    round: int
    at: float
    credited: frozenset[str]  # peers


class Seen(msgspec.Struct, frozen=True):
    """A node's network at a moment: resident MiB, and pids, which tell whether it is still the same."""

    at: float
    node: int
    worker: int
    p2pd: int
    worker_mib: float
    p2pd_mib: float


class Lives(msgspec.Struct, frozen=True):
    """What a node's log says went wrong."""

    exits: tuple[WorkerExited, ...]
    skipped: int


def closed_rounds(place: LocalNode) -> list[Closed]:
    """What the coordinator closed, from its log."""
    found = []
    for applied in fold_commits(read_commits(place.events)):
        before, after = applied.before.coordination, applied.after.coordination
        if before is not None and after is not None and before.openings and before.round < after.round:
            credited = frozenset(member.peer for member in after.members if member.last_round == before.round)
            found.append(Closed(before.round, applied.at, credited))
    return found


def lives_of(place: LocalNode) -> Lives:
    """Workers that ended before the node was asked to stop, other than as planned, and rounds that were skipped."""
    events = [event for commit in read_commits(place.events) for event in commit.events]
    asked = next((at for at, event in enumerate(events) if isinstance(event, StopRequested)), len(events))
    exits = tuple(event for event in events[:asked] if isinstance(event, WorkerExited) and not event.planned)
    skipped = sum(event.last - event.first + 1 for event in events if isinstance(event, RoundsSkipped))
    return Lives(exits, skipped)


def progress(closed: Sequence[Closed], at: float) -> float:
    """How many rounds had been closed by then, with the part of the one that was under way."""
    before = [each.at for each in closed if each.at <= at]
    after = [each.at for each in closed if each.at > at]
    if not before or not after:
        return float(len(before))
    return len(before) + (at - before[-1]) / (after[0] - before[-1])


def rounds_in(closed: Sequence[Closed], spans: Sequence[tuple[float, float]]) -> float:
    """Rounds that took place within spans of time, parts of rounds included."""
    return sum(progress(closed, end) - progress(closed, begin) for begin, end in spans)


class Watch:
    """Looks at the network of each node every half second, from a thread of its own, until it is closed."""

    def __init__(self, swarm: LocalSwarm) -> None:
        self.swarm = swarm
        self.seen: list[Seen] = []
        self.round = -1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for place in self.swarm.places:
                status = self.swarm.status(place.number)
                if status is None or status.network.worker.pid is None:
                    continue
                if place.coordinates:
                    self.round = status.round.round
                with suppress(OSError, msgspec.DecodeError):
                    self.seen.append(seen_now(place, status.network.worker.pid))

    def pids(self) -> dict[int, tuple[int, int]]:
        """Network worker and p2pd of each node, as seen last."""
        return {seen.node: (seen.worker, seen.p2pd) for seen in self.seen}


def seen_now(place: LocalNode, worker: int) -> Seen:
    """A node's network now. Raises OSError when a part of it is gone."""
    p2pd = p2pd_of(place)
    return Seen(time.time(), place.number, worker, p2pd, resident_mib(worker), resident_mib(p2pd))


def p2pd_of(place: LocalNode) -> int:
    """Pid of a node's p2pd. Raises OSError where it has none."""
    note = (socket_directory(place.sockets) / "p2pd.json").read_bytes()
    return int(msgspec.json.decode(note)["pid"])


def resident_mib(pid: int) -> float:
    """Resident memory. Raises OSError when the process is gone."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def watched(swarm: LocalSwarm) -> Iterator[Watch]:
    """A watch over nodes that run."""
    watch = Watch(swarm)
    try:
        yield watch
    finally:
        watch.close()


class ScriptedDaemon(DaemonProcess):
    """A node whose trainer has no model; all else is real, and executed."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(RUNNER), str(self.place.config), str(self.place.root), "real", "scripted"]


class ScriptedSwarm(LocalSwarm):
    """Nodes whose rounds take two seconds or so.

    Args:
        directory: of the nodes.
        nodes: how many.
        trained: numbers of the nodes with a real trainer.
    """

    def __init__(self, directory: Path, nodes: int = 3, trained: Collection[int] = ()) -> None:
        super().__init__(directory, nodes)
        self.daemons = tuple(
            DaemonProcess(place) if place.number in trained else ScriptedDaemon(place) for place in self.places
        )

    def run(self, **settings: object) -> None:
        """Lay out, start, and return when rounds are closed by all."""
        self.prepare_nodes(0, FAST | settings)
        self.start()
        self.wait_until(lambda: self._runs(), READY_S, "the first rounds")
        for daemon in self.daemons:
            for pid in process_tree(daemon.pid):  # a daemon and each of its workers have sessions of their own
                set_session_priority(pid, os.nice(0))

    def _runs(self) -> bool:
        found = [self.status(place.number) for place in self.places]
        return all(status is not None and status.round.working_round >= 2 for status in found)

    def addresses(self) -> list[str]:
        """Of all nodes, the coordinator's first."""
        found = [self.status(place.number) for place in self.places]
        return [status.network.addresses[0] for status in found if status is not None]
