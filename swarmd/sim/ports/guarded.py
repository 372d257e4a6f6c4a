"""The simulated network among hostile peers: what they do to it, and what the shipped bounds leave of that.

What is kept under a key goes by the shipped rules of capacity, rank and work (`GuardedStore`); what a node finds, by
whom it can reach (`GuardedNetworkWorker`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING

from swarmd.core.values import Standing
from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.limits.hint_limits import HintBounds
from swarmd.dht.p2p.search_peers import choose_guides
from swarmd.dht.store.key_capacity import KEY_BYTES_MAX, KeyCapacity
from swarmd.dht.store.seniority import Rank, Seniority
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ROUNDS_AHEAD, ROUNDS_BEHIND, Membership, Payload, ReportRecord, RolloutsRecord
from swarmd.errors import NetworkDown
from swarmd.sim.ports.dht import (
    SWARM,
    Place,
    SimDht,
    SimReport,
    Store,
    Written,
    is_alive,
)
from swarmd.sim.ports.network import NetworkWorker
from swarmd.sim.ports.network_ports import ROLLOUTS_BYTES, body_of

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World

RECORD_S = 900.0  # how long strangers' records live


class GuardedStore(Store):
    """What the nodes of one side hold together, with bounds."""

    dht: GuardedDht

    def __init__(self, dht: GuardedDht) -> None:
        super().__init__(dht)
        self._rooms: dict[str, KeyCapacity] = {}
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

    def _make_room(self, name: str, room: KeyCapacity) -> None:
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


BOOTSTRAP = ("peer-000", "peer-001")  # that every node was given
STRANGERS = tuple(f"beside-{number}" for number in range(5))  # who answer for every key of a node in the dark
GIVING = ("sleeper",)  # hostile identities that give the bodies of what they name
SILENT = ("sybil",)  # that never answer


class GuardedNetworkWorker(NetworkWorker):
    """A node's place in a DHT with strangers in it."""

    dht: GuardedDht

    def __init__(self, node: SimNode, pid: int) -> None:
        super().__init__(node, pid)
        self.hints = HintBounds(self._now)

    def make_chance(self) -> Random:
        """Honest chances under attack have a stream of their own."""
        assert self.world.hostile is not None, "there are strangers"
        return self.world.hostile.random

    @property
    def store(self) -> GuardedStore:
        """What is held at its side of a partition."""
        store = self.dht.store_of(self)
        assert isinstance(store, GuardedStore), "all stores of a world are of one kind"
        return store

    # --- what searches find ---

    def _is_in_the_dark(self) -> bool:
        """Whether strangers answer for every key and no guide does."""
        return self._is_surrounded() and not any(map(self.reaches, self.guides()))

    def _is_surrounded(self) -> bool:
        """Whether those nearest to every key are strangers."""
        return self.node.index in self.dht.eclipsed and self.node.peer != self.world.coordinator

    def reaches(self, peer: Hashable) -> bool:
        """With "all" nobody honest can be called."""
        return self.dht.eclipsed.get(self.node.index) != "all" and super().reaches(peer)

    def guides(self) -> list[str]:
        session = self.session
        coordinator, elders = self.world.coordinator, session.seniority.elders
        return choose_guides(self.node.peer, coordinator, BOOTSTRAP, elders, session.sample)

    def near(self, place: int, count: int) -> list[str]:
        return list(STRANGERS[:count]) if self._is_surrounded() else super().near(place, count)

    def takes(self, peer: Hashable) -> bool:
        return peer in STRANGERS or super().takes(peer)

    def search(self, name: str) -> Mapping[str, Written]:
        return {} if self._is_in_the_dark() else super().search(name)

    def keep(self, name: str, record: Written) -> bool:
        """As in any DHT; but where honest peers have no room for what every node has to write, that is wrong."""
        store, content = self.store, record.content
        held = store.keys.get(name, {}).get(record.owner)
        kept = super().keep(name, record)
        later = held is not None and held.expiration >= record.expiration
        lives = is_alive(record, self.world.now) and store.is_now(content) and not later
        what = "membership" if isinstance(content, Membership) else "report"
        if lives and not (isinstance(content, RolloutsRecord) and content.body):
            self.world.note_room(self.node, what, kept)
        if kept and isinstance(content, ReportRecord):
            self.world.checks.honest.on_stored(record.owner, (content.round, content.stage))
        return kept

    def body_from(self, peer: str, digest: str) -> bytes | None:
        """Strangers give nothing, another body, or never an answer."""
        kind = peer.rpartition("-")[0]
        if kind == "peer":
            return super().body_from(peer, digest)
        if kind in SILENT:
            return None
        if kind == "freerider":
            raise NetworkDown(f"{peer} has no body {digest}")
        return body_of(digest) if kind in GIVING else bytes(ROLLOUTS_BYTES)

    # --- what strangers do ---

    def take_hint(self, key: str, owner: str, expiration: float) -> None:
        """A hint: of an owner that may still say something."""
        if self.hints.try_charge_sender(owner) and self.hints.try_charge_all(self.session.is_credited(owner)):
            super().take_hint(key, owner, expiration)

    def refuse(self, senders: Iterable[str], reason: str) -> None:
        """Records or calls of these are refused."""
        for sender in senders:
            self.session.rejections.count(sender, reason)

    def flood(self, senders: Iterable[str], count: int) -> None:
        """Each of these says so many hints at once, of which only the bounds let some in."""
        for sender in senders:
            if self.hints.try_charge_sender(sender, count):
                self.hints.try_charge_all(False, count)
            else:
                self.session.rejections.count(sender, "hints")
