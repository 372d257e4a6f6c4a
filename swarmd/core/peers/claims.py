"""Whether what peers claim holds: the reward in a signed report, beside what the rollouts it names give here. Pure.

A report's reward is the mean over all completions of a stage, of which the peer shares a part, not chosen by chance:
groups that teach something come first. So only a bound is sound: what was shared counts as it is scored here, and each
completion that was not, or could not be scored here whole, as the most that one can be worth. How many there are in all
the peer says itself, by the sum in its rollouts; no more are believed than this node's own recipe allows twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from swarmd.core.events import RolloutsGathered, StageTrained
from swarmd.core.peers.observed import Claimant, Claims
from swarmd.core.state import AnyState
from swarmd.core.turn import Turn
from swarmd.core.values import Backing, Claim

BITS_KEPT = 8  # latest stages of a peer in which its claim could be compared
GAPS_MIN = 3  # of these, in which it claimed too much, from which on its claims do not hold
CLAIMANTS_KEPT = 256  # peers that claimed too much at least once lately; the oldest is forgotten
TOLERANCE = 0.05  # of the most that a completion can be worth: scorers' clocks differ, a sandbox is a little flaky
RECIPES = 2.0  # so many times the completions of this node's own recipe a peer may have made


def on_gathered(turn: Turn, event: RolloutsGathered, source: tuple[int, int] | None) -> None:
    """Keep what was claimed of the stage `source`, until its rollouts have been scored."""
    known = turn.state.claims or Claims()
    if source is not None:
        turn.state.claims = replace(known, round=source[0], stage=source[1], claims=event.claims)


def on_stage_trained(turn: Turn, event: StageTrained, source: tuple[int, int] | None) -> None:
    """Compare the claims with what the rollouts give."""
    known = turn.state.claims
    if known is None or not known.claims or source != (known.round, known.stage):
        return
    backings = {backing.peer: backing for backing in event.backed}
    claimants = {claimant.peer: claimant for claimant in known.claimants}
    for claim in known.claims:
        backing = backings.get(claim.peer)
        if backing is not None and claim.peer != turn.settings.peer:
            _count(claimants, claim, backing)
    kept = tuple(claimants.values())[-CLAIMANTS_KEPT:]
    turn.state.claims = replace(known, claims=(), claimants=kept)


def _count(claimants: dict[str, Claimant], claim: Claim, backing: Backing) -> None:
    most = backed_most(claim, backing)
    excess = claim.reward > most + TOLERANCE * backing.most
    before = claimants.get(claim.peer)
    if before is None and not excess:
        return
    before = before or Claimant(claim.peer)
    gaps = (before.gaps << 1 | excess) & ((1 << BITS_KEPT) - 1)
    if not gaps:
        del claimants[claim.peer]
        return
    claimed, backed = (claim.reward, most) if excess else (before.claimed, before.backed)
    judged = min(before.judged + 1, BITS_KEPT)
    claimants[claim.peer] = replace(before, judged=judged, gaps=gaps, claimed=claimed, backed=backed)


def backed_most(claim: Claim, backing: Backing) -> float:
    """The highest mean reward that a peer's rollouts leave room for, in the unit of rewards."""
    said = backing.total / claim.reward if claim.reward > 0 else 0.0
    count = max(backing.completions, min(said, RECIPES * backing.recipe))
    if count <= 0:
        return backing.most
    return (backing.reward + (count - backing.completions) * backing.most) / count


def unbacked(state: AnyState) -> tuple[Claimant, ...]:
    """Peers whose claims do not hold, again and again."""
    claimants: Iterable[Claimant] = state.claims.claimants if state.claims is not None else ()
    return tuple([claimant for claimant in claimants if claimant.gaps.bit_count() >= GAPS_MIN])


def words_of(claimant: Claimant) -> str:
    """What is wrong with a peer's claims."""
    return (
        f"{claimant.peer} claims more than its rollouts give: {claimant.claimed:.3f} where at most "
        f"{claimant.backed:.3f} are left room for, and so in {claimant.gaps.bit_count()} of the last {claimant.judged} "
        "stages that could be compared"
    )
