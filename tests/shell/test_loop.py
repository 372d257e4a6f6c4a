"""The loop without its drivers; `tests/daemon/test_engine.py` has it with the daemon's, `tests/sim` with a world."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import Command, StartWorker
from swarmd.core.events import (
    Event,
    MemberLeft,
    MemberSeen,
    NodeStarted,
    NodeStopped,
    ReportSeen,
    TimerFired,
    reports_in,
)
from swarmd.core.state import Deadline, State
from swarmd.core.values import Settings
from swarmd.errors import CommitTooLarge
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.snapshot import list_snapshots, snapshot_directory
from swarmd.eventlog.store import EventLog
from swarmd.shell.loop import BATCH_FACTS_MAX, ROW_MAX, WAIT_S_MAX, NodeLoop

STARTED = NodeStarted(Settings("me", "test", "follower", "boss"), "run")


class MemoryLog:
    """Keeps commits of at most so many events in memory; fails on demand."""

    def __init__(self, events_max: int = 100) -> None:
        self.commits: list[tuple[Event, ...]] = []
        self.next_seq = 0
        self.events_max = events_max
        self.fails: Exception | None = None
        self.is_snapshot_due = False
        self.snapshot_fails: Exception | None = None

    def append(self, at: float, events: Sequence[Event], commands_digest: bytes) -> None:
        if self.fails:
            raise self.fails
        if len(events) > self.events_max:
            raise CommitTooLarge("too large")
        self.commits.append(tuple(events))
        self.next_seq += len(events)

    def write_snapshot(self, state: State) -> None:
        if self.snapshot_fails:
            raise self.snapshot_fails


class Told:
    """A projection, and a port."""

    def __init__(self) -> None:
        self.journal: list[AppliedEvent] = []
        self.commands: list[Command] = []

    def apply(self, applied: AppliedEvent) -> None:
        self.journal.append(applied)

    def perform(self, command: Command) -> None:
        self.commands.append(command)


def test_a_life_begins_with_a_commit_of_its_own_before_old_deadlines_and_facts() -> None:
    loop = NodeLoop(MemoryLog(), State(deadlines=(Deadline("clock", 5.0),)))
    loop.offer_fact(MemberSeen("anna"))
    loop.start_run(STARTED)
    taken = [loop.take_next_facts(10.0) for _ in range(4)]
    assert taken == [[STARTED], [TimerFired("clock", 5.0)], [MemberSeen("anna")], []]


def test_nothing_of_what_is_written_is_in_force_before_it_is_adopted() -> None:
    told = Told()
    loop = NodeLoop(MemoryLog(), State(), (told,))
    loop.set_command_handler(told.perform)
    written = loop.write_commits(1.0, [STARTED])
    assert (loop.state, told.journal, told.commands, loop.next_seq) == (State(), [], [], 1)
    loop.adopt_commits(written)
    assert loop.state.settings == STARTED.settings and len(told.journal) == 1
    assert [type(command) for command in told.commands] == [StartWorker, StartWorker]


def test_parts_of_a_commit_that_is_too_large_go_on_from_each_other() -> None:
    told, log = Told(), MemoryLog(events_max=2)
    loop = NodeLoop(log, State(), (told,))
    loop.set_command_handler(told.perform)
    facts = [STARTED, *(MemberSeen(f"peer{number}") for number in range(5))]
    loop.adopt_commits(loop.write_commits(1.0, facts))
    assert [event for commit in log.commits for event in commit] == facts
    assert [applied.seq for applied in told.journal] == list(range(6))
    assert all(now.before == then.after for then, now in zip(told.journal, told.journal[1:], strict=False))


def test_a_row_that_is_too_large_for_a_commit_is_written_in_parts(tmp_path: Path) -> None:
    """A network worker that was taken over may bring reports of any size that fits a frame."""
    record = bytes(64 * 1024)
    seen: list[Event] = [ReportSeen(f"peer {number}", 0, 0, 0.5, "", record) for number in range(ROW_MAX)]
    with EventLog.open(tmp_path, "me", "run") as log:
        loop = NodeLoop(log, State())
        for fact in seen:
            loop.offer_fact(fact)
        facts = loop.take_next_facts(1.0)
        assert len(facts) == 1, "they are one event"
        written = loop.write_commits(1.0, facts)
    assert len(written) > 1
    told = [report for commit in read_commits(tmp_path) for event in commit.events for report in reports_in(event)]
    assert told == seen


def test_a_snapshot_that_cannot_be_kept_is_counted_and_due_again_with_the_next_segment(tmp_path: Path) -> None:
    told = Told()
    with EventLog.open(tmp_path, "me", "run", segment_bytes=300) as log:
        loop = NodeLoop(log, State())
        loop.set_command_handler(told.perform)
        in_the_way = snapshot_directory(tmp_path)
        in_the_way.write_text("a file where the directory should be")
        for _ in range(100):
            loop.adopt_commits(loop.write_commits(1.0, [MemberSeen("anna")]))
        assert 2 < loop.snapshots.failed < 50 and str(in_the_way) in loop.snapshots.failure_note
        in_the_way.unlink()
        while loop.snapshots.failure_note:
            loop.adopt_commits(loop.write_commits(1.0, [MemberSeen("anna")]))
            assert loop.next_seq < 200
        assert loop.snapshots.failed == 0 and len(list_snapshots(tmp_path)) == 1
    assert load_state(tmp_path) == (loop.state, loop.next_seq)


def test_waiting_facts_share_one_commit_up_to_the_bound() -> None:
    loop = NodeLoop(MemoryLog(), State())
    facts = [MemberLeft(f"peer{number}") for number in range(BATCH_FACTS_MAX + 6)]
    for fact in facts:
        loop.offer_fact(fact)
    assert [loop.take_next_facts(1.0) for _ in range(2)] == [facts[:BATCH_FACTS_MAX], facts[BATCH_FACTS_MAX:]]


def test_timers_that_are_due_together_come_earliest_first_and_once() -> None:
    """Also while the state still holds their deadlines."""
    waits = {"late": 900.0, "early": 800.0, "ahead": 1001.0}
    loop = NodeLoop(MemoryLog(), State(deadlines=tuple(Deadline(name, due_at) for name, due_at in waits.items())))
    assert loop.take_next_facts(1000.0) == [TimerFired("early", 800.0), TimerFired("late", 900.0)]
    assert loop.take_next_facts(1000.0) == [] and loop.idle_s(1000.0) == 1.0


def test_a_single_fact_that_is_too_large_is_an_error() -> None:
    with pytest.raises(CommitTooLarge):
        NodeLoop(MemoryLog(events_max=0), State()).write_commits(1.0, [STARTED])


def test_a_full_inbox_takes_nothing_until_facts_were_taken_out() -> None:
    loop = NodeLoop(MemoryLog(), State(), inbox_max=2)
    assert [loop.offer_fact(MemberSeen(name)) for name in "abc"] == [True, True, False]
    assert loop.take_next_facts(0.0) == [MemberSeen("a"), MemberSeen("b")]
    assert loop.offer_fact(MemberSeen("c"))


def test_it_may_sleep_until_the_first_deadline_and_not_while_facts_wait() -> None:
    loop = NodeLoop(MemoryLog(), State(deadlines=(Deadline("late", 20.0), Deadline("early", 12.0))))
    assert (loop.idle_s(10.0), loop.idle_s(13.0)) == (2.0, 0.0)
    assert NodeLoop(MemoryLog(), State(deadlines=(Deadline("far", 1e6),))).idle_s(10.0) == WAIT_S_MAX
    loop.offer_fact(MemberSeen("anna"))
    assert loop.idle_s(10.0) == 0.0


def test_a_life_ends_with_its_stop_and_what_was_brought_later_is_left() -> None:
    told = Told()
    loop = NodeLoop(MemoryLog(), State(), (told,))
    loop.set_command_handler(told.perform)
    for fact in (STARTED, NodeStopped("enough", 3), MemberSeen("late")):
        loop.offer_fact(fact)
    loop.adopt_commits(loop.write_commits(1.0, loop.take_next_facts(1.0)))
    assert loop.ended == NodeStopped("enough", 3) and len(told.journal) == 2
