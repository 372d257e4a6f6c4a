"""Identities that were ground until their hashes lie beside a key hide no record, and pass for no proof of one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from swarmd.core.commands import Gather
from swarmd.core.events import RolloutsGathered
from swarmd.dht.identity.identity import Identity, generate_identity, write_private
from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.store.lookup import BREADTH
from swarmd.dht.wire import names
from tests.dht.driver import SWARM, Driver, until
from tests.hostile.eclipser import Eclipser
from tests.hostile.swarm import SmallSwarm, small_swarm

pytestmark = pytest.mark.anyio

GROUND = 4000  # identities made, of which the nearest to the key come
KEY = names.rollouts(SWARM, 1, 0)


def distance(peer_id: str) -> int:
    """From a peer's place in the DHT to the key."""
    return int.from_bytes(names.key_id(peer_id), "big") ^ int.from_bytes(names.key_id(KEY), "big")


def grind(count: int) -> list[Identity]:
    """The identities nearest to the key, of very many."""
    return sorted((generate_identity() for _ in range(GROUND)), key=lambda each: distance(each.peer_id))[:count]


class Ground(Eclipser):
    """An eclipser that keeps to its own id, which lies where it wants to be."""

    async def come(self, addresses: list[str]) -> None:
        """Take a place in everybody's table."""
        await self.open(addresses[0])
        await self.arm()
        for address in addresses[1:]:
            await self.meet(address)
        ping = dht_pb2.PingRequest(peer=self._info)
        for victim in self.victims:
            await self.p2p.call_protobuf_handler(victim, "DHTProtocol.rpc_ping", ping, dht_pb2.PingResponse)


def ground(root: Path) -> tuple[Ground, ...]:
    """As many as a look-up asks."""
    made = []
    for number, identity in enumerate(grind(BREADTH)):
        path = root / f"ground-{number}.key"
        write_private(path, identity.encode())
        made.append(Ground(root / f"g{number}", path))
    return tuple(made)


async def gathered_by(driver: Driver) -> set[str]:
    """Peers whose rollouts under the key a node gets."""
    await driver.do(Gather("gather/2/0", 2, 0, 1, 0, time.time() + 20.0))
    return {ref.peer for ref in (await driver.expect(RolloutsGathered, round=2)).rollouts}


async def all_are_nearer(swarm: SmallSwarm, crowd: tuple[Ground, ...]) -> None:
    """The crowd lies nearer to the key than honest peers (chance may put one of them there), and is written to."""
    farthest = max(distance(each.peer_id) for each in crowd)
    assert sum(distance(peer) < farthest for peer in swarm.peers) <= 1
    await until(lambda: sum(bool(each.stored) for each in crowd) > 1)


@pytest.mark.soak
async def test_records_under_a_key_that_ground_identities_surround_are_found(tmp_path: Path) -> None:
    crowd = ground(tmp_path)
    async with small_swarm(tmp_path, attackers=crowd) as swarm:
        assert await swarm.run_round(0) == swarm.peers
        addresses = [await driver.address() for driver in swarm.drivers]
        await asyncio.gather(*(each.come(addresses) for each in crowd))
        assert await swarm.run_round(1) == swarm.peers, "a report is out when its rollouts are"
        await all_are_nearer(swarm, crowd)
        for driver in swarm.drivers:
            assert await gathered_by(driver) == swarm.peers - {driver.peer_id}
