"""The one loop through which everything passes: facts in, one durable commit, commands out.

`step` runs before the write, in memory, because the commit holds the digest of the commands it causes; its result is
adopted, logged and dispatched only after the commit is on disk (law 2). While the disk works the loop waits in a
thread, so supervisors, signals and status go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import anyio
import msgspec
import structlog
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from swarmd.core.applied import Applied, Projection
from swarmd.core.catchup import advance
from swarmd.core.chart import GAPS
from swarmd.core.commands import Command
from swarmd.core.events import Event, NodeStopped, TimerFired
from swarmd.core.state import Deadline, State, next_deadline
from swarmd.core.step import RULES
from swarmd.daemon.clock import Clock
from swarmd.errors import CommitTooLarge
from swarmd.eventlog.digest import digest_commands

INBOX_FACTS_MAX = 1024  # at the bound whoever brings a fact waits
BATCH_FACTS_MAX = 64  # facts of one commit
WAIT_S_MAX = 30.0  # longest time without a look at the clock, so that a clock set anew is noticed

log = structlog.get_logger("swarmd.engine")


class EventLog(Protocol):
    """What the engine needs of `swarmd.eventlog.store.EventLog`."""

    @property
    def next_seq(self) -> int:
        """Sequence number the next event gets."""
        ...

    def append(self, at: float, events: Sequence[Event], commands_digest: bytes, rules: int) -> object:
        """Write one commit and make it durable. Raises LogWriteFailed, NoSpaceLeft or CommitTooLarge."""
        ...

    @property
    def snapshot_due(self) -> bool:
        """Whether a snapshot of the state should be taken now."""
        ...

    def write_snapshot(self, state: State, rules: int) -> object:
        """Keep the fold of all events so far, and let the oldest segments go by budget."""
        ...


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What a batch of facts comes to, before anything is written."""

    journal: tuple[Applied, ...]
    state: State
    commands: tuple[Command, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(applied.event for applied in self.journal)


def plan(state: State, next_seq: int, at: float, facts: Sequence[Event]) -> Plan:
    """Apply a batch of facts in memory. Pure."""
    journal = tuple(advance(state, next_seq, at, facts))
    return Plan(
        journal,
        journal[-1].after if journal else state,
        tuple(command for applied in journal for command in applied.commands),
    )


class Engine:
    """Owns the state.

    Args:
        event_log: where commits go; this engine is its only writer.
        state: what the log so far comes to.
        clock: wall-clock time.
        dispatch: takes each command of a durable commit; must not block.
        projections: take each durable event, before the commands of its commit are dispatched.
        pulse: called on every turn of the loop, at least every `pulse_s`; feeds systemd's watchdog.
    """

    def __init__(
        self,
        event_log: EventLog,
        state: State,
        clock: Clock,
        dispatch: Callable[[Command], None],
        projections: Sequence[Projection] = (),
        pulse: Callable[[], None] = lambda: None,
        pulse_s: float = WAIT_S_MAX,
    ) -> None:
        self.state = state
        self._log = event_log
        self._clock = clock
        self._dispatch = dispatch
        self._projections = tuple(projections)
        self._pulse = pulse
        self._wait_s_max = min(pulse_s, WAIT_S_MAX)
        self._fired: set[Deadline] = set()  # timers reported while their deadline still stands in the state
        self._inbox_end: MemoryObjectSendStream[Event]
        self._inbox: MemoryObjectReceiveStream[Event]
        self._inbox_end, self._inbox = anyio.create_memory_object_stream[Event](INBOX_FACTS_MAX)

    @property
    def next_seq(self) -> int:
        """Sequence number of the next event."""
        return self._log.next_seq

    async def observe(self, event: Event) -> None:
        """Bring a fact; waits while the inbox is full."""
        await self._inbox_end.send(event)

    async def run(self) -> NodeStopped:
        """Commit facts until the node has stopped.

        Raises:
            LogWriteFailed: a commit could not be made durable; its facts had no effect.
        """
        while True:
            self._pulse()
            facts = self._due_timers() or await self._receive()
            if not facts:
                continue
            await self.commit(facts)
            if isinstance(facts[-1], NodeStopped):
                return facts[-1]

    async def commit(self, facts: Sequence[Event]) -> None:
        """Make one batch of facts durable, then adopt it and act on it. Only `run` and the start-up call this."""
        at = self._clock.now()
        planned = plan(self.state, self._log.next_seq, at, facts)
        if not planned.journal:
            return
        try:
            await to_thread.run_sync(self._append, at, planned)
        except CommitTooLarge:
            if len(facts) == 1:
                raise
            middle = len(facts) // 2
            await self.commit(facts[:middle])
            await self.commit(facts[middle:])
        else:
            self._adopt(planned)

    def _adopt(self, planned: Plan) -> None:
        self.state = planned.state
        for gap in GAPS.told():
            log.warning("no chart says what this means here; nothing was changed", gap=gap, seq=self.next_seq - 1)
        self._fired &= set(self.state.deadlines)
        for applied in planned.journal:
            for projection in self._projections:
                projection.apply(applied)
        for command in planned.commands:
            self._dispatch(command)

    def _append(self, at: float, planned: Plan) -> None:
        self._log.append(at, planned.events, digest_commands(planned.commands), RULES)
        if self._log.snapshot_due:
            self._log.write_snapshot(planned.state, RULES)

    async def _receive(self) -> list[Event]:
        """The facts that wait, or none when a deadline or the pulse comes first."""
        facts: list[Event] = []
        with anyio.move_on_after(self._wait_s()):
            facts.append(await self._inbox.receive())
        while facts and len(facts) < BATCH_FACTS_MAX and not isinstance(facts[-1], NodeStopped):
            try:
                facts.append(self._inbox.receive_nowait())
            except anyio.WouldBlock:
                break
        return facts

    def _wait_s(self) -> float:
        waiting = [deadline.due_at for deadline in self.state.deadlines if deadline not in self._fired]
        if not waiting:
            return self._wait_s_max
        return max(0.0, min(self._wait_s_max, min(waiting) - self._clock.now()))

    def _due_timers(self) -> list[Event]:
        """Timers whose deadline has passed, earliest first; each is reported once."""
        first = next_deadline(self.state)
        if first is None or first.due_at > self._clock.now():
            return []
        now = self._clock.now()
        due = [each for each in self.state.deadlines if each.due_at <= now and each not in self._fired]
        due = sorted(due, key=lambda each: each.due_at)[:BATCH_FACTS_MAX]
        self._fired.update(due)
        return [TimerFired(each.name, each.due_at) for each in due]
