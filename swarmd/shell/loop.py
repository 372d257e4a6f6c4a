"""The loop through which everything passes: facts in, one durable commit, commands out. It never waits.

A driver asks for the facts that are next, has them written, and has what was written adopted; between two of these it
waits as it likes. `step` runs before the write, in memory, because the commit holds the digest of the commands that it
causes; its result is adopted, shown and handed out only after the commit is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from swarmd.core.applied import Applied, Projection, advance
from swarmd.core.commands import Command
from swarmd.core.events import Event, NodeStarted, NodeStopped, TimerFired
from swarmd.core.state import Deadline, State, next_deadline
from swarmd.errors import CommitTooLarge
from swarmd.eventlog.digest import digest_commands
from swarmd.shell.batches import ROW_MIN, as_one, in_halves, row_length
from swarmd.shell.ports import CommandPort, CommitLog
from swarmd.shell.snapshots import Snapshots

INBOX_FACTS_MAX = 1024  # at the bound whoever brings a fact waits
BATCH_FACTS_MAX = 64  # events of one commit, before skips; those of `swarmd.shell.batches` are one
WAIT_S_MAX = 30.0  # longest time without a look at the clock, so that a clock set anew is noticed


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What a batch of facts comes to.

    Attributes:
        journal: the events to commit, applied; rounds that they skip are among them.
        state: after all of them.
        commands: of all of them, in order.
    """

    journal: tuple[Applied, ...]
    state: State
    commands: tuple[Command, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """The events to commit."""
        return tuple([applied.envelope.event for applied in self.journal])


def plan(state: State, next_seq: int, at: float, facts: Sequence[Event]) -> Plan:
    """Apply a batch of facts in memory. Pure."""
    journal = tuple(advance(state, next_seq, at, facts))
    if len(journal) == 1:
        return Plan(journal, journal[0].after, journal[0].commands)
    after = journal[-1].after if journal else state
    return Plan(journal, after, tuple([command for applied in journal for command in applied.commands]))


class Loop:
    """One life of a node's daemon, from the fold of its log to `NodeStopped`.

    Args:
        event_log: where commits go; this loop is its only writer.
        state: what the log so far comes to.
        projections: take each durable event, before the commands of its commit go out.
        inbox_max: facts that may wait.

    Attributes:
        state: what all that was adopted comes to.
        ended: the event that ended this life; None while it goes on.
        snapshots: those of the log.
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
        self.snapshots = Snapshots(event_log)
        self._log = event_log
        self._projections = tuple(projections)
        self._inbox: deque[Event] = deque()
        self._inbox_max = inbox_max
        self._beginning: NodeStarted | None = None
        self._fired: set[Deadline] = set()  # timers reported while their deadline still stands in the state
        self._ports: CommandPort[Command] | None = None

    def connect(self, ports: CommandPort[Command]) -> None:
        """Say where commands go; before the first commit."""
        self._ports = ports

    # --- facts ---

    @property
    def next_seq(self) -> int:
        """Sequence number of the next event."""
        return self._log.next_seq

    @property
    def has_facts(self) -> bool:
        """Whether any wait in the inbox."""
        return bool(self._inbox)

    def offer(self, fact: Event) -> bool:
        """Put a fact into the inbox. False, and nothing done, while that is full."""
        if len(self._inbox) >= self._inbox_max:
            return False
        self._inbox.append(fact)
        return True

    def begin(self, started: NodeStarted) -> None:
        """Have this life begin with a commit of its own, whatever deadlines of the last one have passed meanwhile."""
        self._beginning = started

    def next_facts(self, now: float) -> list[Event]:
        """Take the batch that is to be committed next: the beginning of this life, else deadlines that have passed,
        else what waits in the inbox.

        Args:
            now: this machine's clock, POSIX seconds.
        """
        if self._beginning is not None:
            beginning, self._beginning = self._beginning, None
            return [beginning]
        return self._due_timers(now) or self._take_waiting()

    def idle_s(self, now: float) -> float:
        """How long nothing is to be done unless a fact comes; `WAIT_S_MAX` at most."""
        if self._inbox:
            return 0.0
        waiting = [deadline.due_at for deadline in self.state.deadlines if deadline not in self._fired]
        return max(0.0, min(WAIT_S_MAX, min(waiting) - now)) if waiting else WAIT_S_MAX

    def _due_timers(self, now: float) -> list[Event]:
        """Timers whose deadline has passed, earliest first; each is reported once."""
        first = next_deadline(self.state)
        if first is None or first.due_at > now:
            return []
        due = [each for each in self.state.deadlines if each.due_at <= now and each not in self._fired]
        due = sorted(due, key=lambda each: each.due_at)[:BATCH_FACTS_MAX]
        self._fired.update(due)
        return [TimerFired(each.name, each.due_at) for each in due]

    def _take_waiting(self) -> list[Event]:
        """The facts that wait, up to the stop: with it a life ends."""
        facts: list[Event] = []
        while self._inbox and len(facts) < BATCH_FACTS_MAX:
            length = row_length(self._inbox)
            if length < ROW_MIN:
                length = min(length, BATCH_FACTS_MAX - len(facts))
            facts += as_one([self._inbox.popleft() for _ in range(length)])
            if isinstance(facts[-1], NodeStopped):
                break
        return facts

    # --- commits ---

    def write(self, at: float, facts: Sequence[Event]) -> list[Plan]:
        """Make facts durable, in one commit or, where that would be too large, in several. Blocks; in any thread.

        Nothing of it is in force before `adopt`.

        Args:
            at: this machine's clock, POSIX seconds.

        Raises:
            LogWriteFailed, NoSpaceLeft: as the log raises them; the process must end.
            CommitTooLarge: a single fact is too large; none of a worker's is, for its frames are smaller than commits.
        """
        return self._write(self.state, at, facts)

    def _write(self, state: State, at: float, facts: Sequence[Event]) -> list[Plan]:
        planned = plan(state, self._log.next_seq, at, facts)
        try:
            self._log.append(at, planned.events, digest_commands(planned.commands))
        except CommitTooLarge:
            halves = in_halves(facts)
            if halves is None:
                raise
            first = self._write(state, at, halves[0])
            return first + self._write(first[-1].state, at, halves[1])
        self.snapshots.keep_if_due(planned.state)
        return [planned]

    def adopt(self, written: Sequence[Plan]) -> None:
        """Take over what was written: its state, then the projections, then its commands to their ports."""
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
            self._hand_out(planned.commands)

    def _hand_out(self, commands: Sequence[Command]) -> None:
        assert self._ports is not None or not commands, "commands have nowhere to go before `connect`"
        for command in commands:
            self._ports.perform(command)  # type: ignore[union-attr]
