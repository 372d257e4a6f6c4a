"""One node on one data directory, started and stopped many times at moments chosen from a seed."""

import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import msgspec

from swarmd.cli.local_swarm import DaemonProcess
from swarmd.core.events import (
    Event,
    LinkUp,
    MemberLeft,
    NodeStarted,
    NodeStopped,
    Registered,
    RoundsSkipped,
    StageTrained,
    StopRequested,
    TrainerReady,
    WorkerExited,
    WorkerStarted,
)
from swarmd.daemon.service import STOP_SLACK_S
from swarmd.worker.child import ORPHAN_S
from tests.e2e.audit import verify
from tests.soak import traces
from tests.soak.node import Process, SoakNode, until, visited

EARLY_S = 2.0  # the start of a daemon: imports, the log, the first workers
LATE_S = 8.0  # by then a node trains, on a quiet machine
SETTLED_S = 3.0  # a few rounds
SETTLES_S = 400.0  # longest start, on a busy machine
ORPHAN_SLACK_S = 30.0  # a busy machine's, beyond the 5 s after which workers follow a daemon that was killed
LEGS = {  # how far a life had come, the furthest first
    StageTrained: "after a stage or more",
    TrainerReady: "trainer ready",
    LinkUp: "network up",
    WorkerStarted: "workers starting",
    NodeStarted: "log just open",
}
UNBEGUN = "before the log was open"
ENDED_IN_ORDER = ("stopped (", "did not end in time")  # the latter while it imports
PROGRESS_EVERY = 5
DEEP = "deep-" * 20
BEFORE_IT_BEGAN = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)  # exit codes of who had nothing to end


class LeftBehind(AssertionError):
    """A stop that was not clean."""


class Moment(msgspec.Struct, frozen=True):
    """When a life ends, and how."""

    signal: signal.Signals
    settled: bool  # counted from when all of the node runs, not from its first instant
    after_s: float
    alone: bool = False  # after a kill: the workers have to end by themselves, before the next life begins
    trained: bool = False  # where it is settled: a round of this life has been trained by then, too


class Rhythm(msgspec.Struct, frozen=True):
    """Of so many stops one is by SIGINT, one by SIGKILL; the others are by SIGTERM."""

    interrupts: int = 10
    kills: int = 20

    def signal(self, number: int) -> signal.Signals:
        """Of the stop with this number, from 1."""
        if number % self.kills == 0:
            return signal.SIGKILL
        return signal.SIGINT if number % self.interrupts == self.interrupts // 2 else signal.SIGTERM


def moments(count: int, seed: int, rhythm: Rhythm) -> list[Moment]:
    """The ends of as many lives: some in their first instants, some on the way, some when all runs.

    A life that follows a kill comes so far that all runs; and one more ends it all, in order.
    """
    chance = random.Random(seed)
    signals = [rhythm.signal(number) for number in range(1, count + 1)]
    recovers = [False, *(number == signal.SIGKILL for number in signals)]
    drawn = [_moment(chance, number, after) for number, after in zip(signals, recovers, strict=False)]
    return [*drawn, Moment(signal.SIGTERM, settled=True, after_s=SETTLED_S, trained=True)]


def _moment(chance: random.Random, number: signal.Signals, recovers: bool) -> Moment:
    when = "settled" if recovers else chance.choice(("early", "late", "settled"))
    longest_s = {"early": EARLY_S, "late": LATE_S, "settled": SETTLED_S}[when]
    return Moment(number, when == "settled", chance.uniform(0, longest_s), chance.random() < 0.5)


