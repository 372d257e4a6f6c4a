"""What follows from events about peers' weights (`swarmd.core.node.weights`): the stage that waits for them begins."""

from __future__ import annotations

from msgspec.structs import replace

from swarmd.core.events import WeightsAdopted, WeightsFetched, WeightsRefused
from swarmd.core.ids import is_command
from swarmd.core.node import rounds, weights
from swarmd.core.state import WeightsOutcome
from swarmd.core.turn import Turn

REASON_MAX = 300  # characters of a reason that stay in the state
SPENT = "they were averaged with before, or are many rounds old"


def on_fetched(turn: Turn, event: WeightsFetched) -> None:
    """A peer's weights are here: the stage that waits for nothing else begins with them."""
    taken = event.weights
    spent = weights.is_spent(turn, taken)
    if weights.on_fetched(turn, event, spent):
        outcome = WeightsOutcome(turn.at, "fetched", taken.peer, taken.round, received_bytes=event.received_bytes)
        if spent:
            outcome = replace(outcome, outcome="refused", cause="none-offered", reason=SPENT)
        turn.state.weights = outcome
        rounds.begin_if_gathered(turn)


def on_refused(turn: Turn, event: WeightsRefused) -> None:
    """No weights are to be had: train from one's own. What a trainer refuses is a fact for people."""
    outcome = WeightsOutcome(turn.at, "refused", event.peer, cause=event.cause, reason=event.reason[:REASON_MAX])
    before = turn.state.weights
    asked = is_command(event.command, "weights")
    if before is not None and before.peer == event.peer and not asked:
        outcome = replace(outcome, round=before.round, received_bytes=before.received_bytes)
    turn.state.weights = replace(outcome, held_out_before=event.held_out_before, held_out=event.held_out)
    if asked and turn.settle(event.command) is not None:
        weights.end(turn)
        rounds.begin_if_gathered(turn)


def on_adopted(turn: Turn, event: WeightsAdopted) -> None:
    """A stage begins from them: a fact for people."""
    taken, before = event.weights, turn.state.weights
    received = before.received_bytes if before is not None and before.peer == taken.peer else 0
    outcome = WeightsOutcome(
        turn.at, "adopted", taken.peer, taken.round, received_bytes=received, averaged=taken.averaged
    )
    turn.state.weights = replace(outcome, held_out_before=event.held_out_before, held_out=event.held_out)


def on_overdue(turn: Turn) -> None:
    """They have not come in time."""
    turn.state.weights = WeightsOutcome(turn.at, "late")
    weights.end(turn)
    rounds.begin_if_gathered(turn)


def on_trainer_ready(turn: Turn) -> None:
    """The trainer has said what its model is."""
    weights.ask(turn)
    rounds.begin_if_gathered(turn)
