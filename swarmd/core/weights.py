"""A peer's weights that a node adopts after an absence, or averages its own with.

After coming late or a long absence, a node waits for them in the round that it joins, not in later ones, and no longer
than the settings say; that round is trained in any case. Weights that arrive after the wait go to the trainer with the
next stage, and so do weights to be averaged with, for which no stage waits. A node never averages with the same weights
twice, nor with old ones: a peer that has stopped training would hold back all others for ever.
"""

from msgspec.structs import replace

from swarmd.core.commands import FetchWeights
from swarmd.core.events import WeightsAdopted, WeightsFetched, WeightsRefused
from swarmd.core.ids import command_id, is_command_of_kind
from swarmd.core.state import StateBase, WeightsCatchUp, WeightsOutcome
from swarmd.core.turn import StepContext
from swarmd.core.values import PeerWeights

BYTES_OF_PARAMETER = 4  # at most, of a file: it has bfloat16 values, and buffers that are not parameters
OLD_ROUNDS = 8  # offers older than this, and than two averaging intervals, are not averaged with
AVERAGED_MAX = 64  # offers remembered; there are more recent ones only if peers claim rounds that have not happened
REASON_MAX = 300  # characters of a reason kept in the state
SPENT = "they were averaged with before, or are many rounds old"
BYTES_BESIDE = 16 * 1024 * 1024  # the file's header and other small parts


def weights_bytes_max(parameters: int) -> int:
    """Return the largest weights file, in bytes, that is fetched for a model with this number of parameters."""
    return BYTES_OF_PARAMETER * parameters + BYTES_BESIDE


def begin_catch_up(turn: StepContext, round: int) -> None:
    """Request weights if this node has missed enough rounds before this one, or must average in this one. Once for each
    absence, and once in a round; an absence takes precedence over averaging."""
    before, absent = turn.state.catch_up, _was_absent(turn, round)
    if before is not None and not (absent and before.average):
        return
    if not absent and not _is_averaging_round(turn, round):
        return
    turn.drop_pending(FetchWeights)  # the earlier request for averaging
    catch_up = turn.state.catch_up = WeightsCatchUp(round, turn.at + turn.settings.catch_up_s, average=not absent)
    turn.set_deadline("weights", catch_up.until_at)
    request_weights(turn)


def _was_absent(turn: StepContext, round: int) -> bool:
    missed, enough = round - 1 - turn.state.done[0], turn.settings.catch_up_rounds
    return 0 < enough <= missed


def _is_averaging_round(turn: StepContext, round: int) -> bool:
    """Return whether weights are averaged in this round, and this node has trained before, but not in this round."""
    every = turn.settings.average_rounds
    return every > 0 and round % every == 0 and 0 <= turn.state.done[0] < round


def request_weights(turn: StepContext) -> None:
    """Request weights once the trainer has reported what fits its model. A trainer that accepts none ends the wait."""
    catch_up, trainer = turn.state.catch_up, turn.state.trainer
    if catch_up is None or catch_up.over or trainer.chart not in ("idle", "busy"):
        return
    name = command_id("weights", catch_up.round)
    if not trainer.architecture:
        _end_wait(turn)
    elif name not in turn.pending:
        most = weights_bytes_max(trainer.parameters)
        fits = (trainer.architecture, trainer.tokenizer, most)
        command = FetchWeights(name, *fits, catch_up.until_at, average=catch_up.average)
        if catch_up.average:
            oldest = max(0, _oldest_round(turn, catch_up.round))
            command = replace(command, averaged=turn.state.averaged, oldest_round=oldest)
        turn.issue_until_answered(command)


def _oldest_round(turn: StepContext, round: int) -> int:
    """Return the first round whose weights are recent enough to average with in this round."""
    return round - max(OLD_ROUNDS, 2 * turn.settings.average_rounds)


def _is_used_or_old(turn: StepContext, weights: PeerWeights) -> bool:
    """Return whether weights were averaged with before, or are too old; the network worker should fetch none such."""
    catch_up = turn.state.catch_up
    if not weights.averaged or catch_up is None:
        return False
    oldest = _oldest_round(turn, catch_up.round)
    return any(
        offer.round < oldest
        or any(
            offer.digest == each.digest or (offer.peer == each.peer and offer.round <= each.round)
            for each in turn.state.averaged
        )
        for offer in weights.offers
    )


