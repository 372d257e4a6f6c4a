"""The loop through which everything passes: facts in, one durable commit, commands out. It never waits.

- A driver takes the next facts, has them written, and has what was written adopted; between these calls it may wait.
  `step` runs before the write, in memory, because the commit holds the digest of the commands that it causes; the new
  state is adopted, and the commands leave, only after the commit is durable.
- Consecutive facts of one kind (reports of a stage, memberships) become one event, which means the same as the facts
  one after the other. This shortens the log of a large swarm, and its coordinator makes one state of a thousand
  reports. If they are few they stay single events, because people read each line of a small swarm's log.
- A snapshot that cannot be kept costs only time at the next start, so it does not end the node.
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

# Takes a command and returns at once; what comes of it, or goes wrong, is a fact, later. Raises nothing. Commands are
# known by their ids, and one for a worker that is not there is dropped: it is given again when the worker is up.
PerformCommand = Callable[[Command], None]
# Takes an event for the log; waits while the inbox is full. Those of one caller keep their order. Raises nothing: the
# node ends if its log cannot be written, and the call is cancelled.
ObserveEvent = Callable[[Event], Coroutine[Any, Any, None]]


class CommitLog(Protocol):
    """Where commits are made durable: `swarmd.eventlog.store.EventLog`, or a simulated disk."""

    @property
    def next_seq(self) -> int:
        """Sequence number of the next event."""
        ...

    def append(self, at: float, events: Sequence[Event], commands_digest: bytes) -> object:
        """Write one commit and make it durable; blocks.

        Raises CommitTooLarge if nothing was written; LogWriteFailed or NoSpaceLeft if it may or may not be durable, and
        the process must end.
        """
        ...

    @property
    def is_snapshot_due(self) -> bool:
        """Whether a snapshot of the state should be taken now."""
        ...

    def write_snapshot(self, state: State) -> object:
        """Keep the fold of all events so far, and remove the oldest segments by budget; blocks.

        Raises LogWriteFailed, NoSpaceLeft, LogDamaged: there is no such snapshot, and the log goes on without it.
        """
        ...


ROW_MIN = 16  # facts of one kind from which on they become one event
ROW_MAX = 1024  # facts in one such event


def count_mergeable_facts(waiting: Iterable[Event]) -> int:
    """How many of the waiting facts, from the first on, may become one event: 1 to `ROW_MAX`."""
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
    """A key that is equal for facts which may become one event; None for facts that never do."""
    if isinstance(fact, ReportSeen):
        return fact.round, fact.stage
    return (-1, -1) if isinstance(fact, MemberSeen) else None


def merge_facts(row: list[Event]) -> list[Event]:
    """One event for consecutive facts of one kind; the facts themselves if they are few."""
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
    """Facts in two parts that mean the same, also the parts of one event; None if there are no parts."""
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
        """Take a snapshot of the state if one is due; if that fails, one is due again with the next segment."""
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
        """A note for the operator that the last snapshot could not be kept, and why; empty if it could."""
        if self._error is None:
            return ""
        times = "" if self.failed == 1 else f", {self.failed} times one after another"
        return f"no snapshot of the log could be kept{times}; it is tried again with the next segment: {self._error}"


INBOX_FACTS_MAX = 1024  # at the bound `offer` refuses facts
BATCH_FACTS_MAX = 64  # events of one commit, before skips; many facts that became one event count as one
WAIT_S_MAX = 30.0  # longest wait, so that a clock that was set is noticed


class PlannedCommit(msgspec.Struct, frozen=True, gc=False):
    """The result of a batch of facts: the events to commit, with rounds that they skip, the state and the commands."""

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

    This loop is the log's only writer. Projections get each durable event before the commands of its commit leave.
    `state`: after all commits that were adopted. `ended`: the event that ended this run; None while it goes on.
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
        self._fired: set[Deadline] = set()  # timers reported while their deadline still stands in the state
        self._perform: PerformCommand | None = None

    def set_command_handler(self, perform: PerformCommand) -> None:
        """Set what carries out commands; call it before the first commit."""
        self._perform = perform

    # --- facts ---

    @property
    def next_seq(self) -> int:
        """Sequence number of the next event."""
        return self._log.next_seq

    @property
    def has_facts(self) -> bool:
        """Whether facts wait in the inbox."""
        return bool(self._inbox)

    def offer_fact(self, fact: Event) -> bool:
        """Put a fact into the inbox. False if it is full."""
        if len(self._inbox) >= self._inbox_max:
            return False
        self._inbox.append(fact)
        return True

    def start_run(self, started: NodeStarted) -> None:
        """Begin this run with a commit of its own, before any deadline of the last run that has passed meanwhile."""
        self._beginning = started

    def take_next_facts(self, now: float) -> list[Event]:
        """Take the next batch to commit: the beginning of this run, else deadlines that have passed by `now` (POSIX
        seconds), else what waits in the inbox.
        """
        if self._beginning is not None:
            beginning, self._beginning = self._beginning, None
            return [beginning]
        return self._take_due_timers(now) or self._take_waiting_facts()

    def idle_s(self, now: float) -> float:
        """How long there is nothing to do unless a fact comes; at most `WAIT_S_MAX`."""
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
        """Take waiting facts, at most up to `NodeStopped`, which ends the run."""
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
        """Make facts durable, in one commit or, if that would be too large, in several. Blocks; in any thread.

        Nothing takes effect before `adopt_commits`. Raises LogWriteFailed or NoSpaceLeft, after which the process must
        end, and CommitTooLarge for a single fact. Facts of workers are never that large, for frames are smaller than
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
        """Adopt what was written: first the state, then the projections, then the commands."""
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
