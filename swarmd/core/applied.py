"""What a journal is made of: events applied to states, one by one. Everything that reads a journal takes `Applied`.

Whether the events come from a live node, a log, a snapshot onwards, or a simulated node: `fold` makes them, and a
`Projection` makes something of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from swarmd.core.commands import Command
from swarmd.core.events import Envelope, Event
from swarmd.core.state import State
from swarmd.core.step import step

StepRule = Callable[[State, Envelope], tuple[State, tuple[Command, ...]]]  # `step`, or one with other charts bound


class Applied(msgspec.Struct, frozen=True, gc=False):
    """One event and what came of it.

    Attributes:
        envelope: the event with its place in the log and its time.
        before, after: the states around it.
        commands: what it causes.
    """

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
        """The event itself."""
        return self.envelope.event


class Projection(Protocol):
    """Makes something of a journal: figures, lines, a page, a check."""

    def apply(self, applied: Applied) -> None:
        """Take the next event, in the order of the log and once each. Must return at once."""
        ...


def apply(state: State, envelope: Envelope, rule: StepRule = step) -> Applied:
    """Apply one event to a state; the state that is given stays as it was."""
    after, commands = rule(state, envelope)
    return Applied(envelope, state, after, commands)


def fold(envelopes: Iterable[Envelope], state: State | None = None, rule: StepRule = step) -> Iterator[Applied]:
    """Apply events one after the other.

    Args:
        envelopes: without gaps, from the event that `state` is the fold up to.
        state: to start from, by default the empty state before event 0.
        rule: the step to follow, by default the core's own.
    """
    now = State() if state is None else state
    for envelope in envelopes:
        after, commands = rule(now, envelope)
        yield Applied(envelope, now, after, commands)
        now = after
