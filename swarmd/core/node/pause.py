"""The pause of a node whose disk is nearly full: the log goes on, no stage is begun, and it joins again by itself."""

from __future__ import annotations

from swarmd.core.chart_types import RoundState
from swarmd.core.events import SpaceFreed, SpaceLow
from swarmd.core.node import rounds
from swarmd.core.state import LowSpace
from swarmd.core.turn import Turn

# where a node is not at work, or at little
IDLE: tuple[RoundState, ...] = ("syncing", "waiting", "round.gathering", "round.settling")


def on_space_low(turn: Turn, event: SpaceLow) -> None:
    """Begin no stage until there is room; `hold` sees to the one in hand."""
    before = turn.state.low_space
    since = turn.at if before is None else before.since
    turn.state.low_space = LowSpace(event.free_bytes, event.wanted_bytes, since)


def hold(turn: Turn) -> None:
    """The last part of every step while space is low: pause, unless the trainer or a report is under way.

    A stage that the trainer is at is finished or left, as the policy for nodes that are behind says.
    """
    chart, work = turn.state.chart, turn.state.work
    if chart in IDLE:
        turn.move_round("pause")
    elif chart == "round.training" and work is not None:
        at_it = rounds.is_training(turn, rounds.train_id(work.round, work.stage))
        if not at_it or turn.settings.behind == "abandon":
            rounds.cancel(turn)
            turn.move_round("pause")
    if turn.state.chart == "paused":
        turn.state.faulted = True
        turn.disarm("gather", "train", "publish")


def on_space_freed(turn: Turn, event: SpaceFreed) -> None:
    """There is room again: join where the swarm is, as soon as the trainer is through with what it was told to stop."""
    turn.state.low_space = None
    rounds.rejoin(turn)
