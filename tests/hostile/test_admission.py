"""In a swarm by invitation, uninvited identities are refused, and peers invited by a member take part."""

import time
from pathlib import Path
from typing import Any

import pytest

from swarmd.core.events import MemberLeft, MemberSeen, RecordsRejected
from swarmd.dht.identity.identity import load_identity
from swarmd.dht.wire.invitations import OwnInvitations, invitation_to_text, make_invitation
from tests.dht.driver import SWARM, Driver
from tests.hostile.swarm import SmallSwarm

pytestmark = pytest.mark.anyio


async def test_who_is_invited_no_more_takes_part_no_more(tmp_path: Path) -> None:
    """One guest heeds that it is withdrawn, and one, like a node of before, does not; a third stays."""
    coordinator = Driver(tmp_path / "coordinator", poll_s=1.0, admission="invitation")
    creator = load_identity(coordinator.paths.root / "identity.key")
    made = OwnInvitations(coordinator.paths.invitations)
    swarm = SmallSwarm(coordinator, [])
    try:
        await swarm.start(coordinator)
        address = await coordinator.address()
        ids = {}
        for name in ("heeding", "stubborn", "staying"):
            bare = Driver(tmp_path / name, creator.peer_id, (address,))
            encoded = make_invitation(creator, SWARM, creator.peer_id, bare.peer_id)
            ids[name] = bytes.fromhex(made.add_invitation(encoded, bare.peer_id, 0.0, time.time()))
            rule: dict[str, Any] = {
                "admission": "invitation",
                "invitation": invitation_to_text(encoded),
                "poll_s": 1.0,
                "record_s": 30.0,
            }
            if name == "stubborn":
                rule["members"] = (bare.peer_id,)  # needs no invitation, as it sees it
            swarm.followers.append(Driver(tmp_path / name, creator.peer_id, (address,), **rule))
            await swarm.start(swarm.followers[-1])
        heeding, stubborn, staying = swarm.followers
        await staying.expect(MemberSeen, peer=stubborn.peer_id)
        for name in ("heeding", "stubborn"):
            made.withdraw(ids[name], True, time.time())
        for peer in (heeding.peer_id, stubborn.peer_id):
            await coordinator.expect(MemberLeft, peer=peer)
            await staying.expect(MemberLeft, peer=peer)
        assert await heeding.wait() == 78
        assert "was withdrawn" in heeding.faults[0].reason
        await coordinator.expect(RecordsRejected, reason="withdrawn")
        swarm.followers = [staying]
        assert await swarm.run_round(0) == swarm.peers
        swarm.followers = [staying, stubborn, heeding]
        await heeding.start()
        assert await heeding.wait() == 78, "it remembers"
    finally:
        for driver in swarm.drivers:
            await driver.clean()
