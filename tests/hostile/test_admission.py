"""In a swarm that asks for an invitation free identities get nothing in, and whom a member invites takes part."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.core.events import RecordsRejected
from swarmd.dht.admission import invite, write_invitation
from swarmd.dht.identity import load_identity
from swarmd.dht.records import ReportRecord
from tests.dht.driver import SWARM, Driver
from tests.dht.making import DIGEST
from tests.hostile.crowd import Crowd
from tests.hostile.swarm import SmallSwarm

pytestmark = pytest.mark.anyio


async def test_only_the_invited_take_part(tmp_path: Path) -> None:
    coordinator = Driver(tmp_path / "coordinator", poll_s=1.0, admission="invitation")
    creator = load_identity(coordinator.paths.root / "identity.key")
    swarm, crowd = SmallSwarm(coordinator, []), Crowd(tmp_path / "o")
    uninvited = Driver(tmp_path / "uninvited", creator.peer_id, admission="invitation")
    try:
        await swarm.start(coordinator)
        address = await coordinator.address()
        guest = Driver(tmp_path / "guest", creator.peer_id, (address,), poll_s=1.0)
        invitation = write_invitation(invite(creator, SWARM, creator.peer_id, guest.peer_id))
        guest = Driver(
            tmp_path / "guest", creator.peer_id, (address,), poll_s=1.0, admission="invitation", invitation=invitation
        )
        swarm.followers.append(guest)
        await swarm.start(guest)
        await crowd.open(address)
        crowd.gather(20)
        assert await crowd.write(ReportRecord(SWARM, 0, 0, 1.0, DIGEST, 10, 1)) == 0
        await coordinator.expect(RecordsRejected, peer=crowd.peer_id, reason="not-invited")
        assert await swarm.run_round(0) == swarm.peers
        await uninvited.start()
        assert await uninvited.wait() == 78
        assert "swarmd swarm invite" in uninvited.faults[0].reason
    finally:
        for driver in (*swarm.drivers, uninvited):
            await driver.clean()
        if hasattr(crowd, "p2p"):
            await crowd.close()
