"""Which keys of memberships a node watches: the one of all, or in a large swarm its own shard's. No hivemind in it."""

from __future__ import annotations

from collections.abc import Mapping

from swarmd.dht.network_session import NetworkSession
from swarmd.dht.ports import Record, RecordsSink
from swarmd.dht.rounds.key_watch import KeyWatch
from swarmd.dht.rounds.publisher import RENEWALS
from swarmd.dht.rounds.shard_counts import find_members_place
from swarmd.dht.wire import names
from swarmd.dht.wire.shards import MembersPlace, member_shard_of

WATCHED_SLOWLY = 6  # polls left out between two reads of what only the coordinator needs promptly
AT_ONCE = 8  # shards that the coordinator reads in each `dht.poll_s` when they are new to it


class MemberKeys:
    """The keys of memberships that are watched, wherever they lie at the time.

    A follower of a large swarm watches its own shard, where a twin would write. The coordinator watches all: after they
    have moved each is read at once and then after ever longer times, for members follow when they hear of it, until it
    is read once while its records live on. They are stored with it as well, which is as good as a hint.

    Args:
        session: where all this happens.
        seen: called with owner → record after each read of a key.
    """

    def __init__(self, session: NetworkSession, seen: RecordsSink) -> None:
        self._session = session
        self._seen = seen
        self._place = MembersPlace()
        self._watches: dict[int, KeyWatch] = {}  # by shard
        self._counted: dict[int, int] = {}  # members that were found in each
        self._due: dict[int, int] = {}  # poll in which each is to be read next, of those that have moved lately
        self._waits: dict[int, int] = {}  # polls that it was waited for that
        self._poll = 0  # how many there were

    def watch(self) -> None:
        """Watch for the rest of the session; from now on all go where the clock says that memberships lie."""
        self._session.shards.moved = self._move
        self._move()
        if self._session.coordinating:
            self._session.start(self._read_moved)

    async def _read_moved(self) -> None:
        """See that shards are read that are due: few at once, and again where nobody answered."""
        while True:
            await self._session.runtime.sleep(self._session.config.dht.poll_s)
            self._poll += 1
            for shard in [shard for shard, poll in self._due.items() if poll <= self._poll][:AT_ONCE]:
                self._watches[shard].look()

    def _wait_longer(self, shard: int) -> None:
        """A shard was read: it is due after twice the time, until it is watched often enough."""
        if self._due.get(shard, self._poll + 1) > self._poll:
            return
        del self._due[shard]  # the next time behind the others
        self._waits[shard] = 2 * self._waits.get(shard, 0) or 1
        if self._waits[shard] < self._polls():
            self._due[shard] = self._poll + self._waits[shard]

    def look(self) -> None:
        """Read the key of this node's own membership now."""
        watch = self._watches.get(self._own_shard())
        if watch is not None:
            watch.look()

    async def own_place(self) -> tuple[MembersPlace, int]:
        """Where this node's membership belongs, and in which shard. Raises NetworkDown."""
        place = await find_members_place(self._session)
        return place, member_shard_of(self._session.swarm, self._session.peer_id, place)

    def members_about(self, known: int) -> int:
        """Number of members of the swarm, of whom this node knows so many: as many in each shard as in its own."""
        if not self._place.shards or self._session.coordinating:
            return known
        return max(known, self._place.shards * self._counted.get(self._own_shard(), 0))

    def _own_shard(self) -> int:
        return member_shard_of(self._session.swarm, self._session.peer_id, self._place)

    def _move(self) -> None:
        session = self._session
        for watch in self._watches.values():
            session.unwatch(watch.name)
        self._place = session.shards.members
        self._watches, self._counted, self._due, self._waits = {}, {}, {}, {}
        shards = max(1, self._place.shards)
        for shard in range(shards) if session.coordinating else (self._own_shard(),):
            self._begin(shard)

    def _begin(self, shard: int) -> None:
        session, (shards, epoch) = self._session, self._place
        name = names.members(session.swarm, shards, epoch, shard)

        def seen(records: Mapping[str, Record]) -> None:
            self._counted[shard] = len(records)
            self._wait_longer(shard)
            self._seen(records)

        self._watches[shard] = session.watch(name, seen, self._polls(), later=shards > AT_ONCE)
        if session.coordinating and shards:
            self._due[shard] = self._poll

    def _polls(self) -> float:
        """Polls between two reads of a key."""
        dht = self._session.config.dht
        if not self._session.coordinating:
            return WATCHED_SLOWLY
        return max(1.0, dht.record_s / RENEWALS / dht.poll_s) if self._place.shards else 1
