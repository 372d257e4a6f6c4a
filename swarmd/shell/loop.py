"""The node's loop: facts in, one durable commit, commands out. It never waits.

- A driver takes the next facts, has them written, and then has the result adopted; between these calls it may wait.
  `step` runs in memory before the write, because the commit holds a digest of the commands that it causes; the new
  state is adopted, and the commands are issued, only after the commit is durable.
- Consecutive facts of one kind (reports of a stage, memberships) become one event with the same meaning. This shortens
  a large swarm's log, and its coordinator makes one new state for a thousand reports. A few facts stay single events,
  because people read a small swarm's log line by line.
- A snapshot that cannot be written only slows the next start, so it does not end the node.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from swarmd.core.applied import AppliedEvent, Projection, apply_facts
from swarmd.core.commands import Command
from swarmd.core.events import (
    Event,
    MemberRow,
    MemberSeen,
    MembersSeen,
    NodeStarted,
    NodeStopped,
    ReportRow,
    ReportSeen,
    ReportsSeen,
    TimerFired,
)
from swarmd.core.state import Deadline, State, next_deadline
from swarmd.errors import CommitTooLarge, LogDamaged, LogWriteFailed
from swarmd.eventlog.frame import digest_commands

# Takes a command and returns at once; results and failures come later, as facts. Raises nothing. Commands have ids, and
# one for a worker that does not run is dropped: it is issued again when the worker is up.
PerformCommand = Callable[[Command], None]
# Takes an event for the log; waits while the inbox is full. Events of one caller keep their order. Raises nothing: if
# the log cannot be written, the node ends and the call is cancelled.
ObserveEvent = Callable[[Event], Coroutine[Any, Any, None]]


class CommitLog(Protocol):
    """Makes commits durable: `swarmd.eventlog.store.EventLog`, or a simulated disk."""

    @property
    def next_seq(self) -> int:
        """Sequence number of the next event."""
        ...

    def append(self, at: float, events: Sequence[Event], commands_digest: bytes) -> object:
        """Write one commit durably; blocks.

        Raises CommitTooLarge if nothing was written; LogWriteFailed or NoSpaceLeft if it may or may not be durable, and
        the process must end.
        """
        ...

    @property
    def is_snapshot_due(self) -> bool:
        """Whether a snapshot of the state should be taken now."""
        ...

    def write_snapshot(self, state: State) -> object:
        """Write a snapshot of all events so far, and remove the oldest segments beyond the budget; blocks.

        Raises LogWriteFailed, NoSpaceLeft, LogDamaged: there is no such snapshot, and the log stays usable.
        """
        ...


ROW_MIN = 16  # fewer consecutive facts of one kind stay single events
ROW_MAX = 1024  # facts in one such event


def count_mergeable_facts(waiting: Iterable[Event]) -> int:
    """How many of the waiting facts, from the first, may be merged into one event: 1 to `ROW_MAX`."""
    row = islice(waiting, ROW_MAX)
    kind = _merge_key(next(row))
    if kind is None:
        return 1
    length = 1
    for fact in row:
        if _merge_key(fact) != kind:
            break
        length += 1
    return length


def _merge_key(fact: Event) -> tuple[int, int] | None:
    """Facts with equal keys may be merged; None for facts that never are."""
    if isinstance(fact, ReportSeen):
        return fact.round, fact.stage
    return (-1, -1) if isinstance(fact, MemberSeen) else None


def merge_facts(row: list[Event]) -> list[Event]:
    """Merge consecutive facts of one kind into one event; a few are returned unchanged."""
    if len(row) < ROW_MIN:
        return row
    first = row[0]
    if isinstance(first, ReportSeen):
        reports = [
            ReportRow(each.peer, each.reward, each.digest, each.record, each.worked)
            for each in row
            if isinstance(each, ReportSeen)
        ]
        return [ReportsSeen(first.round, first.stage, tuple(reports))]
    members = [MemberRow(each.peer, each.name, each.worked) for each in row if isinstance(each, MemberSeen)]
    return [MembersSeen(tuple(members))]


def split_facts(facts: Sequence[Event]) -> tuple[Sequence[Event], Sequence[Event]] | None:
    """Split facts into two halves with the same meaning, a merged event too; None if they cannot be split."""
    if len(facts) > 1:
        middle = len(facts) // 2
        return facts[:middle], facts[middle:]
    fact = facts[0]
    if isinstance(fact, ReportsSeen) and fact.count > 1:
        middle = fact.count // 2
        return [replace(fact, reports=fact.reports[:middle])], [replace(fact, reports=fact.reports[middle:])]
    if isinstance(fact, MembersSeen) and fact.count > 1:
        middle = fact.count // 2
        return [MembersSeen(fact.members[:middle])], [MembersSeen(fact.members[middle:])]
    return None


class SnapshotTaker:
    """Takes snapshots, and counts consecutive failures."""

    def __init__(self, event_log: CommitLog) -> None:
        self.failed = 0
        self._log = event_log
        self._error: LogDamaged | LogWriteFailed | None = None

    def take_if_due(self, state: State) -> None:
        """Write a snapshot if one is due; after a failure, the next is due with the next segment."""
        if not self._log.is_snapshot_due:
            return
        try:
            self._log.write_snapshot(state)
        except (LogDamaged, LogWriteFailed) as error:
            self.failed, self._error = self.failed + 1, error
        else:
            self.failed, self._error = 0, None

    @property
    def failure_note(self) -> str:
        """Why the last snapshot could not be written, for the operator; empty if it could."""
        if self._error is None:
            return ""
        times = "" if self.failed == 1 else f", {self.failed} times one after another"
        return f"no snapshot of the log could be kept{times}; it is tried again with the next segment: {self._error}"


INBOX_FACTS_MAX = 1024  # beyond this, `offer_fact` refuses facts
BATCH_FACTS_MAX = 64  # events in a commit, before skipped rounds; a merged event counts as one
WAIT_S_MAX = 30.0  # longest wait, so that a changed clock is noticed


class PlannedCommit(msgspec.Struct, frozen=True, gc=False):
    """A batch applied in memory: the events to commit, with rounds that they skip, the new state and the commands."""

    journal: tuple[AppliedEvent, ...]
    state: State
    commands: tuple[Command, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """The events to commit."""
        return tuple([applied.envelope.event for applied in self.journal])


def plan_commit(state: State, next_seq: int, at: float, facts: Sequence[Event]) -> PlannedCommit:
    """Apply a batch of facts in memory. Pure."""
    journal = tuple(apply_facts(state, next_seq, at, facts))
    if len(journal) == 1:
        return PlannedCommit(journal, journal[0].after, journal[0].commands)
    after = journal[-1].after if journal else state
    return PlannedCommit(journal, after, tuple([command for applied in journal for command in applied.commands]))


class NodeLoop:
    """One run of a node's daemon, from the fold of its log to `NodeStopped`.

    This loop is the log's only writer. Projections get each durable event before its commit's commands are issued.
    `state`: after all adopted commits. `ended`: the event that ended this run; None while it goes on.
    """

    def __init__(
        self,
        event_log: CommitLog,
        state: State,
        projections: Sequence[Projection] = (),
        inbox_max: int = INBOX_FACTS_MAX,
    ) -> None:
        self.state = state
        self.ended: NodeStopped | None = None
        self.snapshots = SnapshotTaker(event_log)
        self._log = event_log
        self._projections = tuple(projections)
        self._inbox: deque[Event] = deque()
        self._inbox_max = inbox_max
        self._beginning: NodeStarted | None = None
        self._fired: set[Deadline] = set()  # reported deadlines that are still in the state
        self._perform: PerformCommand | None = None

    def set_command_handler(self, perform: PerformCommand) -> None:
        """Set the function that carries out commands; must precede the first commit."""
        self._perform = perform

    # --- facts ---

    @property
    def next_seq(self) -> int:
        """Sequence number of the next event."""
        return self._log.next_seq

    @property
    def has_facts(self) -> bool:
        return bool(self._inbox)

    def offer_fact(self, fact: Event) -> bool:
        """Put a fact into the inbox. False if it is full."""
        if len(self._inbox) >= self._inbox_max:
            return False
        self._inbox.append(fact)
        return True

    def start_run(self, started: NodeStarted) -> None:
        """Queue the start of this run, which gets its own commit before any expired deadline of the previous run."""
        self._beginning = started

    def take_next_facts(self, now: float) -> list[Event]:
        """Take the next batch to commit: the start of this run, else deadlines before `now` (POSIX seconds), else facts
        from the inbox."""
        if self._beginning is not None:
            beginning, self._beginning = self._beginning, None
            return [beginning]
        return self._take_due_timers(now) or self._take_waiting_facts()

    def idle_s(self, now: float) -> float:
        """Seconds until the next deadline, at most `WAIT_S_MAX`; 0 if there is work now."""
        if self._inbox:
            return 0.0
        waiting = [deadline.due_at for deadline in self.state.deadlines if deadline not in self._fired]
        return max(0.0, min(WAIT_S_MAX, min(waiting) - now)) if waiting else WAIT_S_MAX

    def _take_due_timers(self, now: float) -> list[Event]:
        """Timers whose deadline has passed, earliest first; each is reported once."""
        first = next_deadline(self.state)
        if first is None or first.due_at > now:
            return []
        due = [each for each in self.state.deadlines if each.due_at <= now and each not in self._fired]
        due = sorted(due, key=lambda each: each.due_at)[:BATCH_FACTS_MAX]
        self._fired.update(due)
        return [TimerFired(each.name, each.due_at) for each in due]

    def _take_waiting_facts(self) -> list[Event]:
        """Take facts from the inbox, up to a `NodeStopped`, which ends the run."""
        facts: list[Event] = []
        while self._inbox and len(facts) < BATCH_FACTS_MAX:
            length = count_mergeable_facts(self._inbox)
            if length < ROW_MIN:
                length = min(length, BATCH_FACTS_MAX - len(facts))
            facts += merge_facts([self._inbox.popleft() for _ in range(length)])
            if isinstance(facts[-1], NodeStopped):
                break
        return facts

    # --- commits ---

    def write_commits(self, at: float, facts: Sequence[Event]) -> list[PlannedCommit]:
        """Write facts in one commit or, if that would be too large, in several. Blocks; callable in any thread.

        Nothing takes effect before `adopt_commits`. Raises LogWriteFailed or NoSpaceLeft, after which the process must
        end, and CommitTooLarge for a single fact, which cannot come from a worker, since frames are smaller than
        commits.
        """
        return self._write_or_split(self.state, at, facts)

    def _write_or_split(self, state: State, at: float, facts: Sequence[Event]) -> list[PlannedCommit]:
        planned = plan_commit(state, self._log.next_seq, at, facts)
        try:
            self._log.append(at, planned.events, digest_commands(planned.commands))
        except CommitTooLarge:
            halves = split_facts(facts)
            if halves is None:
                raise
            first = self._write_or_split(state, at, halves[0])
            return first + self._write_or_split(first[-1].state, at, halves[1])
        self.snapshots.take_if_due(planned.state)
        return [planned]

    def adopt_commits(self, written: Sequence[PlannedCommit]) -> None:
        """Adopt written commits: first the state, then the projections, then the commands."""
        for planned in written:
            self.state = planned.state
            if self._fired:
                self._fired.intersection_update(self.state.deadlines)
            for applied in planned.journal:
                for projection in self._projections:
                    projection.apply(applied)
            last = planned.journal[-1].event
            if isinstance(last, NodeStopped):
                self.ended = last
            for command in planned.commands:
                assert self._perform is not None, "commands have nowhere to go before `connect`"
                self._perform(command)
