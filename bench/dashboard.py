"""What a node's page costs and how soon it knows: a coordinator's log of 1,000 peers, or more, and 100,000 events.

The log is written here, without workers; the server is `swarmd dashboard`. Then peers go on reporting as in a swarm
whose stages last a minute, while a browser listens.
"""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Sample, cpu_of, memory_of, sample
from bench.place import Unavailable, end
from bench.table import Row
from swarmd.core.events import (
    Event,
    LinkUp,
    MemberSeen,
    NodeStarted,
    Registered,
    ReportSeen,
    RolloutsGathered,
    RoundAnnounced,
    RoundPublished,
    StageTrained,
    TrainerReady,
    WorkerStarted,
)
from swarmd.core.values import CoordinatorSettings, RolloutsRef, Settings
from swarmd.eventlog.frame import NO_COMMANDS
from swarmd.eventlog.store import EventLog

PEERS = 1000
EVENTS = 100_000
STAGE_S = 60.0  # in which every peer reports once
WATCHED_S = 60.0
LATE_SAMPLES = 50
BYTES_MAX = 2**40
READY_S = 900.0
MOMENTS = 20
UPDATE_GOAL_MS = 200.0
MEMORY_GOAL_MIB = 60.0
CPU_GOAL_PERCENT = 2.0
PAGE_GOAL_MS = 100.0

ANSWERS = {
    "page": "/",
    "script": "/static/swarm.js",
    "swarm view": "/api/v1/swarm",
    "a page of the leaderboard": "/api/v1/swarm/peers?first=500&count=500",
    "a peer found by name": "/api/v1/swarm/peers?find=peer+777",
    "curves of the first ten": "/api/v1/swarm/curves",
    "status": "/api/v1/node/status",
    "metrics": "/metrics",
}

ME = "12D3KooWcoordinator"


def run(directory: Path, peers: int = PEERS) -> Iterable[Row]:
    """Measure with so many peers; the goals are those for `PEERS`."""
    with EventLog.open(directory / "events", ME, "bench", bytes_max=BYTES_MAX) as log:
        swarm = Swarm(log, peers)
        swarm.write_past()
        with server(directory) as (process, port):
            page = Page(port)
            yield from start_rows(page, process.pid)
            with Listening(port) as listening:
                yield from update_rows(swarm, listening)
                yield from cost_rows(swarm, process.pid)
            yield from answer_rows(page, log.next_seq)
        with server(directory) as (process, port):
            yield from again_rows(Page(port), process.pid)


class Swarm:
    """Writes what a coordinator would log."""

    def __init__(self, log: EventLog, peers: int) -> None:
        self.size = peers
        self._log = log
        self._random = random.Random(0)
        self._peers = [ME] + [f"12D3KooW{number:05d}{'x' * 39}" for number in range(1, peers)]
        self._round = -1
        self._left: list[str] = []

    def write_past(self) -> None:
        """The log up to the middle of a stage."""
        rules = CoordinatorSettings(min_peers=self.size, stage_s=STAGE_S)
        own = Settings(ME, "bench", "coordinator", ME, "chair", coordination=rules)
        self._append(NodeStarted(own, "bench"), WorkerStarted("network", 11, 1), WorkerStarted("trainer", 12, 1))
        self._append(LinkUp(self.size), Registered("register"), TrainerReady("cpu", "tiny", 1))
        met = [MemberSeen(peer, f"peer {number}") for number, peer in enumerate(self._peers)]
        for first in range(0, len(met), PEERS):
            self._append(*met[first : first + PEERS])
        while self._log.next_seq < EVENTS:
            self._append(*[self.next_event() for _ in range(50)])

    def next_event(self) -> Event:
        """A report; between stages, what opens the next one."""
        if not self._left:
            self._open()
        peer = self._left.pop()
        return ReportSeen(peer, self._round, 0, self._random.random(), "d" * 64, self._random.randbytes(180))

    def _open(self) -> None:
        self._round += 1
        round_, at = self._round, time.time()
        own = RolloutsRef(ME, round_, 0, "d" * 64, 100, 4)
        self._append(
            RoundPublished(f"announce/{round_}/0/{round_ + 1}", round_, 0),
            RoundAnnounced(round_, 0, at, at + STAGE_S),
            RolloutsGathered(f"gather/{round_}/0", round_, 0),
            StageTrained(f"train/{round_}/0", round_, 0, self._random.random(), own),
        )
        self._left = self._random.sample(self._peers, self.size)

    def report(self) -> int:
        """One more report, durable when this returns; its number."""
        event = self.next_event()
        self._append(event)
        return self._log.next_seq - 1

    def _append(self, *events: Event) -> None:
        self._log.append(time.time(), events, NO_COMMANDS)


