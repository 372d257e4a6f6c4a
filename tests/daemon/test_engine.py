"""The engine drives the loop: it waits, pulses, acts after the commit, and ends with a log that cannot be written."""

import anyio
import pytest

from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import Command
from swarmd.core.events import LinkUp, MemberSeen, NodeStarted, WorkerExited
from swarmd.core.state import State
from swarmd.core.values import CoordinatorSettings, Settings
from swarmd.daemon.engine import Engine
from swarmd.daemon.notify import ServiceNotifier
from swarmd.errors import LogWriteFailed, NoSpaceLeft
from swarmd.shell.loop import INBOX_FACTS_MAX, NodeLoop
from tests.log_capture import capture_logs
from tests.shell.test_loop import MemoryLog

STARTED = NodeStarted(Settings("me", "test", "coordinator", "me", coordination=CoordinatorSettings()), "run")


class Pulse(ServiceNotifier):
    """Counts the signs of life that it is given."""

    pulse_s = 0.05
    count = 0

    def notify_alive(self) -> None:
        self.count += 1


class Bench:
    """An engine with everything around it in memory; `record` has what happened, with the commits there were."""

    def __init__(self) -> None:
        self.record: list[tuple[str, int]] = []
        self.pulse = Pulse()
        self.now = 1000.0
        self.log = MemoryLog()
        loop = NodeLoop(self.log, State(), (self,))
        loop.set_command_handler(self.perform)
        self.engine = Engine(loop, lambda: self.now, self.pulse)

    def perform(self, command: Command) -> None:
        self.record.append(("command", len(self.log.commits)))

    def apply(self, applied: AppliedEvent) -> None:
        self.record.append(("projection", len(self.log.commits)))


def test_commands_leave_only_after_their_commit() -> None:
    bench = Bench()
    anyio.run(bench.engine.commit, [STARTED])
    assert bench.record == [("projection", 1), ("command", 1), ("command", 1)]


def test_a_failed_append_changes_nothing_and_ends_the_loop() -> None:
    bench = Bench()
    bench.log.fails = LogWriteFailed("the disk is gone")

    async def run() -> None:
        await bench.engine.observe(STARTED)
        with anyio.fail_after(5):
            await bench.engine.run()

    with pytest.raises(LogWriteFailed):
        anyio.run(run)
    assert bench.engine.state == State() and bench.record == []


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
            with anyio.fail_after(30.0):
                while bench.engine.loop.next_seq < 3 or bench.pulse.count < 3:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()

    anyio.run(run)
    assert bench.pulse.count < 1000, "the loop must not spin"


def test_a_snapshot_that_cannot_be_kept_is_told_and_the_node_goes_on() -> None:
    bench = Bench()
    bench.log.is_snapshot_due, bench.log.snapshot_fails = (
        True,
        NoSpaceLeft("no space left for the snapshot", "Free some"),
    )
    with capture_logs() as told:
        anyio.run(bench.engine.commit, [STARTED])
        anyio.run(bench.engine.commit, [MemberSeen("anna")])
    assert [each["log_level"] for each in told] == ["warning", "warning"]
    assert "2 times one after another" in told[1]["event"] and "Free some" in told[1]["event"]
    assert bench.engine.loop.snapshots.failure_note == told[1]["event"]
    bench.log.snapshot_fails = None
    anyio.run(bench.engine.commit, [MemberSeen("otto")])
    assert bench.engine.loop.snapshots.failure_note == ""


def test_a_full_inbox_makes_the_bringer_wait() -> None:
    bench = Bench()

    async def run() -> bool:
        for _ in range(INBOX_FACTS_MAX):
            await bench.engine.observe(LinkUp(1))
        with anyio.move_on_after(0.05) as scope:
            await bench.engine.observe(LinkUp(1))
        return scope.cancelled_caught

    assert anyio.run(run)
