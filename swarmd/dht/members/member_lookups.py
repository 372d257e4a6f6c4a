"""Looking for the memberships of single peers, in a swarm too large to read all of them. No hivemind in it."""

from __future__ import annotations

from collections.abc import Mapping

from cachetools import FIFOCache

from swarmd.dht.network_session import NetworkSession
from swarmd.dht.ports import Record, RecordsSink
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Membership
from swarmd.dht.wire.shards import MembersPlace, member_shard_of
from swarmd.errors import NetworkDown

KEPT_MAX = 4096  # members that are remembered; the one that was looked for longest ago is forgotten


class MemberLookups:
    """Whose membership this node has seen, and looking for those of others.

    Args:
        session: where all this happens.
        seen: called with each membership that was looked for.
    """

    def __init__(self, session: NetworkSession, seen: RecordsSink) -> None:
        self._session = session
        self._seen = seen
        self._until: FIFOCache[str, float] = FIFOCache(KEPT_MAX)  # member → expiration of its record

    def note(self, records: Mapping[str, Record]) -> None:
        """Remember whose memberships were read: they need not be looked for while they live."""
        for peer, record in records.items():
            self._until.pop(peer, None)
            if isinstance(record.content, Membership) and not record.content.leaving:
                self._until[peer] = record.expiration

    async def must_be_member(self, peer: str) -> None:
        """Return when the peer has shown to be a member; if all memberships lie under one key, none is asked for.

        Raises:
            NetworkDown: no membership of it is to be had.
        """
        session = self._session
        if not session.shards.members.shards or self._until.get(peer, 0.0) > session.policy.now():
            return
        self._until.pop(peer, None)
        for place in dict.fromkeys((session.shards.members, session.shards.members_before)):
            record = await self._find(peer, place)
            if record is not None:
                self._seen({peer: record})
                break
        if peer not in self._until:
            raise NetworkDown(f"no membership of {peer} is to be had")

    async def _find(self, peer: str, place: MembersPlace) -> Record | None:
        session = self._session
        name = names.members(session.swarm, *place, member_shard_of(session.swarm, peer, place))
        return (await session.records.find_of(name, peer)).records.get(peer)
