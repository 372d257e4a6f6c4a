"""Every round that a node leaves behind is accounted for exactly once: trained, or skipped with a fact that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.core.chart_types import RoundState
from swarmd.core.events import (
    ChainDegraded,
    CommandFailed,
    Event,
    LinkDown,
    NodeStarted,
    RoundsSkipped,
    SpaceLow,
    StageTrained,
    TimerFired,
    WorkerExited,
    WorkerStartFailed,
)
from swarmd.core.ids import is_command
from swarmd.core.state import State
from swarmd.core.values import SkipCause

if TYPE_CHECKING:
    from swarmd.core.applied import Applied
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World


def breaks(event: Event, chart: RoundState) -> bool:
    """Whether something went wrong that can make a node in that state miss rounds; that it was stopped is no fault."""
    if isinstance(event, CommandFailed):
        return is_command(event.command, "train")
    if isinstance(event, TimerFired):
        return event.name == "train"
    if isinstance(event, NodeStarted):
        return chart != "stopped" or event.restored
    if isinstance(event, SpaceLow):
        return True
    return chart != "draining" and isinstance(event, WorkerExited | WorkerStartFailed | LinkDown | ChainDegraded)


class Accounts:
    """The rounds of one node, counted from its events alone."""

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.trained: dict[int, bool] = {}  # rounds with a trained stage, since the last one accounted for
        self.skipped_to = -1
        self.skipped: set[int] = set()
        self.ever_trained = False
        self.broke = False  # something did, since a stage was last trained
        self.paused = False  # it paused for want of space, since then
        self.stopped = False  # it was stopped in order, since then
        self.next_round = 0  # the first round not accounted for

    def apply(self, applied: Applied) -> None:
        envelope, before, after = applied.envelope, applied.before, applied.after
        event = envelope.event
        if isinstance(event, RoundsSkipped):
            self._take_skip(event)
        elif isinstance(event, StageTrained):
            self._take_result(event, counted=after.done > before.done)
        if isinstance(event, StageTrained) and after.done > before.done:
            self.ever_trained, self.broke, self.stopped, self.paused = True, False, False, False
        elif after.chart == "paused":
            self.broke = self.paused = True
        elif not self.broke and breaks(event, before.chart):
            self.broke = True
        elif isinstance(event, NodeStarted):
            self.stopped = True
        moved = after.work is not before.work and _round(after) != _round(before)
        if moved or (after.chart == "waiting" and before.chart != "waiting"):
            self._settle(after)

    def _take_skip(self, event: RoundsSkipped) -> None:
        """A skip begins behind all rounds accounted for and holds no round that was trained."""
        self.world.counts["skips"] += 1
        both = [round for round in self.trained if event.first <= round <= event.last]
        if event.first <= self.skipped_to or event.last < event.first or both or event.first < self.next_round:
            self._fail(f"rounds {event.first} to {event.last} are skipped, trained were {both or 'none'} of them")
        first = not self.ever_trained and self.skipped_to < 0
        causes: dict[SkipCause, bool] = {
            "late": first,
            "fault": self.broke,
            "stopped": self.stopped,
            "slow": not self.paused,
        }
        if not causes[event.cause]:
            self._fail(f"rounds {event.first} to {event.last} are called skipped for {event.cause}")
        self.skipped_to = event.last
        self.skipped |= set(range(event.first, event.last + 1))

    def _take_result(self, event: StageTrained, counted: bool) -> None:
        """A stage whose round was recorded as skipped gives no result any more: it has one fate."""
        if event.round >= self.next_round:
            self.trained[event.round] = True
        if counted and event.round in self.skipped:
            self._fail(f"round {event.round}, stage {event.stage} is trained after it was recorded as skipped")

    def _settle(self, after: State) -> None:
        """The node has gone on: nothing before is left open, and its own count agrees."""
        at_end = after.clock is not None and after.clock.final and after.chart == "waiting"
        reached = after.clock.round if at_end and after.clock else after.work.round if after.work else 0
        for round in range(self.next_round, reached):
            if not self.trained.pop(round, False) and round > self.skipped_to:
                self._fail(f"round {round} is neither trained nor skipped, and the node is at {reached}")
        self.next_round = max(self.next_round, reached)
        counted = after.rounds_joined + after.rounds_skipped
        skipped = self.skipped_to + 1  # a node that waits may skip to the end of a swarm that then goes on
        if counted != max(self.next_round, skipped, after.work.round + 1 if after.work else 0):
            self._fail(
                f"{after.rounds_joined} rounds joined and {after.rounds_skipped} skipped, but it is at {reached}"
            )

    def _fail(self, what: str) -> None:
        self.world.fail(self.node, what)


def _round(state: State) -> int:
    return -1 if state.work is None else state.work.round
