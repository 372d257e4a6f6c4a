"""One stranger that claims the places beside the swarm's keys cuts nobody off from anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.core.events import LinkUp, RecordsRejected
from swarmd.dht.wire import names
from tests.dht.driver import SWARM
from tests.hostile.eclipser import Eclipser
from tests.hostile.swarm import small_swarm

pytestmark = pytest.mark.anyio


@pytest.mark.soak
async def test_a_stranger_beside_every_key_stops_no_round(tmp_path: Path) -> None:
    eclipser = Eclipser(tmp_path / "o")
    async with small_swarm(tmp_path, attackers=(eclipser,)) as swarm:
        addresses = [await driver.address() for driver in swarm.drivers]
        await eclipser.open(addresses[0])
        await eclipser.arm()
        for address in addresses[1:]:
            await eclipser.meet(address)
        for round in (0, 1):
            for key in (
                names.clock(SWARM),
                names.members(SWARM),
                names.reports(SWARM, round, 0),
                names.rollouts(SWARM, round, 0),
            ):
                await eclipser.claim(key)
            assert await swarm.run_round(round) == swarm.peers
        for driver in swarm.drivers:
            await driver.expect(RecordsRejected, peer=eclipser.peer_id, reason="wrong-id")
            assert max(event.peers for event in driver.seen(LinkUp)) <= 3, "one place for each peer"
