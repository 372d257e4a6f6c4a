"""What follows from events about peers' weights (`swarmd.core.node.weights`): the stage that waits for them begins."""

from __future__ import annotations

from swarmd.core.events import WeightsFetched, WeightsRefused
from swarmd.core.ids import is_command
from swarmd.core.node import rounds, weights
from swarmd.core.turn import Turn


def on_fetched(turn: Turn, event: WeightsFetched) -> None:
    """A peer's weights are here: the stage that waits for nothing else begins with them."""
    if weights.on_fetched(turn, event):
        rounds.begin_if_gathered(turn)


def on_refused(turn: Turn, event: WeightsRefused) -> None:
    """No weights are to be had: train from one's own. What a trainer refuses is a fact for people."""
    if is_command(event.command, "weights") and turn.settle(event.command) is not None:
        weights.end(turn)
        rounds.begin_if_gathered(turn)


def on_overdue(turn: Turn) -> None:
    """They have not come in time."""
    weights.end(turn)
    rounds.begin_if_gathered(turn)


def on_trainer_ready(turn: Turn) -> None:
    """The trainer has said what its model is."""
    weights.ask(turn)
    rounds.begin_if_gathered(turn)
