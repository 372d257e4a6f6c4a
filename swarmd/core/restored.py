"""A node that was brought back from a backup signs nothing again that it may have signed since the backup was made.

Where a contract keeps the rounds it knows what was submitted. The signed reports in the DHT nobody keeps, so a restored
node takes part only from the round after the first one that it saw opening.
"""

from __future__ import annotations

from swarmd.bounds import fit
from swarmd.core.events import RoundAnnounced
from swarmd.core.state import AnyState
from swarmd.core.turn import Turn


def raise_floor(turn: Turn, event: RoundAnnounced, round: int) -> None:
    """The swarm is at `round`, as far as this node hears.

    What it hears first may be old: a DHT gives such records now and then, or half of a parted swarm does. A later
    round that opens while it listens is new, and whatever it signed before is of that round at the latest. The
    contract's word is never old; an announcement whose time has passed says nothing.
    """
    state = turn.state
    if not state.restored or not (event.final or event.deadline_at > turn.at or turn.chain_is_up):
        return
    settled = event.final or turn.chain_is_up or 0 <= state.first_heard < round
    state.restored = not settled
    state.first_heard = round if state.first_heard < 0 else state.first_heard
    state.floor = fit(max(state.floor, round + (not event.final)))


def is_barred(state: AnyState, round: int) -> bool:
    """Whether this node may have signed something of the round before it was restored."""
    return state.restored or round < state.floor
