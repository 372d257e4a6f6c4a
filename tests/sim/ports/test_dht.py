"""What lies under a key of the simulated DHT, as readers with several clocks find it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarmd.dht.wire.records import PAST_S, TTL_MAX_S, Membership
from swarmd.sim.ports import network_ports
from swarmd.sim.ports.dht import MEMBERS, SWARM, Written
from swarmd.sim.profile import CALM, LARGE
from swarmd.sim.world import World

SMALL = replace(LARGE, nodes=24, hours=0.15, shard_members=4, gather_peers=3, min_peers=16)


def member(peer: str, expiration: float) -> Written:
    return Written(peer, Membership(SWARM, peer, peer, 0.0), expiration, 400)


def test_a_key_shows_the_same_until_it_changes_or_a_record_ends() -> None:
    world = World(0, CALM)
    store, now = world.dht.stores[0], world.now
    assert store.find(MEMBERS, now) == {}
    store.put(MEMBERS, member("one", now + 100.0))
    store.put(MEMBERS, member("two", now + 200.0))
    found = store.find(MEMBERS, now)
    assert list(found) == ["one", "two"] and store.find(MEMBERS, now + 1.0) is found
    assert list(store.find(MEMBERS, now + 100.0 + 2 * PAST_S)) == ["two"], "by a clock that is ahead"
    assert store.find(MEMBERS, now - TTL_MAX_S) == {}, "by one that is behind"
    store.put(MEMBERS, member("one", now + 300.0))
    assert found["one"].expiration == now + 100.0, "what was read stays as it was"
    assert store.find(MEMBERS, now)["one"].expiration == now + 300.0
    world.now += 250.0
    assert list(store.find(MEMBERS, world.now)) == ["one"]
    store.forget(("members",))
    assert store.find(MEMBERS, world.now) == {}


@pytest.mark.parametrize("inline_bytes_max", [0, 40960])
def test_a_leaderboard_is_read_also_where_it_is_too_large_for_its_record(
    inline_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_ports, "INLINE_BYTES_MAX", inline_bytes_max)
    world = World(0, SMALL)
    world.play()
    last = world.dht.standings[1].round
    kept = [each.standings for node, each in world.dht.standings.items() if node and each.round == last]
    assert last >= 3 and len(kept) >= 20
    assert all(standings is kept[0] for standings in kept), "all followers have the same one, and not each its own"