class Tally:
    """What was counted."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.legs: Counter[str] = Counter()
        self.workers: Counter[str] = Counter()
        self.leavings = 0
        self.stop_s: list[float] = []
        self.orphans_s: list[float] = []
        self.unfinished_most = 0
        self.rounds = 0
        self.skipped = 0

    def __str__(self) -> str:
        """The table."""
        rows = [(f"stops: {end}", str(count)) for end, count in sorted(self.ends.items())]
        rows += [(f"stopped: {leg}", str(self.legs[leg])) for leg in (UNBEGUN, *reversed(LEGS.values()))]
        rows += [(f"workers: {end}", str(count)) for end, count in sorted(self.workers.items())]
        rows += [
            ("leavings announced", str(self.leavings)),
            ("seconds an orderly stop took", spread(self.stop_s)),
            ("seconds workers outlived a killed daemon", spread(self.orphans_s)),
            ("rounds trained", str(self.rounds)),
            ("rounds skipped, with a cause", str(self.skipped)),
            ("half-written files at once, at most", str(self.unfinished_most)),
            ("processes, ports, sockets, locks, temporary files left", "none: at the first finding the run ends"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def spread(seconds: Sequence[float]) -> str:
    """Median and maximum."""
    return f"median {statistics.median(seconds):.2f}, max {max(seconds):.2f}" if seconds else "none"


class Soak:
    """The lives of one node.

    Args:
        directory: of the node and its temporary files; short, for sockets lie below it.
        seed: of ports and moments.
        deep: the data directory's path is so long that p2pd's sockets have to lie among the temporary files.
    """

    def __init__(self, directory: Path, seed: int, deep: bool = False) -> None:
        self.node = SoakNode(directory / DEEP if deep else directory, seed)
        self.tally = Tally()
        self._scratch = directory / "tmp"
        self._scratch.mkdir(exist_ok=True)
        self._orphans: frozenset[Process] = frozenset()
        self._events: list[Event] = []  # of the lives before
        self._kills = 0

    def live(self, moment: Moment) -> None:
        """One life: start, stop, and a look at what it left. Raises LeftBehind."""
        with patch.dict(os.environ, TMPDIR=str(self._scratch)):
            self.node.start()
        begun_s = time.monotonic()
        if moment.settled:
            self._settle(moment.trained)
            begun_s = time.monotonic()
        time.sleep(max(0.0, begun_s + moment.after_s - time.monotonic()))
        if not self.node.daemon.is_running:
            raise LeftBehind(f"the node ended by itself, with exit code {self.node.daemon.exit_code}")
        if moment.signal == signal.SIGKILL:
            self._kill(moment.alone)
        else:
            self._stop(moment.signal)

    def _settle(self, trained: bool) -> None:
        """Until all runs, and where asked for has trained; what a killed life left is gone by then."""

        def settled() -> bool:
            return self.node.is_settled() and (not trained or self._has_trained())

        if not until(lambda: settled() or not self.node.daemon.is_running, SETTLES_S):
            raise LeftBehind(f"the node was not at work after {SETTLES_S:g} s")
        expect(traces.living(self._orphans, 0))
        self._orphans = frozenset()

    def _has_trained(self) -> bool:
        return any(isinstance(event, StageTrained) for event in self.node.events()[len(self._events) :])

    def _kill(self, alone: bool) -> None:
        self._kills += 1
        self._orphans = self.node.processes()
        with visited(self.node):
            self.node.daemon.send_signal(signal.SIGKILL)
            self.node.daemon.wait_for_exit(SETTLES_S)
        killed_s = time.monotonic()
        self._count("SIGKILL", self._life())
        if not alone:
            return
        expect(traces.living(self._orphans, ORPHAN_S + ORPHAN_SLACK_S))
        self.tally.orphans_s.append(time.monotonic() - killed_s)
        self._orphans = frozenset()
        expect(traces.living(self.node.processes(), 0), traces.taken_ports(self.node))

    def _stop(self, number: signal.Signals) -> None:
        limit_s = 2 * self.node.stop_s + STOP_SLACK_S
        with visited(self.node):
            asked_s = time.monotonic()
            self.node.daemon.send_signal(number)
            if not self.node.daemon.wait_for_exit(limit_s + STOP_SLACK_S):
                raise LeftBehind(f"the node did not stop within {limit_s + STOP_SLACK_S:g} s")
            took_s = time.monotonic() - asked_s
        ports = traces.taken_ports(self.node)  # first: at once
        expect(traces.living(self.node.processes()), ports)
        life = self._life()
        code = self.node.daemon.exit_code
        if not life and was_unbegun(self.node.daemon):
            self._count(f"{number.name}, died of it before the log was open", life)
            return
        expect([f"exit code {code}"] if code else [], check_end(life, number))
        expect([stayed(life, self.node.peer), took_long(took_s, limit_s)])
        self._look_around()
        self.tally.stop_s.append(took_s)
        self.tally.leavings += has_left(life, self.node.peer)
        self._count(f"{number.name}, exit code 0", life)

    def _look_around(self) -> None:
        """What lies about after an orderly stop."""
        root = self.node.place.root
        begun = traces.unfinished(root)
        self.tally.unfinished_most = max(self.tally.unfinished_most, len(begun))
        expect(
            traces.sockets(root, self._scratch),
            traces.held_locks(*traces.locks_of(self.node)),
            traces.temporary(self._scratch),
            traces.heaped_up(root),
            [f"{path} was begun and not ended" for path in begun] if len(begun) > self._kills else [],
        )

    def _life(self) -> list[Event]:
        """What this life logged; all rounds so far are accounted for."""
        events = self.node.events()
        expect(traces.lost_rounds(events, self.node.state()))
        known, self._events = len(self._events), events
        return events[known:]

    def _count(self, end: str, life: Sequence[Event]) -> None:
        tally = self.tally
        tally.ends[end] += 1
        tally.legs[leg_of(life)] += 1
        tally.workers.update(f"{each.worker} {each.reason.splitlines()[0]}" for each in ended_workers(life))
        tally.rounds += sum(isinstance(event, StageTrained) for event in life)
        tally.skipped += sum(event.last - event.first + 1 for event in life if isinstance(event, RoundsSkipped))


def expect(*findings: Sequence[str]) -> None:
    """Raise LeftBehind where anything was found."""
    if found := [finding for some in findings for finding in some if finding]:
        raise LeftBehind("; ".join(found))


def was_unbegun(daemon: DaemonProcess) -> bool:
    """Whether it died of the signal because nothing of it was there yet to heed one: Python itself was starting."""
    interrupted = daemon.exit_code == 1 and daemon.last_output_lines(1) == ["KeyboardInterrupt"]
    return interrupted or daemon.exit_code in BEFORE_IT_BEGAN


def check_end(life: Sequence[Event], number: signal.Signals) -> list[str]:
    """An orderly life begins with its start, has no failure of a worker in it, and ends with its stop."""
    reason = f"signal {number.name}"
    if not life or not isinstance(life[0], NodeStarted) or life[-1] != NodeStopped(reason):
        return [f"the log does not end with a stop by {reason}: {life[-1:]}"]
    crashed = [event.reason for event in ended_workers(life) if not event.reason.startswith(ENDED_IN_ORDER)]
    return [f"a worker ended in another way: {reason}" for reason in crashed]


def ended_workers(life: Sequence[Event]) -> list[WorkerExited]:
    """Ends of workers, in order or not."""
    return [event for event in life if isinstance(event, WorkerExited)]


def took_long(took_s: float, limit_s: float) -> str:
    """What is wrong with the time that a stop took."""
    return f"the stop took {took_s:.1f} s, more than {limit_s:g} s" if took_s > limit_s else ""


def has_left(life: Sequence[Event], peer: str) -> bool:
    """Whether the node, asked to stop, said in the swarm that it leaves."""
    return MemberLeft(peer) in _parted(life)[1]


def stayed(life: Sequence[Event], peer: str) -> str:
    """What is wrong where a node that was a member stopped without a word to the swarm."""
    was_member = any(isinstance(event, Registered) for event in _parted(life)[0])
    return "the leaving was not announced" if was_member and not has_left(life, peer) else ""


def _parted(life: Sequence[Event]) -> tuple[Sequence[Event], Sequence[Event]]:
    """Before the stop was asked for, and from then on."""
    asked = next((at for at, event in enumerate(life) if isinstance(event, StopRequested)), len(life))
    return life[:asked], life[asked:]


def leg_of(life: Sequence[Event]) -> str:
    """How far it had come when it was stopped."""
    kinds = {type(event) for event in life}
    return next((leg for kind, leg in LEGS.items() if kind in kinds), UNBEGUN)


def soak(stops: int, seed: int, rhythm: Rhythm, deep: bool = False, tell: Callable[[str], object] = print) -> Tally:
    """Start and stop a node so many times, and once more in order; its log verifies at the end.

    The node lies in a new directory in /tmp, which stays where something was found.

    Raises:
        LeftBehind: something was not clean; the message says what, where, and with which seed.
    """
    directory = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    soak = Soak(directory, seed, deep)
    number, moment, ends = 0, None, moments(stops, seed, rhythm)
    try:
        for number, moment in enumerate(ends, 1):
            soak.live(moment)
            if number % PROGRESS_EVERY == 0 or number == len(ends):
                tell(f"{number} of {len(ends)}, seconds a stop took: {spread(soak.tally.stop_s)}")
        verify(soak.node.place.root)
    except AssertionError as error:
        told = "\n  ".join(soak.node.daemon.last_output_lines(20))
        where = f"seed {seed}, stop {number}, {moment}, in {directory}"
        raise LeftBehind(f"{where}: {error}; the node said last:\n  {told}") from error
    except KeyboardInterrupt:
        tell(f"interrupted in life {number}; the node is in {directory}. So far:\n{soak.tally}")
        raise
    finally:
        soak.node.end()
    shutil.rmtree(directory)
    return soak.tally
