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
    if after.work is None or (state.work is not None and after.work.round == state.work.round):
        return (envelope.event,)
    first = max(after.done[0], state.skipped_to) + 1
    last = after.work.round - 1
    if first > last:
        return (envelope.event,)
    return (RoundsSkipped(first, last, cause_of(state)), envelope.event)


def cause_of(state: State) -> SkipCause:
    """Why rounds were missed: it joined late, something broke, or it was slow."""
    if state.done[0] < 0 and state.skipped_to < 0 and state.work is None:
        return "late"
    return "fault" if state.faulted else "slow"
