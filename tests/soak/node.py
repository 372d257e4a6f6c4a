"""One real node that runs alone: network worker with p2pd, trainer with the embedded model, page."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from swarmd.cli.local_swarm import LOOPBACK, DaemonProcess, get_or_make_peer_id, local_node_directories, prepare_nodes
from swarmd.config import load_config
from swarmd.core.events import Event
from swarmd.core.state import State
from swarmd.daemon.process import find_leftovers, node_tag
from swarmd.errors import ControlError
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.reader import read_commits
from swarmd.observe.control import send_request
from swarmd.observe.status import Status

QUICK = {
    "coordinator.stage_s": 120.0,
    "dht.poll_s": 2.0,
    "training.steps": 3,
    "training.questions": 4,
    "training.generations": 4,
    "training.peer_questions": 2,
    "training.held_out_questions": 4,
}
PORTS = range(20_000, 32_000)  # below those that systems give to whoever asks for any
PORT_TRIES_MAX = 100
ASK_S = 1.0  # longest wait for the node's status
POLL_S = 0.02


class SoakNode:
    """A data directory, and the daemons that live on it one after another.

    Args:
        directory: the node lies below it.
        seed: of the ports' choice.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        (self.place,) = local_node_directories(directory, 1)
        self.ports = dict(zip(("p2pd", "the page"), free_ports(2, seed), strict=True))
        network, page = (f"/ip4/{LOOPBACK}/tcp/{self.ports['p2pd']}", f"{LOOPBACK}:{self.ports['the page']}")
        prepare_nodes((self.place,), 0, QUICK | {"dht.listen": [network], "web.listen": page})
        self.peer = get_or_make_peer_id(self.place)
        self.tag = node_tag(self.peer, self.place.root)
        self.stop_s = load_config(self.place.config).workers.stop_s
        self.daemon = DaemonProcess(self.place)

    def start(self) -> None:
        self.daemon = DaemonProcess(self.place)
        self.daemon.start()

    def end(self) -> None:
        """Whatever happened, leave no process behind."""
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait_for_exit(10)
        for process in self.processes():
            process.kill()

    def processes(self) -> frozenset[Process]:
        """The daemon's workers and all that they started, those that left its tag aside included; zombies are none."""
        pids = {*find_leftovers(self.tag), *_session(self.daemon.pid)} - {self.daemon.pid}
        return frozenset(process for pid in pids if (process := process_of(pid)))

    def status(self) -> Status | None:
        """What the daemon says of itself; None while it does not answer."""
        try:
            return msgspec.json.decode(send_request(self.place.control, "status", ASK_S), type=Status)
        except (ControlError, msgspec.DecodeError):
            return None

    def is_settled(self) -> bool:
        """Whether all of it runs: a round is under way, p2pd and the page listen."""
        status = self.status()
        under_way = status is not None and status.training.healthy and status.round.state.startswith("round.")
        return under_way and all(map(answers, self.ports.values()))

    def events(self) -> list[Event]:
        """All that is in its log."""
        events = self.place.events
        return [event for commit in read_commits(events) for event in commit.events] if events.is_dir() else []

    def state(self) -> State:
        """What its log comes to."""
        events = self.place.events
        return load_state(events)[0] if events.is_dir() else State()


class Process(msgspec.Struct, frozen=True):
    """A process that another one with the same number is not taken for."""

    pid: int
    born: str  # clock ticks since the machine's start
    words: str  # its command line

    @property
    def lives(self) -> bool:
        now = process_of(self.pid)
        return now is not None and now.born == self.born

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            if self.lives:
                os.kill(self.pid, signal.SIGKILL)


def process_of(pid: int) -> Process | None:
    """The living process of this number."""
    try:
        fields = _fields(pid)
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return None
    return Process(pid, fields[19], words.strip()) if fields[0] not in "ZX" else None


def _fields(pid: int) -> list[str]:
    """From /proc/PID/stat, what follows the process's name: state, parent, group, session and so on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _session(leader: int) -> Iterator[int]:
    """Pids of a session, its leader's end survived."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if leader and int(_fields(int(entry.name))[3]) == leader:
                yield int(entry.name)


def until(condition: Callable[[], object], longest_s: float) -> bool:
    """Whether a condition comes true in time."""
    end_s = time.monotonic() + longest_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True


def answers(port: int) -> bool:
    """Whether somebody listens at a port of this host."""
    with socket.socket() as probe:
        probe.settimeout(ASK_S)
        return probe.connect_ex((LOOPBACK, port)) == 0


def can_be_bound(port: int) -> bool:
    """Whether a server, which may follow on its predecessor's heels, could listen at a port of this host."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


@contextmanager
def visited(node: SoakNode) -> Iterator[None]:
    """While the block runs, a browser has the page's stream open, and somebody a connection to p2pd."""
    with ExitStack() as open_ones:
        for port in node.ports.values():
            with suppress(OSError):  # nobody listens yet
                visitor = open_ones.enter_context(socket.create_connection((LOOPBACK, port), ASK_S))
                if port == node.ports["the page"]:
                    visitor.sendall(f"GET /api/v1/stream HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\n\r\n".encode())
        yield


def free_ports(count: int, seed: int) -> list[int]:
    """Ports that nobody listens at. Raises RuntimeError where none are found."""
    chosen = random.Random(seed).sample(PORTS, PORT_TRIES_MAX)
    found = [port for port in chosen if can_be_bound(port)]
    if len(found) < count:
        raise RuntimeError(f"of {PORT_TRIES_MAX} ports of this host hardly one is free")
    return found[:count]
