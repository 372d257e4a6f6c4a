"""Applies events to states one by one. Every reader of a journal gets `AppliedEvent`s.

The events may come from a live node, a log, a snapshot and the events after it, or a simulated node: `fold_envelopes`
yields `AppliedEvent`s, and a `Projection` consumes them. Events that a live node observes go through `apply_facts`:
rounds that pass without the node become one event, recorded before the event that showed it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from swarmd.core.commands import Command
from swarmd.core.events import Envelope, Event, RoundsSkipped
from swarmd.core.state import State
from swarmd.core.step import step
from swarmd.core.values import SkipCause

StepRule = Callable[[State, Envelope], tuple[State, tuple[Command, ...]]]  # `step`, or one with other charts bound


class AppliedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event with the states before and after it, and its commands."""

    envelope: Envelope
    before: State
    after: State
    commands: tuple[Command, ...]

    @property
    def seq(self) -> int:
        """Sequence number of the event."""
        return self.envelope.seq

    @property
    def at(self) -> float:
        """POSIX seconds of its commit."""
        return self.envelope.at

    @property
    def event(self) -> Event:
        return self.envelope.event


class Projection(Protocol):
    """Computes something from a journal: metrics, lines, a page, a check."""

    def apply(self, applied: AppliedEvent) -> None:
        """Handle the next event, in the order of the log and once each. Must return at once."""
        ...


def apply_event(state: State, envelope: Envelope, rule: StepRule = step) -> AppliedEvent:
    """Apply one event to a state, which stays unchanged."""
    after, commands = rule(state, envelope)
    return AppliedEvent(envelope, state, after, commands)


def fold_envelopes(envelopes: Iterable[Envelope], state: State | None = None) -> Iterator[AppliedEvent]:
    """Apply consecutive events, and yield each result. `envelopes` must continue without gaps where `state` ends; by
    default it starts from the empty state before event 0."""
    now = State() if state is None else state
    for envelope in envelopes:
        after, commands = step(now, envelope)
        yield AppliedEvent(envelope, now, after, commands)
        now = after


def apply_facts(state: State, seq: int, at: float, facts: Sequence[Event]) -> list[AppliedEvent]:
    """Apply a batch of facts in memory; if a fact moves the node past rounds, a `RoundsSkipped` is applied before it.
    `seq`: sequence number of the next event. `at`: commit time of them all, POSIX seconds."""
    journal: list[AppliedEvent] = []
    for fact in facts:
        applied = apply_event(state, Envelope(seq, at, fact))
        skipped = find_skipped_rounds(state, applied.after)
        if skipped is not None:
            first = apply_event(state, Envelope(seq, at, skipped))
            journal.append(first)
            seq += 1
            applied = apply_event(first.after, Envelope(seq, at, fact))
        journal.append(applied)
        state = applied.after
        seq += 1
    return journal


def find_skipped_rounds(before: State, after: State) -> RoundsSkipped | None:
    """Return the rounds that one step moved the node past, to be recorded before that step's event."""
    first = max(after.done[0], after.skipped_to) + 1
    last = _reached_round(after) - 1
    return None if first > last else RoundsSkipped(first, last, skip_cause_of(before))


def _reached_round(state: State) -> int:
    """Return the node's current round; the total number of rounds if it waits after the swarm's last one."""
    if state.clock is not None and state.clock.final and state.chart == "waiting":
        return state.clock.round
    return 0 if state.work is None else state.work.round


def skip_cause_of(state: State) -> SkipCause:
    """Return why rounds were missed: the node joined late, had a fault, was stopped, or was slow."""
    if state.done[0] < 0 and state.skipped_to < 0 and state.work is None:
        return "late"
    if state.faulted:
        return "fault"
    return "stopped" if state.stopped else "slow"
