"""The allow-list, where there are more changes than are remembered one by one."""

from __future__ import annotations

import pytest

from swarmd.chain import membership
from swarmd.core.events import MembershipRead
from tests.chain.grounds import Ground, watching

CHANGES_KEPT = 3


@pytest.mark.anyio
async def test_many_changes_are_read_together(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "CHANGES_MAX", CHANGES_KEPT)
    swarm, peers = ground.swarm, tuple("abcdefgh")
    swarm.send(swarm.owner, "grantRole", swarm.role("MEMBERSHIP_MANAGER_ROLE"), swarm.owner)
    swarm.send(swarm.owner, "allowPeers", [peers[0]])
    swarm.send(swarm.owner, "setMembershipOpen", False)
    async with watching(ground.config(ground.ws, depth=20)) as watch:
        for peer in peers[1:]:
            swarm.send(swarm.owner, "allowPeers", [peer])
        await watch.settle(ground)
        assert len(watch.watcher.membership._changes) == CHANGES_KEPT
        ground.mine(14)
        assert (await watch.expect(MembershipRead, peers=peers[:2])).open is False
        ground.mine(5)
        await watch.expect(MembershipRead, peers=peers[:7])
        ground.mine()
        await watch.expect(MembershipRead, peers=peers)
