"""For whom a coordinator does not wait, and why, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from swarmd.core.applied import Applied
from swarmd.core.coordinator.coordination import COLLECTING
from swarmd.core.coordinator.passed_over import Kind, kind_of, limits_of, passed_over
from swarmd.core.events import ReportSeen, TimerFired
from swarmd.core.state import Coordination, Member, State

NAMED_MAX = 3  # peers of one kind
WHY = "others like them were waited for in vain, up to the deadline, too often"
KINDS: tuple[Kind, ...] = ("newcomers", "members")


def not_waited_for(coordination: Coordination) -> dict[Kind, int]:
    """How many members the open stage does not wait for, by kind, where it does not wait for all of that kind."""
    limits = _limits(coordination)
    kinds = [kind_of(member) for member in passed_over(coordination)] if limits else []
    return {kind: kinds.count(kind) for kind in limits}


def patience_notes(state: State) -> tuple[str, ...]:
    """What a status says of it, a sentence for each kind."""
    coordination = state.coordination
    if coordination is None:
        return ()
    return tuple(_kept_short(kind, rounds) for kind, rounds in _limits(coordination).items())


def patience_turn(before: State, after: State) -> str:
    """For whom an event has stages wait no more, or again; empty for nothing."""
    if before.coordination is after.coordination or before.coordination is None or after.coordination is None:
        return ""
    known, now = _limits(before.coordination), _limits(after.coordination)
    told = [_kept_short(kind, now[kind]) for kind in now if kind not in known]
    if before.coordination.chart in COLLECTING and after.coordination.chart in COLLECTING:
        told += [f"{_WHO[kind]} are waited for again" for kind in known if kind not in now]
    return "; ".join(told)


def is_less(before: State, after: State) -> bool:
    """Whether fewer are waited for than before."""
    known = _limits(before.coordination) if before.coordination is not None else {}
    return after.coordination is not None and not set(_limits(after.coordination)) <= set(known)


def closed_without(applied: Applied) -> tuple[int, str]:
    """The round of the stage that an event closed before its deadline, and without whom; -1 and nothing for none."""
    closed, opened, event = applied.before.coordination, applied.after.coordination, applied.event
    if closed is None or opened is None or isinstance(event, TimerFired) or closed.chart not in COLLECTING:
        return -1, ""
    if (closed.round, closed.stage) == (opened.round, opened.stage):
        return -1, ""
    last = event.peer if isinstance(event, ReportSeen) else ""
    missing = [each for each in passed_over(closed) if each.peer != last and each.peer not in closed.reports]
    told = [_told(kind, [each for each in missing if kind_of(each) == kind]) for kind in KINDS]
    if not missing:
        return -1, ""
    who = " and ".join(filter(None, told))
    return closed.round, f"stage {closed.stage} closed without {who}, for whom it did not wait: {WHY}"


def _limits(coordination: Coordination) -> dict[Kind, int]:
    return limits_of(coordination) if coordination.chart in COLLECTING else {}


_WHO: dict[Kind, str] = {"newcomers": "newcomers", "members": "all members that were credited before"}


def _kept_short(kind: Kind, rounds: int) -> str:
    match kind:
        case "newcomers":
            return f"no stage waits for members that were never credited: {WHY}; reports that are in time count"
        case "members":
            least = "1 round" if rounds == 1 else f"{rounds} rounds"
            return (
                f"of other members, stages wait for those alone that were credited in {least} since they were last "
                f"waited for in vain: {WHY}; reports that are in time count"
            )
        case _:
            assert_never(kind)


def _told(kind: Kind, members: Sequence[Member]) -> str:
    """ "6 newcomers (a, b, c and 3 more)"."""
    if not members:
        return ""
    thing = kind if len(members) > 1 else kind.removesuffix("s")
    more = f" and {len(members) - NAMED_MAX} more" if len(members) > NAMED_MAX else ""
    return f"{len(members)} {thing} ({', '.join(each.peer for each in members[:NAMED_MAX])}{more})"
