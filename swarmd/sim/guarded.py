"""The simulated network worker among hostile peers: what they do to it, and what the shipped bounds leave of that."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from random import Random

from swarmd.dht.p2p.limits import ALL_HINTS, HINTS, GossipLimits
from swarmd.dht.store.seniority import choose_trusted_peers
from swarmd.dht.wire.records import RolloutsRecord
from swarmd.errors import NetworkDown
from swarmd.sim.dht import SimDht, Written, is_alive
from swarmd.sim.network import ROLLOUTS_BYTES, NetworkWorker, body_of
from swarmd.sim.processes import SimSupervisor
from swarmd.sim.simulation import peer_of

BOOTSTRAP = (peer_of(0), peer_of(1))  # that every node was given
STRANGERS = tuple(f"beside-{number}" for number in range(5))  # who answer for every key of a node in the dark
GIVING = ("sleeper",)  # hostile identities that give the bodies of what they name
SILENT = ("sybil",)  # that never answer


class GuardedNetworkWorker(NetworkWorker):
    """A node's place in a DHT with strangers in it."""

    def __init__(self, supervisor: SimSupervisor, pid: int, dht: SimDht[NetworkWorker]) -> None:
        super().__init__(supervisor, pid, dht)
        self.hints = GossipLimits(HINTS, ALL_HINTS, self.runtime.now)

    def make_chance(self) -> Random:
        """Honest chances under attack have a stream of their own."""
        return self.world.guarded_random

    # --- what searches find ---

    def _is_surrounded(self) -> bool:
        """Whether those nearest to every key are strangers."""
        return self.index in self.dht.eclipsed and self.peer != self.world.coordinator

    def reaches(self, peer: Hashable) -> bool:
        """With "all" nobody honest can be called."""
        return self.dht.eclipsed.get(self.index) != "all" and super().reaches(peer)

    def guides(self) -> list[str]:
        view, coordinator = self.session.view, self.world.coordinator
        return choose_trusted_peers(self.peer, coordinator, BOOTSTRAP, view.seniority.elders, view.random.sample)

    def near(self, place: int, count: int) -> list[str]:
        return list(STRANGERS[:count]) if self._is_surrounded() else super().near(place, count)

    def takes(self, peer: Hashable) -> bool:
        return peer in STRANGERS or super().takes(peer)

    def search(self, name: str) -> Mapping[str, Written]:
        """Nothing if strangers answer for every key and no guide does."""
        return super().search(name) if not self._is_surrounded() or any(map(self.reaches, self.guides())) else {}

    def keep(self, name: str, record: Written) -> bool:
        """As in any DHT. Honest peers must have room for what every node has to write."""
        store, content = self.store, record.content
        held = store.keys.get(name, {}).get(record.owner)
        kept = super().keep(name, record)
        later = held is not None and held.expiration >= record.expiration
        lives = is_alive(record, self.world.now) and store.is_now(content) and not later
        due = lives and not (isinstance(content, RolloutsRecord) and content.body)
        self.world.on_kept(self.index, record, kept, due)
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
        if self.hints.try_charge_sender(owner) and self.hints.try_charge_all(self.session.view.is_credited(owner)):
            super().take_hint(key, owner, expiration)

    def refuse(self, senders: Iterable[str], reason: str) -> None:
        """Records or calls of these are refused."""
        for sender in senders:
            self.session.view.rejections.count(sender, reason)

    def flood(self, senders: Iterable[str], count: int) -> None:
        """Each of these sends `count` hints at once, of which the bounds let some in."""
        for sender in senders:
            if self.hints.try_charge_sender(sender, count):
                self.hints.try_charge_all(False, count)
            else:
                self.session.view.rejections.count(sender, "hints")
