"""How long a coordinator waits in vain: for newcomers, and for members that were credited and then fell silent.

A stage that waits for somebody who does not report lasts to its deadline. Identities cost little, so there is no end
of them: one that reports now and then, or a new one for each stage, would have every stage last that long. So the
time of stages that waited in vain is remembered until others, which closed by their quorum, have lasted 64 times as
long together. While more than three such stages are remembered, nobody waits for newcomers, or for members that have
been credited too rarely since a stage last waited for them in vain. Their reports count all the same, if they come
while the stage is open.

Fifteen such stages may be remembered of members: for 960 times a stage's longest time a member that failed, and is
slower than all others, would be left behind. So stages wait for all members again after a fifteenth of that, until one
has waited in vain; that one is not added to what is remembered.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from swarmd.bounds import fit
from swarmd.core.state import AnyCoordination, Member
from swarmd.core.turn import Turn

PATIENCE_SINCE = 11  # rules under which a coordinator remembers what it waited for in vain
BY_TIME_SINCE = 12  # rules under which stages count by their time; before, one in vain was forgotten after 64 others
ALL_SINCE = 14  # rules under which stages wait for all members again now and then, whatever was waited in vain
FORGOTTEN_AFTER = 64  # times as long as a stage that waited in vain
ALLOWED = 3  # stages in vain that may be remembered before anybody is waited for less
ALLOWED_BEFORE = 8  # under `BY_TIME_SINCE`
STEPS_MAX = 12  # from there on, each asks of members for twice as many rounds


class Counts(NamedTuple):
    """What the stage that closes counts for."""

    vain: int  # that it adds, where it waited in vain: ms of other stages, or under older rules stages
    closed: int  # that it takes away, where it closed by its quorum
    allowed: int  # stages in vain


def _count(turn: Turn) -> Counts:
    if turn.rules < BY_TIME_SINCE:
        return Counts(FORGOTTEN_AFTER, 1, ALLOWED_BEFORE)
    assert turn.settings.coordination is not None, "a coordinator coordinates"
    longest_ms = max(1, round(1000 * turn.settings.coordination.stage_s))
    lasted_ms = round(1000 * (turn.at - turn.coordination.opened_at))
    return Counts(FORGOTTEN_AFTER * longest_ms, fit(lasted_ms, longest_ms, 0), ALLOWED)


def may_wait_for(coordination: AnyCoordination, member: Member) -> bool:
    """Whether the open stage may wait for a member at all, after what was waited in vain."""
    if not member.rounds:
        return waits_for_newcomers(coordination)
    return member.rounds - member.missed_at >= coordination.steady_min


def waits_for_newcomers(coordination: AnyCoordination) -> bool:
    """Whether the open stage may wait for members that were never credited."""
    return coordination.vain_newcomers <= coordination.vain_allowed


def on_quorum(turn: Turn) -> None:
    """A stage closed with the reports that it waited for."""
    coordination, closed = turn.coordination, _count(turn).closed
    coordination.vain_newcomers = max(0, coordination.vain_newcomers - closed)
    coordination.vain_members = max(0, coordination.vain_members - closed)
    coordination.all_awaited_in = max(0, coordination.all_awaited_in - closed)


def on_deadline(turn: Turn, missing: list[Member]) -> None:
    """A stage's time is over, and the reports of these members, for whom it waited, have not come."""
    coordination, own = turn.coordination, turn.settings.peer
    missed = {member.peer: member for member in missing if member.peer != own}
    if not missed:
        return
    counts = _count(turn)
    if any(not member.rounds for member in missed.values()):
        coordination.vain_newcomers = _add_stage(coordination.vain_newcomers, counts, 1)
    if any(member.rounds for member in missed.values()):
        if _awaits_all(turn):
            coordination.all_awaited_in = counts.vain
        else:
            coordination.vain_members = _add_stage(coordination.vain_members, counts, STEPS_MAX)
    coordination.members = coordination.members.renewed(
        [replace(each, missed_at=each.rounds) if each.peer in missed else each for each in coordination.members]
    )


def _add_stage(vain: int, counts: Counts, steps_max: int) -> int:
    return fit(vain + counts.vain, (counts.allowed + steps_max) * counts.vain)


def on_open(turn: Turn) -> None:
    """Say for whom the stage that opens waits."""
    coordination, counts = turn.coordination, _count(turn)
    if turn.rules >= BY_TIME_SINCE:
        coordination.vain_allowed = counts.allowed * counts.vain
    coordination.steady_min = _find_steady_min(coordination, counts, turn.settings.peer)
    if turn.rules < ALL_SINCE:
        return
    if not coordination.steady_min:
        coordination.all_awaited_in = counts.vain
    elif _awaits_all(turn):
        coordination.steady_min = 0


def _awaits_all(turn: Turn) -> bool:
    """Whether the open stage waits for all credited members, whatever was waited in vain."""
    return turn.rules >= ALL_SINCE and not turn.coordination.all_awaited_in


def _find_steady_min(coordination: AnyCoordination, counts: Counts, own: str) -> int:
    """Rounds that a credited member must have been credited for since a stage last waited for it in vain.

    Never more than half of what this node itself has, so that members who joined when it was half as old are waited for
    whatever others do.
    """
    steps = -(-coordination.vain_members // counts.vain) - counts.allowed
    if steps <= 0:
        return 0
    member = coordination.members.get(own)
    return min((1 << steps) - 1, (member.rounds if member is not None else 0) // 2)
