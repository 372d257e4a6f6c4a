"""Whom this node votes for when a round is over: by its own scoring of peers' rollouts, or by what peers report.

What a peer reports of itself proves nothing, so by default only those rollouts count that this node has scored. They
arrive one stage after they were made: a round's last stage is judged in the first stage of the next round.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from swarmd.bounds import add_real
from swarmd.core.commands import CollectReports
from swarmd.core.events import ReportSeen
from swarmd.core.evidence import barred_in
from swarmd.core.ids import command_id, submission_id
from swarmd.core.state import ONCHAIN_PEERS_MAX, Score, Submission, Tally
from swarmd.core.submissions import intend
from swarmd.core.turn import Turn
from swarmd.core.values import Judgement


def begin_tally(turn: Turn, round: int, stage: int) -> None:
    """Begin to count a stage that this node takes part in."""
    if turn.chain_settings.winners == 0:
        return
    close_tally(turn, round)
    if turn.state.tally is None:
        turn.state.tally = Tally(round)
    collect_reports(turn, round, stage)


def collect_reports(turn: Turn, round: int, stage: int) -> None:
    """Have the network worker report a stage's reports, if they decide the vote."""
    reported = turn.chain_settings.votes == "reported"
    if reported and turn.state.link.chart == "up" and turn.state.tally is not None:
        turn.emit(CollectReports(command_id("collect", f"{round}/{stage}/{turn.seq}"), round, stage))


def count_report(turn: Turn, peer: str, round: int, stage: int, reward: float) -> None:
    """Add a stage of a peer to the tally of its round, each one once."""
    if math.isfinite(reward):
        state, score = turn.state, Score(peer, stage, reward)
        state.tally = _counted(state.tally, round, score)
        state.judging = _counted(state.judging, round, score)


def _counted(tally: Tally | None, round: int, new: Score) -> Tally | None:
    """The tally with a new score, if it is that round's."""
    if tally is None or tally.round != round:
        return tally
    peer, stage = new.peer, new.stage
    known = next((score for score in tally.scores if score.peer == peer), None)
    if (known is not None and stage <= known.stage) or (known is None and len(tally.scores) >= ONCHAIN_PEERS_MAX):
        return tally
    score = replace(new, reward=add_real(known.reward if known else 0.0, new.reward))
    others = tuple([each for each in tally.scores if each.peer != peer])
    return replace(tally, scores=(*others, score))


def on_report_seen(turn: Turn, event: ReportSeen) -> None:
    """Count a peer's signed report, if reports decide the vote."""
    barred = event.peer in barred_in(turn.state, event.round)
    if turn.chain_settings.votes == "reported" and not barred:
        count_report(turn, event.peer, event.round, event.stage, event.reward)


def judge(turn: Turn, judged: tuple[Judgement, ...], source: tuple[int, int] | None) -> None:
    """Count what this node's trainer makes of peers' rollouts of the stage `source`; after a last one, vote."""
    if turn.chain_settings.votes == "reported" or source is None:
        return
    round, stage = source
    for each in judged:
        if each.peer != turn.settings.peer:
            count_report(turn, each.peer, round, stage, each.worth)
    judging = turn.state.judging
    if judging is not None and judging.round == round and stage == turn.settings.stages - 1:
        turn.state.judging = None
        _vote(turn, judging)


def vote_on_reports(turn: Turn, round: int) -> None:
    """The clock has moved on: vote on what was reported. What is judged waits for the stage that judges it."""
    if turn.chain_settings.votes == "reported":
        close_tally(turn, round)


def close_tally(turn: Turn, round: int) -> None:
    """A later round has begun: vote now, or once the next stage has judged the last stage of the round before."""
    tally = turn.state.tally
    if tally is None or tally.round >= round:
        return
    turn.state.tally = None
    if turn.chain_settings.votes == "reported":
        _vote(turn, tally)
        return
    if turn.state.judging is not None:  # nothing was trained since
        _vote(turn, turn.state.judging)
    turn.state.judging = tally


def _vote(turn: Turn, tally: Tally) -> None:
    """Vote for those with the highest sums, ties by peer id."""
    ranked = sorted(tally.scores, key=lambda score: (-score.reward, score.peer))
    winners = tuple([score.peer for score in ranked[: turn.chain_settings.winners]])
    if winners:
        intend(turn, Submission(submission_id("winners", tally.round), "winners", round=tally.round, winners=winners))
