"""The simulated DHT among strangers: what is kept under a key goes by the shipped rules of room, rank and work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.core.values import Standing
from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.store.capacity import KEY_BYTES_MAX, KeyCapacity
from swarmd.dht.store.seniority import Rank, Seniority
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ROUNDS_AHEAD, ROUNDS_BEHIND, Membership, Payload, ReportRecord, RolloutsRecord
from swarmd.sim.ports.dht import BARE_BYTES, MEMBER_BYTES, REPORT_BYTES, SWARM, Place, SimDht, SimReport, Store, Written

if TYPE_CHECKING:
    from swarmd.sim.world import World

RECORD_S = 900.0  # how long strangers' records live

__all__ = ["BARE_BYTES", "MEMBER_BYTES", "RECORD_S", "REPORT_BYTES", "GuardedDht", "GuardedStore", "Place"]


class GuardedStore(Store):
    """What the nodes of one side hold together, with bounds."""

    dht: GuardedDht

    def __init__(self, dht: GuardedDht) -> None:
        super().__init__(dht)
        self._rooms: dict[str, KeyCapacity[str]] = {}
        self._counted: dict[str, int] = {}  # name → version of the holders' seniority

    def copy(self) -> GuardedStore:
        twin = GuardedStore(self.dht)
        for name, records in self.keys.items():
            for record in records.values():
                twin.put(name, record)
        twin.before = dict(self.before)
        return twin

    def is_now(self, content: Payload) -> bool:
        """Whether a round is one whose records are taken."""
        clock = self.clock
        if clock is None or not isinstance(content, ReportRecord | RolloutsRecord):
            return True
        return -ROUNDS_BEHIND <= content.round - clock.round <= ROUNDS_AHEAD

    def _has_room(self, name: str, record: Written) -> bool:
        """Keep what comes first by rank, and drop what a record takes the place of."""
        if not self.is_now(record.content):
            return False
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = KeyCapacity(KEY_BYTES_MAX)
            self._counted[name] = self.dht.seniority.version
        held = self.keys[name].get(record.owner)
        if held is not None and held.size_bytes == record.size_bytes:
            return True
        if room.size_bytes + record.size_bytes > KEY_BYTES_MAX:
            self._make_room(name, room)
        gone = room.admit(record.owner, record.size_bytes, self._rank(name, record))
        for owner in gone or ():
            self.keys[name].pop(owner, None)
            self._shown.pop(name, None)
        return gone is not None

    def _rank(self, name: str, record: Written) -> Rank:
        """Where a record stands for those that hold it."""
        return self.dht.seniority.rank(record.owner, name.encode(), self.dht.work_of(record.owner), record.size_bytes)

    def _make_room(self, name: str, room: KeyCapacity[str]) -> None:
        """Forget what has expired, and rank by who is known now."""
        now = self.dht.world.now
        for owner in [owner for owner, record in self.keys[name].items() if record.expiration < now]:
            self._drop(name, owner)
        if self._counted[name] != self.dht.seniority.version:
            self._counted[name] = self.dht.seniority.version
            room.rank_anew(self.dht.seniority.rounds_of)

    def _sweep(self, now: float) -> None:
        super()._sweep(now)
        for name in [name for name in self._rooms if name not in self.keys]:
            del self._rooms[name], self._counted[name]

    def _drop(self, name: str, owner: str) -> None:
        super()._drop(name, owner)
        self._rooms[name].drop(owner)

    # --- what strangers write ---

    def keep_member(self, peer: str, name: str, left: bool, size_bytes: int) -> Written | None:
        """Keep a membership of some size. None where there is no room for it."""
        now = self.dht.world.now
        return self._keep(peer, Membership(SWARM, name, f"of {peer}", now, leaving=left), size_bytes)

    def keep_report(self, report: SimReport, size_bytes: int) -> Written | None:
        """Keep a report of some size. None where there is no room, or its round is not of this time."""
        seen, rollouts = report.seen, report.rollouts
        place = (seen.round, seen.stage, seen.reward, seen.digest, rollouts.size_bytes, rollouts.groups)
        return self._keep(seen.peer, ReportRecord(SWARM, *place), size_bytes)

    def keep_rollouts(self, report: SimReport, size_bytes: int) -> Written | None:
        """Keep rollouts of some size, likewise."""
        rollouts = report.rollouts
        place = (rollouts.round, rollouts.stage, rollouts.digest, rollouts.size_bytes, rollouts.groups)
        return self._keep(rollouts.peer, RolloutsRecord(SWARM, *place), size_bytes)

    def has_rollouts(self, place: Place, peer: str) -> bool:
        """Whether there are rollouts of a stage by this peer."""
        return peer in self.keys.get(names.rollouts(SWARM, *place), {})

    def _keep(self, peer: str, content: Payload, size_bytes: int) -> Written | None:
        name, expiration = content.key, self.dht.world.now + RECORD_S
        held = self.keys.get(name, {}).get(peer)
        if held is not None and held.expiration >= expiration:
            expiration = held.expiration + 0.001
        record = Written(peer, content, expiration, size_bytes)
        return record if self.put(name, record) else None


class GuardedDht(SimDht):
    """The network with strangers in it.

    Attributes:
        seniority: as those know it that hold what others read.
        works: bits of work of identities that have not done what every node does.
        eclipsed: node → how it is kept in the dark: "keys" or "all"; searches give it only what its guides know.
    """

    def __init__(self, world: World) -> None:
        self.seniority = Seniority(lambda peer: peer == world.coordinator, b"the holders of records")
        self.works: dict[str, int] = {}
        self.eclipsed: dict[int, str] = {}
        super().__init__(world)

    def make_store(self) -> GuardedStore:
        return GuardedStore(self)

    def work_of(self, peer: str) -> int:
        """Bits of work that an identity has cost."""
        return self.works.get(peer, WORK_BITS)

    def learn(self, standings: tuple[Standing, ...]) -> None:
        self.seniority.learn(standings)
