"""A node that was brought back from a backup signs nothing again that it may have signed since the backup was made.

Where a contract keeps the rounds it knows what was submitted. The signed reports in the DHT nobody keeps, so a restored
node takes part from the first round only that had not opened when it heard of the swarm again.
"""

from __future__ import annotations

from swarmd.core.events import RoundAnnounced
from swarmd.core.state import State
from swarmd.core.turn import Turn


def raise_floor(turn: Turn, event: RoundAnnounced, round: int) -> None:
    """The swarm is at `round`: whatever this node signed before is of that round at the latest.

    An announcement whose time has passed may be an old one and settles nothing; the contract's never is.
    """
    live = event.final or event.deadline_at > turn.at or turn.chain_is_up
    if turn.state.restored and live:
        turn.set(restored=False, floor=max(turn.state.floor, round + (not event.final)))


def is_barred(state: State, round: int) -> bool:
    """Whether this node may have signed something of the round before it was restored."""
    return state.restored or round < state.floor
