"""Catching up: rounds that passed without this node become one fact, recorded before the event that showed it."""

from __future__ import annotations

from swarmd.core.chart import Charts
from swarmd.core.events import Envelope, Event, RoundsSkipped, SkipCause
from swarmd.core.state import State
from swarmd.core.step import step


def expand(state: State, envelope: Envelope, charts: Charts | None = None) -> tuple[Event, ...]:
    """The events to record for an observed one: itself, preceded by `RoundsSkipped` when it takes the node past rounds.

    Args:
        state: the state before.
        envelope: the observed event as it would be committed.
    """
    after, _ = step(state, envelope, charts)
    skipped = missed(state, after)
    return (envelope.event,) if skipped is None else (skipped, envelope.event)


def missed(before: State, after: State) -> RoundsSkipped | None:
    """The rounds that one step took the node past, to be recorded before the event of that step."""
    first = max(after.done[0], after.skipped_to) + 1
    last = _reached(after) - 1
    return None if first > last else RoundsSkipped(first, last, cause_of(before))


def _reached(state: State) -> int:
    """The round that the node is at; the number of all rounds when it waits after the swarm's last one."""
    if state.clock is not None and state.clock.final and state.chart == "waiting":
        return state.clock.round
    return 0 if state.work is None else state.work.round


def cause_of(state: State) -> SkipCause:
    """Why rounds were missed: it joined late, something broke, or it was slow."""
    if state.done[0] < 0 and state.skipped_to < 0 and state.work is None:
        return "late"
    return "fault" if state.faulted else "slow"
