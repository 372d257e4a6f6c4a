"""When a node's records expire: always later than those before under a key, whatever its machine's clock shows."""

from __future__ import annotations

from swarmd.dht.rounds.publisher import Publisher
from swarmd.dht.store.own_records import OwnRecordStore
from swarmd.dht.wire.records import Payload
from swarmd.sim.coroutines import VirtualRuntime
from tests.dht.making import MEMBERSHIP, SWARM

NOW, TTL_S = 1.7e9, 900.0


class NoDisk:
    def load(self) -> list[object]:
        return []

    async def save(self, kept: list[object]) -> None: ...


def test_a_record_expires_after_one_of_a_clock_that_was_ahead_as_soon_as_peers_take_that() -> None:
    clock = [NOW]
    store = OwnRecordStore(NoDisk(), SWARM)  # type: ignore[arg-type]
    runtime = VirtualRuntime(lambda *_: None, lambda: clock[0], lambda: clock[0])
    publisher = Publisher(None, store, runtime, TTL_S, True, lambda record: None)  # type: ignore[arg-type]
    ahead = NOW + 3000.0 + TTL_S
    store.keep(MEMBERSHIP, ahead)
    store.keep(MEMBERSHIP, publisher._expiration(MEMBERSHIP.key))
    assert store.floors(MEMBERSHIP.key) == (NOW + TTL_S, ahead), "nobody would take a later one"
    clock[0] += 300.0
    assert publisher._expiration(MEMBERSHIP.key) > ahead


def test_a_later_record_from_a_clock_that_was_ahead_does_not_hide_how_late_the_last_one_expires() -> None:
    content: Payload = MEMBERSHIP
    store = OwnRecordStore(NoDisk(), SWARM)  # type: ignore[arg-type]
    runtime = VirtualRuntime(lambda *_: None, lambda: NOW, lambda: NOW)
    publisher = Publisher(None, store, runtime, TTL_S, True, lambda record: None)  # type: ignore[arg-type]
    store.keep(content, NOW + TTL_S + 60.0)
    publisher._floors[content.key] = NOW + 5000.0  # a peer has shown it
    assert NOW + TTL_S + 60.0 < publisher._expiration(content.key) < NOW + TTL_S + 61.0
