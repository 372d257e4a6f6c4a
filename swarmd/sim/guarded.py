"""The simulated network worker among hostile peers: what they do to it, within the shipped limits."""

from collections.abc import Hashable, Iterable, Mapping
from random import Random

from swarmd.dht.p2p.limits import ALL_HINTS, HINTS, GossipLimits
from swarmd.dht.store.seniority import choose_trusted_peers
from swarmd.dht.wire.records import RolloutsRecord
from swarmd.errors import NetworkDown
from swarmd.sim.dht import SimDht, SimRecord, is_unexpired
from swarmd.sim.network import ROLLOUTS_BYTES, SimNetworkWorker, make_rollouts_body
from swarmd.sim.processes import SimSupervisor
from swarmd.sim.simulation import peer_id_of

BOOTSTRAP = (peer_id_of(0), peer_id_of(1))  # of every node
STRANGERS = tuple(f"beside-{number}" for number in range(5))  # hostile identities that eclipse a node's keys
GIVING = ("sleeper",)  # hostile kinds that serve the bodies that they announce
SILENT = ("sybil",)  # hostile kinds that never answer


class AttackedNetworkWorker(SimNetworkWorker):
    """A node's network worker in a DHT with hostile peers."""

    def __init__(self, supervisor: SimSupervisor, pid: int, dht: SimDht[SimNetworkWorker]) -> None:
        super().__init__(supervisor, pid, dht)
        self.hints = GossipLimits(HINTS, ALL_HINTS, self.runtime.now)

    def make_random(self) -> Random:
        """Return the random stream for shipped code under attack, separate from the simulator's."""
        return self.world.guarded_random

    # --- what searches find ---

    def _has_only_hostile_neighbours(self) -> bool:
        """Return whether the peers nearest to every key are hostile."""
        return self.index in self.dht.eclipsed and self.peer != self.world.coordinator

    def can_reach(self, peer: Hashable) -> bool:
        """Return whether an honest node can be called; none can in an eclipse of kind "all"."""
        return self.dht.eclipsed.get(self.index) != "all" and super().can_reach(peer)

    def trusted_peers(self) -> list[str]:
        view, coordinator = self.session.view, self.world.coordinator
        return choose_trusted_peers(self.peer, coordinator, BOOTSTRAP, view.seniority.elders, view.random.sample)

    def nearest_peers(self, place: int, count: int) -> list[str]:
        return list(STRANGERS[:count]) if self._has_only_hostile_neighbours() else super().nearest_peers(place, count)

    def is_storing_peer(self, peer: Hashable) -> bool:
        return peer in STRANGERS or super().is_storing_peer(peer)

    def search_peers(self, name: str) -> Mapping[str, SimRecord]:
        """Return what others hold under a key; empty if the node is eclipsed and reaches no trusted peer."""
        return (
            super().search_peers(name)
            if not self._has_only_hostile_neighbours() or any(map(self.can_reach, self.trusted_peers()))
            else {}
        )

    def store_at_peers(self, name: str, record: SimRecord) -> bool:
        """Store an own record at peers, and check that honest peers had room for every necessary record."""
        store, content = self.partition_store, record.content
        held = store.keys.get(name, {}).get(record.owner)
        kept = super().store_at_peers(name, record)
        later = held is not None and held.expiration >= record.expiration
        lives = is_unexpired(record, self.world.now) and store.is_accepted_round(content) and not later
        due = lives and not (isinstance(content, RolloutsRecord) and content.body)
        self.world.on_store_attempt(self.index, record, kept, due)
        return kept

    def fetch_body(self, peer: str, digest: str) -> bytes | None:
        """Fetch a body. Hostile peers serve nothing, another body, or never answer."""
        kind = peer.rpartition("-")[0]
        if kind == "peer":
            return super().fetch_body(peer, digest)
        if kind in SILENT:
            return None
        if kind == "freerider":
            raise NetworkDown(f"{peer} has no body {digest}")
        return make_rollouts_body(digest) if kind in GIVING else bytes(ROLLOUTS_BYTES)

    # --- what strangers do ---

    def on_hint(self, key: str, owner: str, expiration: float) -> None:
        if self.hints.try_charge_sender(owner) and self.hints.try_charge_all(self.session.view.is_credited(owner)):
            super().on_hint(key, owner, expiration)

    def count_rejections(self, senders: Iterable[str], reason: str) -> None:
        """Count refused records or calls of these senders."""
        for sender in senders:
            self.session.view.rejections.count(sender, reason)

    def receive_hint_flood(self, senders: Iterable[str], count: int) -> None:
        """Receive `count` hints at once from each sender; the limits admit some of them."""
        for sender in senders:
            if self.hints.try_charge_sender(sender, count):
                self.hints.try_charge_all(False, count)
            else:
                self.session.view.rejections.count(sender, "hints")
