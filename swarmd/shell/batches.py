"""Facts of one kind that wait in a row become one event: reports of a stage, and memberships.

Each of them is named in it, and it means what they mean one after the other. A log of a large swarm is shorter for it,
and its coordinator makes one state of a thousand reports. Few of them stay as they are: of a small swarm's log people
read each line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec.structs import replace

from swarmd.core.events import Event, MemberRow, MemberSeen, MembersSeen, ReportRow, ReportSeen, ReportsSeen

ROW_MIN = 16  # facts of a kind that are worth an event for all of them
ROW_MAX = 1024  # facts of one such event


def row_length(waiting: Iterable[Event]) -> int:
    """How many of the facts that wait, from the first on, may become one event; 1 at least, `ROW_MAX` at most."""
    row = islice(waiting, ROW_MAX)
    kind = _kind_of(next(row))
    if kind is None:
        return 1
    length = 1
    for fact in row:
        if _kind_of(fact) != kind:
            break
        length += 1
    return length


def _kind_of(fact: Event) -> tuple[int, int] | None:
    """What facts that may become one event have in common; None for those that never do."""
    if isinstance(fact, ReportSeen):
        return fact.round, fact.stage
    return (-1, -1) if isinstance(fact, MemberSeen) else None


def as_one(row: list[Event]) -> list[Event]:
    """The event for a row of facts of one kind; the facts themselves where they are few."""
    if len(row) < ROW_MIN:
        return row
    first = row[0]
    if isinstance(first, ReportSeen):
        reports = [
            ReportRow(each.peer, each.reward, each.digest, each.record, each.worked)
            for each in row
            if isinstance(each, ReportSeen)
        ]
        return [ReportsSeen(first.round, first.stage, tuple(reports))]
    members = [MemberRow(each.peer, each.name, each.worked) for each in row if isinstance(each, MemberSeen)]
    return [MembersSeen(tuple(members))]


def in_halves(facts: Sequence[Event]) -> tuple[Sequence[Event], Sequence[Event]] | None:
    """Facts in two parts that mean the same, a row by itself too; None for what has no parts."""
    if len(facts) > 1:
        middle = len(facts) // 2
        return facts[:middle], facts[middle:]
    fact = facts[0]
    if isinstance(fact, ReportsSeen) and fact.count > 1:
        middle = fact.count // 2
        return [replace(fact, reports=fact.reports[:middle])], [replace(fact, reports=fact.reports[middle:])]
    if isinstance(fact, MembersSeen) and fact.count > 1:
        middle = fact.count // 2
        return [MembersSeen(fact.members[:middle])], [MembersSeen(fact.members[middle:])]
    return None
