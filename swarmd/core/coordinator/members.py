"""Which member a coordinator forgets when another wants its place: it keeps count of a bounded number."""

from __future__ import annotations

from collections.abc import Iterable

from swarmd.core.events import MemberSeen
from swarmd.core.state import MEMBERS_MAX, AnyCoordination, Member, Members

GONE_KEPT = 256  # members up to whose number also those are kept that left without credit
SILENT_ROUNDS_MAX = 64  # a member with credit that is silent for longer makes room, too
IDLE_MEMBERS_MAX = 256  # members that have not done the work that every node does; of `MEMBERS_MAX`


def without_gone(coordination: AnyCoordination, member: Member) -> Members | None:
    """The members without one that has just left and whom nothing is owed; None where it is kept."""
    owed = member.rounds > 0 or member.peer in coordination.reports
    if owed or len(coordination.members) <= GONE_KEPT:
        return None
    return coordination.members.without(member.peer)


def with_room(coordination: AnyCoordination, newcomer: MemberSeen, reported: bool) -> Members | None:
    """The members with room for one more; None where all take part.

    First those go that never had credit, who left before who is silent; of those with credit, who left, or is silent
    for a long time. Members that have not done the work that every node does have `IDLE_MEMBERS_MAX` places of all.

    Args:
        newcomer: who wants a place.
        reported: whether it has reported: then it comes before members that have not done so yet.
    """
    members = coordination.members
    if not newcomer.worked and len(members.idle) >= IDLE_MEMBERS_MAX:
        return _without_least(coordination, members.idle, reported)
    if len(members) < MEMBERS_MAX:
        return members
    return _without_least(coordination, members, reported)


def _without_least(coordination: AnyCoordination, among: Iterable[Member], reported: bool) -> Members | None:
    reports = coordination.reports
    missed = [
        member for member in among if member.peer not in reports and _may_go(member, coordination.round, reported)
    ]
    if not missed:
        return None
    least = min(missed, key=_worth)
    return coordination.members.without(least.peer)


def _may_go(member: Member, round: int, reported: bool) -> bool:
    """Whether a member makes room: it may be silent for as many rounds as it was credited for, up to a bound."""
    if member.left:
        return True
    if not member.rounds:
        return reported or member.since_round < round - 1
    return round - member.last_round > min(member.rounds, SILENT_ROUNDS_MAX)


def _worth(member: Member) -> tuple[bool, bool, int, int, str]:
    return (member.rounds > 0, not member.left, member.last_round, member.since_round, member.peer)
