"""Which member a coordinator forgets when another wants its place: it keeps count of a bounded number."""

from __future__ import annotations

from collections.abc import Iterable

from swarmd.core.events import MemberSeen
from swarmd.core.state import MEMBERS_MAX, AnyCoordination, Member

GONE_KEPT = 256  # members up to whose number also those are kept that left without credit
SILENT_ROUNDS_MAX = 64  # a member with credit that is silent for longer makes room, too
IDLE_MEMBERS_MAX = 256  # members that have not done the work that every node does; of `MEMBERS_MAX`


def is_forgotten(coordination: AnyCoordination, member: Member) -> bool:
    """Whether a member that has just left is not kept: it is owed nothing, and there are many."""
    owed = member.rounds > 0 or member.peer in coordination.reports
    return not owed and len(coordination.members) > GONE_KEPT


def find_room(coordination: AnyCoordination, newcomer: MemberSeen, reported: bool) -> tuple[bool, Member | None]:
    """Whether there is room for one more, and the member that makes room for it; None if nobody has to.

    First those go that never had credit, who left before who is silent; of those with credit, who left, or is silent
    for a long time. Members that have not done the work that every node does have `IDLE_MEMBERS_MAX` places of all.

    Args:
        newcomer: who wants a place.
        reported: whether it has reported: then it comes before members that have not done so yet.
    """
    members = coordination.members
    if not newcomer.worked and len(members.idle) >= IDLE_MEMBERS_MAX:
        among: Iterable[Member] = members.idle
    elif len(members) < MEMBERS_MAX:
        return True, None
    else:
        among = members
    gone = [
        member
        for member in among
        if member.peer not in coordination.reports and _may_go(member, coordination.round, reported)
    ]
    return (True, min(gone, key=_worth)) if gone else (False, None)


def _may_go(member: Member, round: int, reported: bool) -> bool:
    """Whether a member makes room: it may be silent for as many rounds as it was credited for, up to a bound."""
    if member.left:
        return True
    if not member.rounds:
        return reported or member.since_round < round - 1
    return round - member.last_round > min(member.rounds, SILENT_ROUNDS_MAX)


def _worth(member: Member) -> tuple[bool, bool, int, int, str]:
    return (member.rounds > 0, not member.left, member.last_round, member.since_round, member.peer)
