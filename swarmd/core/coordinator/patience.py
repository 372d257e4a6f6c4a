"""How often a coordinator waits in vain: for newcomers, and for members that were credited and then fell silent.

A stage that waits for somebody who does not report lasts to its deadline. Identities cost little, so there is no end of
them: one that reports now and then, or a new one for each stage, would have every stage last that long. So what was
waited in vain is remembered, forgotten by one stage's worth with each stage that closes by its quorum, and while there
is more of it than honest nodes bring about now and then, nobody waits for newcomers, or for members that have been
credited too rarely since a stage last waited for them in vain. Their reports count all the same, if they come while the
stage is open.
"""

from __future__ import annotations

from msgspec.structs import replace

from swarmd.bounds import fit
from swarmd.core.state import AnyCoordination, Member
from swarmd.core.turn import Turn

PATIENCE_SINCE = 11  # rules under which a coordinator remembers what it waited for in vain
VAIN_STAGES = 64  # stages that close by their quorum, after which one that waited in vain is forgotten
ALLOWED = 8  # that may be remembered before anybody is waited for less
STEPS_MAX = 12  # from there on, each asks of members for twice as many rounds


def may_wait_for(coordination: AnyCoordination, member: Member) -> bool:
    """Whether the open stage may wait for a member at all, after what was waited in vain."""
    if not member.rounds:
        return coordination.vain_newcomers <= ALLOWED * VAIN_STAGES
    return member.rounds - member.missed_at >= coordination.steady_min


def on_quorum(turn: Turn) -> None:
    """A stage closed with the reports that it waited for."""
    coordination = turn.coordination
    coordination.vain_newcomers = max(0, coordination.vain_newcomers - 1)
    coordination.vain_members = max(0, coordination.vain_members - 1)


def on_deadline(turn: Turn, missing: list[Member]) -> None:
    """A stage's time is over, and the reports of these members, for whom it waited, have not come."""
    coordination, own = turn.coordination, turn.settings.peer
    missed = {member.peer: member for member in missing if member.peer != own}
    if not missed:
        return
    if any(not member.rounds for member in missed.values()):
        coordination.vain_newcomers = _add_stage(coordination.vain_newcomers, ALLOWED + 1)
    if any(member.rounds for member in missed.values()):
        coordination.vain_members = _add_stage(coordination.vain_members, ALLOWED + STEPS_MAX)
    coordination.members = coordination.members.renewed(
        [replace(each, missed_at=each.rounds) if each.peer in missed else each for each in coordination.members]
    )


def _add_stage(vain: int, stages_max: int) -> int:
    return fit(vain + VAIN_STAGES, stages_max * VAIN_STAGES)


def find_steady_min(coordination: AnyCoordination, own: str) -> int:
    """Rounds that a credited member must have been credited for since a stage last waited for it in vain.

    Never more than half of what this node itself has, so that members who joined when it was half as old are waited for
    whatever others do.
    """
    steps = -(-coordination.vain_members // VAIN_STAGES) - ALLOWED
    if steps <= 0:
        return 0
    member = coordination.members.get(own)
    return min((1 << steps) - 1, (member.rounds if member is not None else 0) // 2)
