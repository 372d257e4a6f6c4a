"""Whether restarting a node now would cost a round, and when it would not. Pure.

- A stop loses nothing that is in the log. It can cost the current stage: training starts over in the next run, and a
  report published after the stage closes does not count. So the moment to stop is between the node's own report and
  the next stage, with the checkpoint on disk and nothing on its way to a chain.
- How long the node may then be away is known only in part: the next stage may be announced at once, and the coordinator
  waits for a member twice as long as that member took before (`swarmd.core.waiting`).
- A coordinator's rounds wait for it. Its restart costs no round, but the others wait unless they are still training.
"""

import msgspec

from swarmd.core.state import Coordination, StageWork, State
from swarmd.core.waiting import SLACK_SHARE
from swarmd.core.workers import LEAVING
from swarmd.observe.layers import LiveDaemon
from swarmd.observe.onchain import UNDER_WAY
from swarmd.observe.words import count_noun, format_duration


class SafeToStop(msgspec.Struct, frozen=True):
    """Whether a restart now would cost a round. Times are seconds from now."""

    now: bool
    in_s: float | None  # 0 if now; None if unknown
    why: str
    back_within_s: float | None = None  # longest restart that costs no round; None: any, or unknown


def find_safe_moment(state: State, now: float, live: LiveDaemon) -> SafeToStop:
    """Judge whether restarting a running node at `now`, POSIX seconds, would cost a round, and why."""
    if state.chart in LEAVING:
        return SafeToStop(True, 0.0, "the node is stopping")
    coordination = state.coordination
    others = _count_others(state, coordination) if coordination is not None and coordination.chart != "finished" else 0
    if at_work := _find_work_under_way(state, live):
        return SafeToStop(False, None, at_work)
    if coordination is not None and coordination.chart != "finished" and not others:
        return SafeToStop(True, 0.0, "no other member is there: the stage that is open waits, and is begun again")
    if unreported := _find_unreported(state):
        cost = f"; a restart has {count_noun(others, 'other member')} wait, and costs them no round" if others else ""
        return SafeToStop(False, _time_left(live), f"{unreported}{cost}")
    if coordination is not None and others:
        return _judge_coordinator(state, coordination, others, now)
    return _judge_member(state)


def _find_work_under_way(state: State, live: LiveDaemon) -> str:
    """Work after the report that a stop would interrupt; empty if there is none."""
    if live.writes_checkpoint and state.trainer.chart in ("idle", "busy"):
        return "the checkpoint of the last stage is being written"
    for submission in state.submissions:
        if submission.chart in UNDER_WAY:
            return f"{submission.id} is on its way to the chain"
    return ""


def _find_unreported(state: State) -> str:
    """What is left to do before the current stage's report is out; empty if it is out, or the node has no stage."""
    work, clock = state.work, state.clock
    if clock is None or work is None or state.chart in ("waiting", "paused"):
        return ""
    stage = _name_stage(state, work)
    if state.chart == "round.gathering":
        return f"{stage} is about to be trained"
    if state.chart == "round.training":
        return f"{stage} is being trained, and would be trained again"
    if state.chart == "skipping":
        return f"{stage} is being left for the stage that is open now"
    is_open = (clock.round, clock.stage) == (work.round, work.stage) and not clock.final
    if state.chart == "round.settling" or work.published or not is_open:
        return ""
    return f"the report of {stage} is not published yet"


def _time_left(live: LiveDaemon) -> float | None:
    """Seconds that the trainer says it still needs for the stage; None if unknown."""
    progress = live.trainer.progress if live.trainer is not None else None
    return progress.figures.get("eta_s") if progress is not None else None


def _count_others(state: State, coordination: Coordination) -> int:
    own = coordination.members.get(state.settings.peer) if state.settings is not None else None
    return coordination.members.present - (own is not None and not own.left)


def _judge_coordinator(state: State, coordination: Coordination, others: int, now: float) -> SafeToStop:
    """Judge a coordinator whose own report is out: the others need it once the last of their reports has come."""
    if coordination.chart in ("idle", "mustering"):
        return SafeToStop(True, 0.0, "no round is open yet")
    missing = coordination.expected - coordination.reported
    ends_at = next((each.due_at for each in state.deadlines if each.name == "stage"), now)
    if coordination.chart == "open.collecting" and missing > 0 and ends_at > now:
        why = (
            f"the open stage still waits for {count_noun(missing, 'member')}, {format_duration(ends_at - now)} at most"
        )
        return SafeToStop(True, 0.0, why, ends_at - now)
    waiting = f"{count_noun(others, 'other member')} would wait for it to open the next stage"
    return SafeToStop(False, None, f"this is the coordinator: {waiting}, and would lose no round")


def _judge_member(state: State) -> SafeToStop:
    """Judge a member whose report is out, or that has no stage."""
    clock, work = state.clock, state.work
    if clock is not None and clock.final:
        return SafeToStop(True, 0.0, "the swarm has run its rounds")
    if state.chart != "round.settling" or clock is None or work is None:
        return SafeToStop(True, 0.0, "the node is at no stage")
    why = f"{_name_stage(state, work)} is done, and the next stage is not announced yet"
    if work.result is None or state.chain is not None:  # a contract does not say which members it waits for
        return SafeToStop(True, 0.0, why)
    stage_s, took_s = clock.deadline_at - clock.opened_at, work.result.seconds
    return SafeToStop(True, 0.0, why, max(0.0, min(stage_s - took_s, took_s + SLACK_SHARE * stage_s)))


def _name_stage(state: State, work: StageWork) -> str:
    several = state.settings is not None and state.settings.stages > 1
    return f"round {work.round} stage {work.stage}" if several else f"round {work.round}"
