"""A crowd on or beside a key: honest records are still found, and newcomers are credited."""

from pathlib import Path

import pytest

from swarmd.core.events import MemberSeen
from swarmd.dht.wire.records import Membership
from tests.dht.driver import SWARM, Driver
from tests.hostile.actors import fill
from tests.hostile.crowd import Crowd
from tests.hostile.swarm import SmallSwarm, small_swarm

pytestmark = pytest.mark.anyio


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
