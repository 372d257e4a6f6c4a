"""What a node has against others, in words: its coordinator's conduct, and peers whose claims do not hold. Pure."""

from __future__ import annotations

from swarmd.core.peers import claims
from swarmd.core.peers.conduct import verdict_of, words_of
from swarmd.core.state import State

TOLD_MAX = 5  # peers that are named
NO_MORE = "the coordinator's conduct is no longer what it was blamed for"


def complaints_of(state: State) -> tuple[str, ...]:
    """What there is to say, a sentence each without its full stop."""
    words = words_of(state)
    false = [claims.words_of(claimant) for claimant in claims.unbacked(state)]
    further = [f"{len(false) - TOLD_MAX} more peers claim too much"] if len(false) > TOLD_MAX else []
    return (*([words] if words else []), *false[:TOLD_MAX], *further)


def conduct_turn(before: State, after: State) -> str:
    """What an event changed about it; empty for nothing."""
    told = []
    if before.conduct is not after.conduct and verdict_of(before) != verdict_of(after):
        told.append(words_of(after) or NO_MORE)
    if before.claims is not after.claims:
        known = {claimant.peer for claimant in claims.unbacked(before)}
        new = [claimant for claimant in claims.unbacked(after) if claimant.peer not in known]
        told += [claims.words_of(claimant) for claimant in new[:TOLD_MAX]]
    return "; ".join(told)


def is_trouble(before: State, after: State) -> bool:
    """Whether what changed is worse than before."""
    return bool(verdict_of(after)) or before.claims is not after.claims
