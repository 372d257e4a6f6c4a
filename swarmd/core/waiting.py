"""Decides which members the coordinator's open stage waits for, and how long. Pure.

A stage closes when a quorum of the members that it *expects* has reported, or when it has waited for them long enough,
or at its deadline. A member is expected if it is present, has proof of work or an invitation, is not banned, and

- reported in the stage before, or came (back) during this one or the one before;
- or has been silent since, and this is a *wide* stage, as every third one is. So a member that missed stages, because
  its trainer slept or a partition cut it off, is waited for again within three stages. After `SILENT_STAGES` only every
  24th stage waits for it: members that are present and never report cost little.

Besides, only a member's time from a stage's announcement to its report is remembered (`took_s`):

- A stage waits for a member for twice that time. Once is enough if it starts with the others. Twice is enough if it
  must first finish an earlier stage, which is how a member that is slower than all others gets back into step. A median
  over all members would not do: a member ten times slower than the median, whose stages are within the deadline, is an
  honest node on a slow machine.
- A member whose time is unknown, because it was never credited, is waited for four times as long as this node or the
  median member takes, whichever is more. Before anybody was credited it has until the deadline.
- A stage waits as long as the longest of those times of members whose reports are missing. So a member that usually
  reports at once and then falls silent costs nothing: its time is over before the stage is.

Identities cost little, and an attacker may bring a new one to each stage. So stages that timed out waiting for members
that were never credited are counted: three are free, beyond that they may take a sixteenth of the time, and the stages
between wait for no newcomer. A newcomer's report counts all the same if it comes while the stage is open.

No stage closes early before this node's own report: it is the one member that is sure to train. Peers that report at
once, trained or not, could otherwise fill a quorum below 1, or be the only ones with known times. The exception is a
node whose trainer is down, or that has not reported in `OWN_SILENT_STAGES`: it is waited for like any other member.

The number of expected reports is counted when a stage opens, and updated with each member and report: O(1) each. The
waiting time is computed when it opens, and again, by the stage's timer, soon after the member with the longest wait has
reported: each time O(members), and at most once in `LOOK_SHARE` of a stage's longest time.
"""

import math

from msgspec.structs import replace

from swarmd.core.state import CoordinationBase, Member, Report, StageWaitState
from swarmd.core.turn import StepContext

WIDE_EVERY = 3  # one stage in this many waits for silent members, too
SILENT_STAGES = 48  # stages since a member's report; after that
LONG_SILENT_EVERY = 24  # one stage in this many waits for such a member
OWN_TIMES = 2.0  # waiting time for a member, as a multiple of its last time
PACE_TIMES = 4.0  # waiting time for a newcomer, as a multiple of the swarm's pace
SLACK_SHARE = 1 / 50  # share of a stage's longest time that is added for the network
LOOK_SHARE = 1 / 100  # share of it after which the stage recomputes its waiting time
FADE = 0.9  # share of a member's earlier time that still counts after a quicker report
VAIN_NEWCOMERS_FREE = 3  # stages that may time out waiting for newcomers before others wait for none
VAIN_NEWCOMERS_SHARE = 1 / 16  # share of the time that further ones may take
OWN_SILENT_STAGES = 3  # stages without this node's own report that may last until their deadlines for it


def is_expected(coordination: CoordinationBase, member: Member | None) -> bool:
    """Return whether the open stage waits for a member's report, or would if it had not come yet."""
    if member is None or member.left or not member.worked or member.peer in coordination.barred:
        return False
    waiting = coordination.waiting
    if not member.rounds and not waiting.newcomers:
        return False
    silent = waiting.number - member.heard
    if silent <= 1:
        return True
    return waiting.number % (WIDE_EVERY if silent <= SILENT_STAGES else LONG_SILENT_EVERY) == 0


def unexpected_members(coordination: CoordinationBase) -> list[Member]:
    """Return members that could be waited for, but that the open stage does not wait for."""
    return [
        member
        for member in coordination.members
        if not member.left
        and member.worked
        and member.peer not in coordination.barred
        and not is_expected(coordination, member)
    ]


def on_stage_opened(turn: StepContext) -> None:
    """Number a new stage, and count the members that it waits for."""
    coordination = turn.coordination
    waiting = coordination.waiting
    coordination.waiting = replace(
        waiting,
        number=waiting.number + 1,
        since=turn.at,
        pace_s=_pace_s(turn),
        newcomers=waiting.vain_newcomers <= VAIN_NEWCOMERS_FREE,
    )
    recount_expected(turn)


def recount_expected(turn: StepContext) -> None:
    """Count from scratch which members the open stage waits for, and how long."""
    coordination = turn.coordination
    expected = [member for member in coordination.members if is_expected(coordination, member)]
    missing = [member for member in expected if member.peer not in coordination.reports]
    coordination.expected, coordination.reported = len(expected), len(expected) - len(missing)
    longest_s = max([_wait_s_for(turn, member) for member in missing], default=0.0)
    coordination.waiting = replace(coordination.waiting, longest_s=longest_s)


def on_stage_announced(turn: StepContext) -> None:
    """Start the waiting time at the stage's announcement, which may be a repeated one."""
    coordination = turn.coordination
    coordination.waiting = replace(coordination.waiting, since=turn.at)
    set_stage_deadline(turn)


