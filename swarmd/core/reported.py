"""What is read of peers: memberships and reports, one by one or many at once. `swarmd.core.events` has them too."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from swarmd.core.event_base import EventBase


class MemberSeen(EventBase, frozen=True, tag="member_seen"):
    """A peer's membership record was read, validated. `name` is what the peer calls itself."""

    peer: str
    name: str = ""
    worked: bool = True  # whether its identity has cost what every node's does; else nobody waits for it


class MemberRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One membership of `MembersSeen`, an array in this order; fields as in `MemberSeen`."""

    peer: str
    name: str = ""
    worked: bool = True


class MembersSeen(EventBase, frozen=True, tag="members_seen"):
    """Several `MemberSeen` that came together, in order: it means what they mean, one after the other."""

    members: tuple[MemberRow, ...]

    @property
    def count(self) -> int:
        """How many."""
        return len(self.members)


class ReportSeen(EventBase, frozen=True, tag="report_seen"):
    """A peer's signed report of a finished stage, validated."""

    peer: str
    round: int
    stage: int
    reward: float  # mean reward of the peer's own completions
    digest: str = ""  # of its rollouts
    record: bytes = b""  # the signed record, for anyone to check
    worked: bool = True  # as in `MemberSeen`


class ReportRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One report of `ReportsSeen`, an array in this order; fields as in `ReportSeen`."""

    peer: str
    reward: float
    digest: str = ""
    record: bytes = b""
    worked: bool = True


class ReportsSeen(EventBase, frozen=True, tag="reports_seen"):
    """Several `ReportSeen` of one stage that came together, in order: it means what they mean, one after the other."""

    round: int
    stage: int
    reports: tuple[ReportRow, ...]

    @property
    def count(self) -> int:
        """How many."""
        return len(self.reports)


def reports_in(event: EventBase) -> Sequence[ReportSeen]:
    """The reports that an event tells of, each as if it were told by itself; none for other events."""
    if isinstance(event, ReportSeen):
        return (event,)
    if isinstance(event, ReportsSeen):
        place = (event.round, event.stage)
        return [ReportSeen(row.peer, *place, row.reward, row.digest, row.record, row.worked) for row in event.reports]
    return ()


def members_in(event: EventBase) -> Sequence[MemberSeen]:
    """The memberships that an event tells of, each as if it were told by itself; none for other events."""
    if isinstance(event, MemberSeen):
        return (event,)
    if isinstance(event, MembersSeen):
        return [MemberSeen(row.peer, row.name, row.worked) for row in event.members]
    return ()
