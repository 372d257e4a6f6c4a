"""How many shards the stages of a round have, as the clock announces it. No hivemind in it."""

from __future__ import annotations

from typing import NamedTuple

from swarmd.dht.network_session import NetworkSession
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ClockRecord
from swarmd.dht.wire.shards import MembersPlace, shard_of
from swarmd.errors import NetworkDown


class Shard(NamedTuple):
    """Where a peer's records of a stage lie."""

    shards: int  # of the stage; 0: it has none
    shard: int


async def find_shards(session: NetworkSession, round: int) -> int:
    """Number of shards of a round's stages; the clock is read where this node has heard too little of it.

    Raises:
        NetworkDown: nobody answered; that is not the same as none.
    """
    known = session.shards.of(round)
    if known is not None:
        return known
    await _read_clock(session, f"for the shards of round {round}")
    return session.shards.latest_of(round)


async def find_members_place(session: NetworkSession) -> MembersPlace:
    """Where memberships lie; the clock is read where this node has not heard it yet. Raises NetworkDown."""
    if session.shards.awaits_place:
        await _read_clock(session, "for the shards of memberships")
    return session.shards.members


async def _read_clock(session: NetworkSession, purpose: str) -> None:
    found = await session.records.find(names.clock(session.swarm))
    clock = found.records.get(session.coordinator)
    if clock is not None and isinstance(clock.content, ClockRecord):
        session.shards.note(clock.content)
    elif not found.answered and not session.coordinating:
        raise NetworkDown(f"no peer answered when the clock was read {purpose}")


async def find_own_shard(session: NetworkSession, round: int, stage: int) -> Shard:
    """Where this node's own records of a stage lie. Raises NetworkDown."""
    shards = await find_shards(session, round)
    return Shard(shards, shard_of(session.swarm, session.peer_id, round, stage, shards))