def set_stage_deadline(turn: StepContext) -> None:
    """Set the deadline for what ends the stage first: its own deadline, or the end of the waiting time."""
    until, deadline_at = _wait_ends_at(turn.coordination.waiting), turn.coordination.deadline_at
    turn.set_deadline("stage", min(until, deadline_at) if until > turn.at else deadline_at)


def on_member_changed(turn: StepContext, before: Member | None, after: Member | None) -> None:
    """Update the count of expected members after one came, changed or left."""
    coordination = turn.coordination
    change = is_expected(coordination, after) - is_expected(coordination, before)
    member = after or before
    if not change or member is None:
        return
    coordination.expected += change
    time_s = _wait_s_for(turn, member)
    if member.peer in coordination.reports:
        coordination.reported += change
    elif change < 0:
        _recheck_soon(turn, time_s)
    elif time_s > coordination.waiting.longest_s:
        coordination.waiting = replace(coordination.waiting, longest_s=time_s)
        if "stage" in turn.deadlines:
            set_stage_deadline(turn)


def on_report_counted(turn: StepContext, member: Member | None) -> None:
    """Update the count of missing reports after one was accepted."""
    coordination = turn.coordination
    if member is not None and is_expected(coordination, member):
        coordination.reported += 1
        if coordination.reported < coordination.expected:
            _recheck_soon(turn, _wait_s_for(turn, member))


def _recheck_soon(turn: StepContext, time_s: float) -> None:
    """Recompute the waiting time soon, if the stage may have waited longest for a member with this time."""
    if time_s >= turn.coordination.waiting.longest_s and "stage" in turn.deadlines:
        turn.set_deadline_if_sooner("stage", turn.at + LOOK_SHARE * _stage_s(turn))


def on_stage_closed(turn: StepContext) -> None:
    """Count whether a closing stage timed out waiting for newcomers. Its reports are not credited yet."""
    coordination, own = turn.coordination, turn.settings.peer
    waiting = coordination.waiting
    lasted_s = max(0.0, turn.at - coordination.opened_at)
    vain = max(0.0, waiting.vain_newcomers - VAIN_NEWCOMERS_SHARE * lasted_s / _newcomer_wait_s(turn))
    if coordination.reported < coordination.expected:
        vain += any(
            not member.rounds
            and member.peer != own
            and member.peer not in coordination.reports
            and is_expected(coordination, member)
            for member in coordination.members
        )
    coordination.waiting = replace(waiting, vain_newcomers=vain)


def member_with_report(member: Member, report: Report, number: int) -> Member:
    """Return a member after its report for stage `number`, with its updated time."""
    return replace(member, heard=number, took_s=max(report.took_s, FADE * member.took_s))


def report_delay_s(turn: StepContext) -> float:
    """Return the seconds from the open stage's announcement until now, as a report's time."""
    return min(max(0.0, turn.at - turn.coordination.waiting.since), _stage_s(turn))


def is_complete(turn: StepContext, quorum: float) -> bool:
    """Return whether the open stage may close: it has a quorum, or has waited long enough for it."""
    coordination = turn.coordination
    count, expected = coordination.reports.count, coordination.expected
    needed = max(1, math.ceil(quorum * expected))
    if count < needed or coordination.reported < min(needed, expected):
        waited = coordination.chart == "open.collecting" and turn.at >= _wait_ends_at(coordination.waiting)
        if not (waited and count):
            return False
    return not is_awaiting_own_report(turn)


def is_awaiting_own_report(turn: StepContext) -> bool:
    """Return whether the open stage waits for this node's own report before it closes early."""
    coordination, state, peer = turn.coordination, turn.state, turn.settings.peer
    own = coordination.members.get(peer)
    trains = state.trainer.chart != "down" and state.low_space is None  # a model that is loading will train
    if own is None or not trains or peer in coordination.reports or peer in coordination.barred:
        return False
    return coordination.waiting.number - own.heard <= OWN_SILENT_STAGES or (
        is_expected(coordination, own) and turn.at < _wait_ends_at(coordination.waiting)
    )


def _wait_ends_at(waiting: StageWaitState) -> float:
    return waiting.since + waiting.longest_s


def _wait_s_for(turn: StepContext, member: Member) -> float:
    """Return the seconds after its announcement for which a stage waits for a member."""
    if not member.rounds:
        return _newcomer_wait_s(turn)
    stage_s = _stage_s(turn)
    return min(stage_s, OWN_TIMES * member.took_s + SLACK_SHARE * stage_s)


def _newcomer_wait_s(turn: StepContext) -> float:
    stage_s, pace_s = _stage_s(turn), turn.coordination.waiting.pace_s
    return min(stage_s, PACE_TIMES * pace_s + SLACK_SHARE * stage_s) if pace_s else stage_s


def _stage_s(turn: StepContext) -> float:
    assert turn.settings.coordination is not None, "a coordinator coordinates"
    return turn.settings.coordination.stage_s


def _pace_s(turn: StepContext) -> float:
    """Return the seconds that a stage takes this node or the median member; 0 before anybody was credited."""
    coordination = turn.coordination
    now = coordination.waiting.number
    times = [
        member.took_s
        for member in coordination.members
        if member.rounds and member.worked and not member.left and now - member.heard <= SILENT_STAGES
    ]
    own = coordination.members.get(turn.settings.peer)
    middle_s = sorted(times)[len(times) // 2] if times else 0.0
    return max(middle_s, own.took_s if own is not None else 0.0)
