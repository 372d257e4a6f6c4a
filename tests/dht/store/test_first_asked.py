"""Who is asked first in a look-up: the coordinator too, but not in a large swarm, where everybody would ask it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.hivemind_api import DHTID
from swarmd.dht.store.announced_shards import AnnouncedShards
from swarmd.dht.store.lookup import Found
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ClockRecord

SWARM = "s"
COORDINATOR, ELDER = generate_identity().peer_id, generate_identity().peer_id


def asked_first(name: str, shards: int, *guides: str) -> set[str]:
    announced = AnnouncedShards(True, members_sharded=True)
    announced.note(ClockRecord(SWARM, 0, 0, 0.0, 1.0, shards=shards))
    policy = SimpleNamespace(coordinator=COORDINATOR, shards=announced)
    validator = SimpleNamespace(policy=policy, guides=lambda: (COORDINATOR, ELDER, *guides))
    life: Any = SimpleNamespace(
        dht=SimpleNamespace(protocol=SimpleNamespace(record_validator=validator), node_id=DHTID(1))
    )
    return {peer.to_base58() for _, peer in Found(life, name).first_asked(())}


@pytest.mark.parametrize("name", [names.clock(SWARM), names.leaderboard(SWARM, 3), names.reports(SWARM, 3, 0, 4, 1)])
def test_the_coordinator_of_a_large_swarm_is_not_asked_by_all(name: str) -> None:
    assert asked_first(name, shards=4) == {ELDER}


def test_that_of_a_small_swarm_is() -> None:
    assert asked_first(names.clock(SWARM), shards=0) == {COORDINATOR, ELDER}
