"""Whom a coordinator's open stage does not wait for, because others of their kind were waited for in vain. Pure."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from swarmd.core.coordinator.coordination import is_awaited
from swarmd.core.coordinator.patience import may_wait_for, waits_for_newcomers
from swarmd.core.state import Coordination, Member

Kind = Literal["newcomers", "members"]  # never credited, and credited before


def kind_of(member: Member) -> Kind:
    """The kind that a member is of."""
    return "members" if member.rounds else "newcomers"


def limits_of(coordination: Coordination) -> dict[Kind, int]:
    """The kinds of which the open stage does not wait for all, with the rounds of credit that would do, 0 for none."""
    limits: dict[Kind, int] = {} if waits_for_newcomers(coordination) else {"newcomers": 0}
    return limits | ({"members": coordination.steady_min} if coordination.steady_min else {})


def passed_over(coordination: Coordination) -> list[Member]:
    """Members whose reports the open stage would wait for, had nobody been waited for in vain."""
    if not limits_of(coordination):
        return []
    patient = replace(coordination, vain_newcomers=0, steady_min=0)
    return [
        member
        for member in coordination.members
        if not may_wait_for(coordination, member) and is_awaited(patient, member)
    ]
