"""The allow-list, where there are more changes than are remembered one by one."""

from __future__ import annotations

from typing import Any

import pytest

from swarmd.chain import membership
from swarmd.chain.contract import encode_call
from swarmd.core.events import MembershipRead
from tests.chain.grounds import Answer, Ground, middleman, result, watching

CHANGES_KEPT = 3


@pytest.mark.anyio
async def test_an_endpoint_that_knows_no_membership_opens_no_closed_swarm(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forget(call: dict[str, Any]) -> Answer:
        asked = call["params"][0]["data"] if call["method"] == "eth_call" else ""
        return result(call, "0x") if asked == "0x" + encode_call("membershipOpen()").hex() else None

    monkeypatch.setattr(membership, "RETRY_S", 0.05)
    ground.admit_only("me")
    async with middleman(ground.url) as between:
        between.act = forget
        async with watching(ground.config(between.url, depth=0)) as watch:
            await watch.settle(ground)
            await watch.until(lambda: between.calls["eth_call"] > 20 or bool(watch.seen(MembershipRead)))
            assert watch.seen(MembershipRead) == []
            between.act = between._pass_on
            assert await watch.expect(MembershipRead) == MembershipRead(False, ("me",))


@pytest.mark.anyio
async def test_an_endpoint_that_invents_entries_without_topics_ends_nothing(ground: Ground) -> None:
    ground.admit_only("me")

    async def add(call: dict[str, Any]) -> Answer:
        if call["method"] != "eth_getLogs":
            return None
        found = list(ground.say("eth_getLogs", *call["params"]))
        return result(call, [*found, *(each | {"topics": [], "logIndex": "0xff"} for each in map(dict, found[:1]))])

    async with middleman(ground.url) as between:
        between.act = add
        async with watching(ground.config(between.url, depth=0)) as watch:
            assert await watch.expect(MembershipRead) == MembershipRead(False, ("me",))


@pytest.mark.anyio
async def test_many_changes_are_read_together(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "CHANGES_MAX", CHANGES_KEPT)
    swarm, peers = ground.swarm, tuple("abcdefgh")
    ground.admit_only(peers[0])
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