@contextmanager
def server(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`swarmd dashboard` of a directory, and its port. Raises Unavailable: it does not start."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "swarmd", "dashboard", str(directory), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        told = process.stdout.readline().split()
        if not told:
            raise Unavailable(f"`swarmd dashboard {directory}` has ended; it said why above")
        yield process, int(told[0].rstrip("/").rpartition(":")[2])
    finally:
        end(process)


class Page:
    """Asks as a browser does, on one connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> tuple[bytes, float]:
        """The body, and milliseconds until it was there."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        began = time.perf_counter()
        connection.request("GET", path)
        body = connection.getresponse().read()
        took_ms = (time.perf_counter() - began) * 1000
        connection.close()
        return body, took_ms


class Listening:
    """A client of the stream; notes when which event came."""

    def __init__(self, port: int) -> None:
        self.came_at: dict[int, float] = {}
        self.more = threading.Condition()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Listening:
        self._connection.request("GET", "/api/v1/stream")
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._connection.sock is not None:
            self._connection.sock.close()

    def _read(self) -> None:
        try:
            while line := self._answer.readline():
                if line.startswith(b"id: "):
                    with self.more:
                        self.came_at[int(line[4:])] = time.perf_counter()
                        self.more.notify_all()
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return  # closed at the end

    def wait(self, seq: int) -> float:
        """When an event came."""
        with self.more:
            assert self.more.wait_for(lambda: seq in self.came_at, 30)
            return self.came_at[seq]


def wait_until(condition: Callable[[], bool], every_s: float = 0.1) -> None:
    """Raises AssertionError after `READY_S`."""
    end = time.monotonic() + READY_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end
        pause.wait(every_s)


def start_rows(page: Page, pid: int) -> Iterable[Row]:
    """How long a log takes to be read at the start, and the page's first bytes meanwhile."""
    began = time.monotonic()
    first = sample(*[page.get("/")[1] for _ in range(10)])
    yield Row("first page while the log is read", "ms", first)
    wait_until(lambda: b'"read":1.0' in page.get("/api/v1/here")[0])
    yield Row(f"reading {EVENTS:,} events", "s", sample(time.monotonic() - began))
    yield Row("  processor time of it", "s", sample(cpu_of(pid)))


def update_rows(swarm: Swarm, listening: Listening) -> Iterable[Row]:
    """From the end of an event's commit to a browser that has it."""
    delays = []
    pause = threading.Event()
    for number in range(LATE_SAMPLES):
        pause.wait(0.1 + 0.01 * (number % 10))  # at any point of the server's pace
        seq = swarm.report()
        committed = time.perf_counter()
        delays.append(max(0.0, listening.wait(seq) - committed) * 1000)
    taken = Sample(tuple(delays))
    late = taken.percentile(0.99)
    goal = f"<= {UPDATE_GOAL_MS:g} ms (99 %)"
    yield Row("commit to browser", "ms", taken, goal=goal, met=late <= UPDATE_GOAL_MS)


def cost_rows(swarm: Swarm, pid: int) -> Iterable[Row]:
    """Memory and processor time while every peer reports once in `STAGE_S` and a browser listens."""
    before, began = cpu_of(pid), time.monotonic()
    pause = threading.Event()
    written = 0
    while (passed_s := time.monotonic() - began) < WATCHED_S:
        if written < passed_s / STAGE_S * swarm.size:
            swarm.report()
            written += 1
        else:
            pause.wait(STAGE_S / swarm.size / 2)
    percent = 100 * (cpu_of(pid) - before) / (time.monotonic() - began)
    usual = swarm.size == PEERS  # the goals are for so many
    goal, met = (f"<= {CPU_GOAL_PERCENT:g} %", percent <= CPU_GOAL_PERCENT) if usual else ("", None)
    yield Row("of a core, all peers reporting", "%", sample(percent), goal=goal, met=met)
    memory = memory_of(pid)["Rss"]
    goal, met = (f"<= {MEMORY_GOAL_MIB:g} MiB", memory <= MEMORY_GOAL_MIB) if usual else ("", None)
    yield Row("memory, RSS", "MiB", sample(memory), goal=goal, met=met)


def again_rows(page: Page, pid: int) -> Iterable[Row]:
    """How soon the next page has all, from what this one has kept beside the log."""
    began = time.monotonic()
    wait_until(lambda: b'"read":1.0' in page.get("/api/v1/here")[0])
    yield Row("another start, until all is read", "s", sample(time.monotonic() - began))
    yield Row("  processor time of it", "s", sample(cpu_of(pid)))


def answer_rows(page: Page, end: int) -> Iterable[Row]:
    """How long answers take, and how many bytes they have."""
    for name, path in ANSWERS.items():
        answers = [page.get(path) for _ in range(20)]
        taken = Sample(tuple(took_ms for _, took_ms in answers))
        goal = f"<= {PAGE_GOAL_MS:g} ms" if path == "/" else ""
        yield Row(name, "ms", taken, goal=goal, met=taken.median <= PAGE_GOAL_MS if goal else None)
        yield Row(f"  {name}", "KiB", sample(len(answers[-1][0]) / 1024))
    seqs = random.Random(1).sample(range(end), MOMENTS)
    far = Sample(tuple(page.get(f"/api/v1/node/moments/{seq}")[1] for seq in seqs))
    yield Row("moment, anywhere", "ms", far)
    near = Sample(tuple(page.get(f"/api/v1/node/moments/{seqs[-1] + step}")[1] for step in range(1, 16)))
    yield Row("moment, beside the last", "ms", near)
    yield Row("overview of the log", "ms", Sample(tuple(page.get("/api/v1/node/overview")[1] for _ in range(10))))
