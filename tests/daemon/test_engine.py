"""The loop: order of writing and acting, timers, batches, failures."""

from collections.abc import Sequence

import anyio
import pytest

from swarmd.core.applied import Applied
from swarmd.core.commands import Command, StartWorker
from swarmd.core.events import (
    Event,
    LinkUp,
    MemberLeft,
    MemberSeen,
    NodeStarted,
    NodeStopped,
    TimerFired,
    WorkerExited,
)
from swarmd.core.state import Deadline, State
from swarmd.core.values import CoordinatorSettings, Settings
from swarmd.daemon.engine import Engine
from swarmd.daemon.notify import ServiceNotifier
from swarmd.errors import CommitTooLarge, LogWriteFailed, NoSpaceLeft
from swarmd.eventlog.frame import digest_commands
from swarmd.shell.loop import BATCH_FACTS_MAX, INBOX_FACTS_MAX, Loop
from tests.log_capture import capture_logs

SETTINGS = Settings("me", "test", "coordinator", "me", coordination=CoordinatorSettings())
STARTED = NodeStarted(SETTINGS, "run")


class MemoryLog:
    """Keeps commits in memory and can refuse them."""

    def __init__(self, record: list[str]) -> None:
        self.commits: list[tuple[tuple[Event, ...], bytes]] = []
        self.next_seq = 0
        self.record = record
        self.fails: Exception | None = None
        self.events_max = 10**9
        self.snapshot_due = False
        self.snapshots: list[State] = []
        self.snapshot_fails: Exception | None = None

    def append(self, at: float, events: Sequence[Event], commands_digest: bytes) -> None:
        if self.fails:
            raise self.fails
        if len(events) > self.events_max:
            raise CommitTooLarge("too large")
        self.record.append("append")
        self.commits.append((tuple(events), commands_digest))
        self.next_seq += len(events)

    def write_snapshot(self, state: State) -> None:
        if self.snapshot_fails:
            raise self.snapshot_fails
        self.snapshots.append(state)


class Pulse(ServiceNotifier):
    """Counts the signs of life that it is given."""

    pulse_s = 0.05
    count = 0

    def alive(self) -> None:
        self.count += 1


class Bench:
    """An engine with everything around it in memory."""

    def __init__(self) -> None:
        self.record: list[str] = []
        self.commands: list[Command] = []
        self.journal: list[Applied] = []
        self.pulse = Pulse()
        self.now = 1000.0
        self.log = MemoryLog(self.record)
        loop = Loop(self.log, State(), (self,))
        loop.connect(self.perform)
        self.engine = Engine(loop, lambda: self.now, self.pulse)

    def perform(self, command: Command) -> None:
        self.record.append("dispatch")
        self.commands.append(command)

    def apply(self, applied: Applied) -> None:
        self.record.append("projection")
        self.journal.append(applied)


def test_commands_leave_only_after_their_commit() -> None:
    bench = Bench()
    anyio.run(bench.engine.commit, [STARTED])
    assert bench.record == ["append", "projection", "dispatch", "dispatch"]
    assert [type(command) for command in bench.commands] == [StartWorker, StartWorker]
    events, digest = bench.log.commits[0]
    assert (events, digest) == ((STARTED,), digest_commands(bench.commands))


def test_a_failed_append_changes_nothing_and_ends_the_loop() -> None:
    bench = Bench()
    bench.log.fails = LogWriteFailed("the disk is gone")

    async def run() -> None:
        await bench.engine.observe(STARTED)
        with anyio.fail_after(5):
            await bench.engine.run()

    with pytest.raises(LogWriteFailed):
        anyio.run(run)
    assert bench.engine.state == State()
    assert bench.commands == [] and bench.journal == []


def test_waiting_facts_share_one_commit_up_to_the_bound() -> None:
    bench = Bench()

    async def run() -> None:
        await bench.engine.commit([STARTED])
        for number in range(BATCH_FACTS_MAX + 6):
            await bench.engine.observe(MemberLeft(f"peer{number}"))
        await bench.engine.observe(NodeStopped("enough"))
        with anyio.fail_after(5):
            await bench.engine.run()

    anyio.run(run)
    assert [len(events) for events, _ in bench.log.commits] == [1, BATCH_FACTS_MAX, 7]


def test_timers_that_are_due_together_come_earliest_first_and_once() -> None:
    """Also where the state, for whatever reason, still holds their deadlines."""
    bench = Bench()
    waits = {"late": 900.0, "early": 800.0, "ahead": 1001.0}
    loop = Loop(bench.log, State(deadlines=tuple(Deadline(name, due_at) for name, due_at in waits.items())))
    assert loop.next_facts(1000.0) == [TimerFired("early", 800.0), TimerFired("late", 900.0)]
    assert loop.next_facts(1000.0) == [] and loop.idle_s(1000.0) == 1.0


def test_the_loop_sleeps_until_the_deadline() -> None:
    bench = Bench()

    async def run() -> None:
        await bench.engine.commit([STARTED, WorkerExited("trainer", "gone")])
        due_at = min(deadline.due_at for deadline in bench.engine.state.deadlines)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.engine.run)
            bench.now = due_at - 0.01
            await anyio.sleep(0.1)
            assert bench.engine.loop.next_seq == 2
            bench.now = due_at
            await anyio.sleep(0.1)
            assert bench.engine.loop.next_seq == 3
            tasks.cancel_scope.cancel()

    anyio.run(run)
    assert 3 <= bench.pulse.count < 50, "the loop must pulse, and must not spin"


def test_a_single_event_that_is_too_large_ends_the_node() -> None:
    bench = Bench()
    bench.log.events_max = 0
    with pytest.raises(CommitTooLarge):
        anyio.run(bench.engine.commit, [STARTED])


def test_a_snapshot_that_cannot_be_kept_is_told_and_the_node_goes_on() -> None:
    bench = Bench()
    bench.log.snapshot_due, bench.log.snapshot_fails = True, NoSpaceLeft("no space left for the snapshot", "Free some")
    with capture_logs() as told:
        anyio.run(bench.engine.commit, [STARTED])
        anyio.run(bench.engine.commit, [MemberSeen("anna")])
    assert bench.record.count("dispatch") == 2 and len(bench.journal) == 2
    assert [each["log_level"] for each in told] == ["warning", "warning"]
    assert "2 times one after another" in told[1]["event"] and "Free some" in told[1]["event"]
    assert bench.engine.loop.snapshots.note == told[1]["event"]
    bench.log.snapshot_fails = None
    anyio.run(bench.engine.commit, [MemberSeen("otto")])
    assert bench.engine.loop.snapshots.note == ""


def test_a_full_inbox_makes_the_bringer_wait() -> None:
    bench = Bench()

    async def run() -> bool:
        for _ in range(INBOX_FACTS_MAX):
            await bench.engine.observe(LinkUp(1))
        with anyio.move_on_after(0.05) as scope:
            await bench.engine.observe(LinkUp(1))
        return scope.cancelled_caught

    assert anyio.run(run)
