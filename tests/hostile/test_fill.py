"""Free identities that fill the keys of the coming rounds keep neither members nor newcomers out."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from swarmd.core.commands import Gather
from swarmd.core.events import MemberSeen, RolloutsGathered
from swarmd.dht.wire.records import Membership, ReportRecord, RolloutsRecord
from tests.dht.driver import SWARM, Driver
from tests.dht.making import DIGEST
from tests.hostile.crowd import Crowd
from tests.hostile.swarm import SmallSwarm, small_swarm

pytestmark = pytest.mark.anyio

LARGE = b"x" * 48 * 1024


async def arrive(swarm: SmallSwarm, crowd: Crowd, identities: int) -> None:
    """The crowd comes, connected to everybody."""
    addresses = [await driver.address() for driver in swarm.drivers]
    await crowd.open(addresses[0])
    crowd.gather(identities)
    for address in addresses[1:]:
        await crowd.meet(address)


async def fill(crowd: Crowd, round: int) -> None:
    """Reports of all identities, and rollouts that take all room there is, to the last byte."""
    record = RolloutsRecord(SWARM, round, 0, DIGEST, 10, 1)
    for part, body in ((slice(0, 62), LARGE), (slice(62, 200), b"x" * 200), (slice(200, 400), b"")):
        await crowd.write(msgspec.structs.replace(record, body=body), part)
    await crowd.write(ReportRecord(SWARM, round, 0, 1e6, DIGEST, 10, 1))


async def test_members_report_into_keys_that_a_crowd_has_filled(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path / "o")
    async with small_swarm(tmp_path, attackers=(crowd,)) as swarm:
        assert await swarm.run_round(0) == swarm.peers
        await swarm.credit(0)
        await arrive(swarm, crowd, 400)
        for round in (1, 2):
            await fill(crowd, round)
            assert await swarm.run_round(round) == swarm.peers
            await swarm.credit(round)
        for driver in swarm.drivers:
            assert await gathered_by(driver, 2) == swarm.peers - {driver.peer_id}


async def gathered_by(driver: Driver, round: int) -> set[str]:
    """Honest peers whose rollouts of a round a node gets."""
    await driver.do(Gather(f"gather/{round + 1}/0", round + 1, 0, round, 0, time.time() + 20.0))
    gathered = await driver.expect(RolloutsGathered, round=round + 1)
    return {ref.peer for ref in gathered.rollouts if ref.digest != DIGEST}


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
