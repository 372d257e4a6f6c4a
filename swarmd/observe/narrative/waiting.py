"""Whom a coordinator's open stage does not wait for, and without whom a stage closed, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from swarmd.core.applied import Applied
from swarmd.core.coordinator.coordination import COLLECTING
from swarmd.core.coordinator.waiting import LONG_SILENT_EVERY, SILENT_STAGES, WIDE_EVERY, is_expected, not_expected
from swarmd.core.events import ReportSeen
from swarmd.core.state import Coordination, Member, State

Kind = Literal["newcomers", "members"]  # never credited, and credited before

NAMED_MAX = 3  # peers of one kind
NO_NEWCOMERS = (
    "no stage waits for members that were never credited: too many of them were waited for in vain; reports that are "
    "in time count"
)
AGAIN = "newcomers are waited for again"
SILENT = (
    f"every {WIDE_EVERY}rd stage does, and after {SILENT_STAGES} silent stages every {LONG_SILENT_EVERY}th; reports "
    "that are in time count"
)


def not_waited_for(coordination: Coordination) -> dict[Kind, int]:
    """How many members the open stage does not wait for, by kind; without a kind of which it waits for all."""
    kinds = [_kind_of(member) for member in _not_expected(coordination)]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def waiting_notes(state: State) -> tuple[str, ...]:
    """What a status says of it, a sentence for each reason."""
    coordination = state.coordination
    if coordination is None or coordination.chart not in COLLECTING:
        return ()
    newcomers = coordination.waiting.newcomers
    silent = [each for each in _not_expected(coordination) if each.rounds or newcomers]
    told = () if newcomers else (NO_NEWCOMERS,)
    if not silent:
        return told
    return (*told, f"the open stage does not wait for {_named(silent)}, silent in the stages before: {SILENT}")


def waiting_turn(before: State, after: State) -> str:
    """Whether an event has stages wait for newcomers no more, or again; empty for nothing."""
    then, now = before.coordination, after.coordination
    if then is now or then is None or now is None or then.waiting.newcomers == now.waiting.newcomers:
        return ""
    return AGAIN if now.waiting.newcomers else NO_NEWCOMERS


def closed_without(applied: Applied) -> tuple[int, str]:
    """The round of the stage that an event closed, and whose reports were not there; -1 and nothing for none."""
    closed, opened, event = applied.before.coordination, applied.after.coordination, applied.event
    if closed is None or opened is None or closed.chart not in COLLECTING:
        return -1, ""
    if (closed.round, closed.stage) == (opened.round, opened.stage):
        return -1, ""
    last = event.peer if isinstance(event, ReportSeen) else ""
    missing = [each for each in closed.members if each.peer != last and each.peer not in closed.reports]
    expected = [each for each in missing if is_expected(closed, each)]
    others = [each for each in _not_expected(closed) if each.peer != last and each.peer not in closed.reports]
    lasted_s = applied.at - closed.opened_at
    told = [f"{_named(expected)}, after waiting {lasted_s:.0f} s for them"] if expected else []
    told += [f"{_named(others)}, for whom it did not wait"] if others else []
    return (closed.round, f"stage {closed.stage} closed without {' and without '.join(told)}") if told else (-1, "")


def _not_expected(coordination: Coordination) -> list[Member]:
    return not_expected(coordination) if coordination.chart in COLLECTING else []


def _kind_of(member: Member) -> Kind:
    return "members" if member.rounds else "newcomers"


def _named(members: Sequence[Member]) -> str:
    """ "6 members (a, b, c and 3 more)"."""
    more = f" and {len(members) - NAMED_MAX} more" if len(members) > NAMED_MAX else ""
    thing = "member" if len(members) == 1 else "members"
    return f"{len(members)} {thing} ({', '.join(each.peer for each in members[:NAMED_MAX])}{more})"