def _remember_averaged(turn: StepContext, weights: PeerWeights, round: int) -> None:
    """Remember the weights that a stage was averaged with, whether or not the trainer used the average."""
    oldest = _oldest_round(turn, round)
    kept = [each for each in turn.state.averaged if each.round >= oldest]
    turn.state.averaged = (*kept, *weights.offers)[-AVERAGED_MAX:]


def resume_deadline(turn: StepContext) -> None:
    """Set the deadline for weights again after a restart; requested weights may still come."""
    catch_up = turn.state.catch_up
    if catch_up is not None and not catch_up.over:
        turn.set_deadline("weights", catch_up.until_at)


def is_awaiting_weights(state: StateBase, round: int) -> bool:
    """Return whether a stage of this round waits for weights."""
    catch_up = state.catch_up
    return catch_up is not None and not catch_up.over and not catch_up.average and catch_up.round == round


def _end_wait(turn: StepContext, fetched: PeerWeights | None = None) -> None:
    """Stop waiting for weights, which have arrived or are given up."""
    catch_up = turn.state.catch_up
    if catch_up is not None:
        turn.remove_pending(command_id("weights", catch_up.round))
        turn.clear_deadlines("weights")
        turn.state.catch_up = replace(catch_up, over=True, weights=fetched)


def on_fetched(turn: StepContext, event: WeightsFetched) -> None:
    """Keep a peer's weights, unless they were used before or are no longer requested."""
    taken, spent = event.weights, _is_used_or_old(turn, event.weights)
    if turn.remove_pending(event.command) is None:
        return
    _end_wait(turn, None if spent else taken)
    outcome = WeightsOutcome(turn.at, "fetched", taken.peer, taken.round, received_bytes=event.received_bytes)
    if spent:
        outcome = replace(outcome, outcome="refused", cause="none-offered", reason=SPENT)
    turn.state.weights = outcome


def on_refused(turn: StepContext, event: WeightsRefused) -> None:
    """Train from the own weights if no others are available. A refusal by the trainer is only recorded, for display."""
    outcome = WeightsOutcome(turn.at, "refused", event.peer, cause=event.cause, reason=event.reason[:REASON_MAX])
    before = turn.state.weights
    asked = is_command_of_kind(event.command, "weights")
    if before is not None and before.peer == event.peer and not asked:
        outcome = replace(outcome, round=before.round, received_bytes=before.received_bytes)
    turn.state.weights = replace(outcome, held_out_before=event.held_out_before, held_out=event.held_out)
    if asked and turn.remove_pending(event.command) is not None:
        _end_wait(turn)


def on_adopted(turn: StepContext, event: WeightsAdopted) -> None:
    """Record, for display, that a stage starts from a peer's weights."""
    taken, before = event.weights, turn.state.weights
    received = before.received_bytes if before is not None and before.peer == taken.peer else 0
    outcome = WeightsOutcome(
        turn.at, "adopted", taken.peer, taken.round, received_bytes=received, averaged=taken.averaged
    )
    turn.state.weights = replace(outcome, held_out_before=event.held_out_before, held_out=event.held_out)


def on_overdue(turn: StepContext) -> None:
    """Give the weights up, because they have not arrived in time."""
    turn.state.weights = WeightsOutcome(turn.at, "late")
    _end_wait(turn)


def give_to_trainer(turn: StepContext) -> PeerWeights | None:
    """Return the weights that the trainer must evaluate before the next stage, and mark them as given."""
    catch_up = turn.state.catch_up
    if catch_up is None or catch_up.weights is None:
        return None
    turn.state.catch_up = replace(catch_up, given=True)
    return catch_up.weights


def on_stage_trained(turn: StepContext) -> None:
    """End the absence after a trained stage, if the weights were evaluated or will not come."""
    catch_up = turn.state.catch_up
    if catch_up is not None and (catch_up.given or (catch_up.over and catch_up.weights is None)):
        turn.state.catch_up = None
        if catch_up.weights is not None and catch_up.weights.averaged:
            _remember_averaged(turn, catch_up.weights, catch_up.round)


def forget_catch_up(turn: StepContext) -> None:
    """Forget fetched weights after a restore: the files are not in the backup."""
    turn.drop_pending(FetchWeights)
    turn.state.catch_up = None
