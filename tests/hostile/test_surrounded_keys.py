"""A crowd on or beside a key: honest records are still found, and newcomers are credited."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from swarmd.core.commands import Gather
from swarmd.core.events import LinkUp, MemberSeen, RecordsRejected, RolloutsGathered
from swarmd.dht.identity.identity import Identity, generate_identity, write_private_file
from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.store.lookup import BREADTH
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Membership
from tests.dht.driver import SWARM, Driver, until
from tests.hostile.actors import fill
from tests.hostile.crowd import Crowd
from tests.hostile.eclipser import Eclipser
from tests.hostile.swarm import SmallSwarm, small_swarm

pytestmark = pytest.mark.anyio

GROUND = 4000  # identities made, of which the nearest to the key come

KEY = names.rollouts_key(SWARM, 1, 0)


def distance(peer_id: str) -> int:
    """From a peer's place in the DHT to the key."""
    return int.from_bytes(names.key_id(peer_id), "big") ^ int.from_bytes(names.key_id(KEY), "big")


def grind(count: int) -> list[Identity]:
    """The identities nearest to the key, of very many."""
    return sorted((generate_identity() for _ in range(GROUND)), key=lambda each: distance(each.peer_id))[:count]


class Ground(Eclipser):
    """An eclipser that keeps to its own id, which lies where it wants to be."""

    async def come(self, addresses: Sequence[str]) -> None:
        """Take a place in everybody's table."""
        await super().come(addresses)
        await self.arm()
        ping = dht_pb2.PingRequest(peer=self._info)
        for victim in self.victims:
            await self.p2p.call_protobuf_handler(victim, "DHTProtocol.rpc_ping", ping, dht_pb2.PingResponse)


def ground(root: Path) -> tuple[Ground, ...]:
    """As many as a look-up asks."""
    made = []
    for number, identity in enumerate(grind(BREADTH)):
        path = root / f"ground-{number}.key"
        write_private_file(path, identity.encode())
        made.append(Ground(root / f"g{number}", path))
    return tuple(made)


async def gathered_at(driver: Driver) -> set[str]:
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
            assert await gathered_at(driver) == swarm.peers - {driver.peer_id}


@pytest.mark.soak
async def test_a_stranger_beside_every_key_stops_no_round(tmp_path: Path) -> None:
    eclipser = Eclipser(tmp_path / "o")
    async with small_swarm(tmp_path, attackers=(eclipser,)) as swarm:
        await eclipser.come([await driver.address() for driver in swarm.drivers])
        await eclipser.arm()
        for round in (0, 1):
            for key in (
                names.clock_key(SWARM),
                names.members_key(SWARM),
                names.reports_key(SWARM, round, 0),
                names.rollouts_key(SWARM, round, 0),
            ):
                await eclipser.claim(key)
            assert await swarm.run_round(round) == swarm.peers
        for driver in swarm.drivers:
            await driver.expect(RecordsRejected, peer=eclipser.peer_id, reason="wrong-id")
            assert max(event.peers for event in driver.seen(LinkUp)) <= 3, "one place for each peer"


async def arrive(swarm: SmallSwarm, crowd: Crowd, identities: int) -> None:
    """The crowd comes, connected to everybody."""
    await crowd.come([await driver.address() for driver in swarm.drivers])
    crowd.gather(identities)


async def test_a_newcomer_is_credited_in_its_first_round_beside_a_crowd(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path / "o")
    async with small_swarm(tmp_path, followers=1, attackers=(crowd,)) as swarm:
        assert await swarm.run_round(0) == swarm.peers
        await swarm.credit(0)
        await arrive(swarm, crowd, 400)
        await crowd.write(Membership(SWARM, "x" * 64, "nonce", 1.7e9, addresses=("/" + "x" * 255,) * 8))
        await fill(crowd, 1)
        newcomer = Driver(
            tmp_path / "newcomer", swarm.coordinator.peer_id, (await swarm.coordinator.address(),), poll_s=1.0
        )
        swarm.followers.append(newcomer)
        await swarm.start(newcomer)
        assert await swarm.run_round(1) == swarm.peers
        assert len(swarm.coordinator.seen(MemberSeen)) < 300, "not all of the crowd is news at once"
