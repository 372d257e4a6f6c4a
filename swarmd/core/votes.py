"""This node's votes at the end of a round: by its own scoring of peers' rollouts, or by peers' reports.

A peer's report about itself proves nothing, so by default only rollouts scored by this node count. They arrive one
stage after they were made: a round's last stage is judged in the first stage of the next round.
"""

import math

from msgspec.structs import replace

from swarmd.bounds import add_bounded
from swarmd.core.commands import CollectReports
from swarmd.core.events import ReportSeen
from swarmd.core.evidence import banned_peers_in
from swarmd.core.ids import command_id, submission_id
from swarmd.core.state import ONCHAIN_PEERS_MAX, Submission, VoteScore, VoteTally
from swarmd.core.submissions import add_submission
from swarmd.core.turn import StepContext
from swarmd.core.values import Judgement


def begin_tally(turn: StepContext, round: int, stage: int) -> None:
    """Start to count a stage that this node takes part in."""
    if turn.chain_settings.winners == 0:
        return
    close_tally(turn, round)
    if turn.state.tally is None:
        turn.state.tally = VoteTally(round)
    collect_reports(turn, round, stage)


def collect_reports(turn: StepContext, round: int, stage: int) -> None:
    """Request a stage's reports from the network worker, if reports decide the vote."""
    reported = turn.chain_settings.votes == "reported"
    if reported and turn.state.link.chart == "up" and turn.state.tally is not None:
        turn.emit(CollectReports(command_id("collect", f"{round}/{stage}/{turn.seq}"), round, stage))


def count_report(turn: StepContext, peer: str, round: int, stage: int, reward: float) -> None:
    """Add a peer's stage to the tally of its round, each stage once."""
    if math.isfinite(reward):
        state, score = turn.state, VoteScore(peer, stage, reward)
        state.tally = _tally_with_score(state.tally, round, score)
        state.judging = _tally_with_score(state.judging, round, score)


def _tally_with_score(tally: VoteTally | None, round: int, new: VoteScore) -> VoteTally | None:
    if tally is None or tally.round != round:
        return tally
    peer, stage = new.peer, new.stage
    known = next((score for score in tally.scores if score.peer == peer), None)
    if (known is not None and stage <= known.stage) or (known is None and len(tally.scores) >= ONCHAIN_PEERS_MAX):
        return tally
    score = replace(new, reward=add_bounded(known.reward if known else 0.0, new.reward))
    others = tuple([each for each in tally.scores if each.peer != peer])
    return replace(tally, scores=(*others, score))


def on_report_seen(turn: StepContext, event: ReportSeen) -> None:
    """Count a peer's signed report, if reports decide the vote."""
    barred = event.peer in banned_peers_in(turn.state, event.round)
    if turn.chain_settings.votes == "reported" and not barred:
        count_report(turn, event.peer, event.round, event.stage, event.reward)


def count_judgements(turn: StepContext, judged: tuple[Judgement, ...], source: tuple[int, int] | None) -> None:
    """Count this node's scores of peers' rollouts of the stage `source`; after a round's last stage, vote."""
    if turn.chain_settings.votes == "reported" or source is None:
        return
    round, stage = source
    for each in judged:
        if each.peer != turn.settings.peer:
            count_report(turn, each.peer, round, stage, each.worth)
    judging = turn.state.judging
    if judging is not None and judging.round == round and stage == turn.settings.stages - 1:
        turn.state.judging = None
        _submit_vote(turn, judging)


def vote_on_reports(turn: StepContext, round: int) -> None:
    """Vote on the reports of a finished round. With votes by judgement, the next stage votes."""
    if turn.chain_settings.votes == "reported":
        close_tally(turn, round)


def close_tally(turn: StepContext, round: int) -> None:
    """Close the tally of an earlier round: vote now, or once the next stage has judged that round's last stage."""
    tally = turn.state.tally
    if tally is None or tally.round >= round:
        return
    turn.state.tally = None
    if turn.chain_settings.votes == "reported":
        _submit_vote(turn, tally)
        return
    if turn.state.judging is not None:  # nothing was trained since
        _submit_vote(turn, turn.state.judging)
    turn.state.judging = tally


def _submit_vote(turn: StepContext, tally: VoteTally) -> None:
    """Vote for the peers with the highest sums, ties by peer id."""
    ranked = sorted(tally.scores, key=lambda score: (-score.reward, score.peer))
    winners = tuple([score.peer for score in ranked[: turn.chain_settings.winners]])
    if winners:
        add_submission(
            turn, Submission(submission_id("winners", tally.round), "winners", round=tally.round, winners=winners)
        )
