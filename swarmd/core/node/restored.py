"""A node that was brought back from a backup signs nothing again that it may have signed since the backup was made.

Where a contract keeps the rounds it knows what was submitted. The signed reports in the DHT nobody keeps, so a restored
node takes part only from the round after the first one that it saw opening.
"""

from __future__ import annotations

from swarmd.bounds import fit
from swarmd.core.events import RoundAnnounced
from swarmd.core.state import AnyState, Heard
from swarmd.core.turn import Turn

PACE_S = 5.0  # clocks are set, and messages take their time: by so much the time between two rounds may differ


def raise_floor(turn: Turn, event: RoundAnnounced, round: int) -> None:
    """The swarm is at `round`, as far as this node hears.

    What it hears first may be old: a DHT gives such records now and then, or half of a parted swarm does. A later
    round that opens while it listens is new, and whatever it signed before is of that round at the latest. The
    contract's word is never old; an announcement whose time has passed by this node's clock says nothing by itself, but
    that clock may be ahead: where rounds follow each other here as they do by the coordinator's clock, they are new.
    """
    state = turn.state
    if not state.restored:
        return
    certain = event.final or turn.chain_is_up
    in_time, in_pace = event.deadline_at > turn.at, False
    if not certain:
        in_pace = _is_in_pace(turn, event, round)
        state.heard = _heard_after(turn, event, round)
        state.floor = fit(max(state.floor, round + 1))
    if not (certain or in_time or in_pace):
        return
    settled = certain or in_pace or 0 <= state.first_heard < round
    state.restored, state.heard = not settled, None if settled else state.heard
    state.first_heard = round if state.first_heard < 0 else state.first_heard
    state.floor = fit(max(state.floor, round + (not event.final)))


def _is_in_pace(turn: Turn, event: RoundAnnounced, round: int) -> bool:
    """Whether a round is heard of as long after its opening as an earlier one was, which was opened before it.

    Both waited equally long for this node to hear of them, so the later one was opened while it listened, unless all
    that it hears is old by the same time. What lay somewhere for a while comes too late, and what follows such a record
    too early.
    """
    heard = turn.state.heard
    if heard is None or round <= heard.round:
        return False
    early = turn.at - event.opened_at < heard.after_s - PACE_S
    return not early and _is_open(turn, event, heard)


def _is_open(turn: Turn, event: RoundAnnounced, heard: Heard) -> bool:
    """Whether a stage's time is not over, by what this node has heard of the coordinator's clock."""
    return event.deadline_at + heard.after_s > turn.at


def _heard_after(turn: Turn, event: RoundAnnounced, round: int) -> Heard:
    """How long after its opening a round was heard of at the earliest; of each round the first announcement tells.

    One that is over by that measure begins it anew: a clock may have been set.
    """
    heard, after_s = turn.state.heard, turn.at - event.opened_at
    if heard is None or (round > heard.round and not _is_open(turn, event, heard)):
        return Heard(round, after_s)
    return Heard(round, min(after_s, heard.after_s)) if round > heard.round else heard


def is_barred(state: AnyState, round: int) -> bool:
    """Whether this node may have signed something of the round before it was restored."""
    return state.restored or round < state.floor
