"""What became of a stage or round, as the state keeps it: a result, or a skip."""

from __future__ import annotations

from swarmd.bounds import fit
from swarmd.core.commands import PublishReport
from swarmd.core.contract import submissions, votes
from swarmd.core.events import RoundsSkipped, StageTrained
from swarmd.core.ids import stage_id
from swarmd.core.state import FALLEN_KEPT, SKIPS_KEPT, Result, Skip, StageReward, Work
from swarmd.core.turn import Turn
from swarmd.core.values import RolloutsRef, SetAside, Skill


def preceding(round: int, stage: int, stages: int) -> tuple[int, int] | None:
    """The stage before: in the same round, or the last one of the round before."""
    if stage > 0:
        return (round, stage - 1)
    return (round - 1, stages - 1) if round > 0 else None


def rewarded(turn: Turn) -> tuple[int, int]:
    """The last (round, stage) that the chain has a reward of this node for, which the log need not know of."""
    return (-1, -1) if turn.state.chain is None else turn.chain.reward_mark


def note_result(turn: Turn, event: StageTrained) -> None:
    """Keep what a stage gave: it is done, its reward counts, peers' refused rollouts are counted."""
    turn.settle(event.command)
    reward = StageReward(
        event.round, event.stage, event.reward, event.held_out, count_aside(event.set_aside), fallen_of(event)
    )
    turn.state.done = (event.round, event.stage)
    turn.state.faulted = False
    turn.state.stopped = False
    turn.keep_reward(reward)
    turn.state.reward_total = turn.sum_of(turn.state.reward_total, event.reward)
    for reason, count in event.rejected:
        turn.count_rejections(reason, count)
    if turn.submits:
        submissions.reward(turn, event.round, event.stage, event.reward)
        votes.count_report(turn, turn.settings.peer, event.round, event.stage, event.reward)
        votes.judge(turn, event.judged, preceding(event.round, event.stage, turn.settings.stages))


def fallen_of(event: StageTrained) -> tuple[Skill, ...]:
    """The tasks that have fallen, those that have most first, `FALLEN_KEPT` at most."""
    return tuple([skill for skill in event.skills if skill.fallen][:FALLEN_KEPT]) if event.skills else ()


def count_aside(set_aside: tuple[SetAside, ...]) -> tuple[tuple[str, int], ...]:
    """What a stage set aside of peers' rollouts, by reason: `unvouched` tokens, `share` and `little` groups, and peers
    with a `mark`. Reasons that did not occur are left out."""
    if not set_aside:
        return ()
    counts = {
        "unvouched": sum(each.held for each in set_aside),
        "share": sum(each.over_share for each in set_aside),
        "little": sum(each.of_little for each in set_aside),
        "mark": sum(bool(each.mark) for each in set_aside),
    }
    return tuple((reason, fit(count)) for reason, count in counts.items() if count > 0)


def context_after(turn: Turn, before: Work | None, round: int) -> tuple[RolloutsRef, ...]:
    """What later questions may be made of: rollouts of the stages that came before, down to the preceding round."""
    if before is None or turn.settings.stages == 1:
        return ()
    own = () if before.result is None else (before.result.rollouts,)
    known = (*before.context, *before.rollouts, *own)
    return tuple([ref for ref in known if ref.round >= round - 1])


def report_of(work: Work, result: Result) -> PublishReport:
    """The command that publishes it."""
    return PublishReport(
        stage_id("report", work.round, work.stage), work.round, work.stage, result.reward, result.rollouts
    )


def on_rounds_skipped(turn: Turn, event: RoundsSkipped) -> None:
    """Take note of rounds that this node has no part in."""
    skip = Skip(event.first, event.last, event.cause, turn.at)
    state, work = turn.state, turn.state.work
    in_vain = work is not None and event.first <= work.round <= event.last  # joined, but nothing was trained
    state.rounds_joined -= in_vain
    state.skipped_to = event.last
    state.skips = (*state.skips, skip)[-SKIPS_KEPT:]
    state.rounds_skipped = fit(state.rounds_skipped + event.last - event.first + 1)
