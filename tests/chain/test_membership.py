"""The allow-list, and the extensions of a contract that an endpoint did not know well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from swarmd.chain import watcher
from swarmd.chain.contract import encode_call
from swarmd.chain.watcher import ExtensionsCheck
from swarmd.core.events import ChainUp, MembershipRead
from tests.chain.grounds import Answer, Ground, middleman, result, watching

pytestmark = pytest.mark.anyio
CHANGES_KEPT = 3


def forgetting(function: str) -> Callable[[dict[str, Any]], Awaitable[Answer]]:
    """An endpoint that says of the contract that it has no such function."""

    async def forget(call: dict[str, Any]) -> Answer:
        asked = call["params"][0]["data"] if call["method"] == "eth_call" else ""
        return result(call, "0x") if asked == "0x" + encode_call(function).hex() else None

    return forget


async def test_an_endpoint_that_knows_no_membership_opens_no_closed_swarm(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "RETRY_S", 0.05)
    ground.admit_only("me")
    async with middleman(ground.url) as between:
        between.act = forgetting("membershipOpen()")
        async with watching(ground.config(between.url, depth=0)) as watch:
            await watch.settle(ground)
            await watch.until(lambda: between.calls["eth_call"] > 20 or bool(watch.seen(MembershipRead)))
            assert watch.seen(MembershipRead) == []
            between.act = between._pass_on
            assert await watch.expect(MembershipRead) == MembershipRead(False, ("me",))


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


async def test_many_changes_are_read_together(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "CHANGES_MAX", CHANGES_KEPT)
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


async def test_extensions_that_an_endpoint_knew_nothing_of_are_told_when_one_does(ground: Ground) -> None:
    async with middleman(ground.url) as between:
        between.act = forgetting("extensionsVersion()")
        async with watching(ground.config(between.url)) as watch:
            check = ExtensionsCheck(watch.terms, watch.watcher)
            await check.look()  # before anything was told
            assert (await watch.expect(ChainUp)).extensions == 0
            await check.look()
            await watch.settle(ground)
            assert len(watch.seen(ChainUp)) == 1, "it still seems to have none"
            between.act = between._pass_on
            await check.look()
            assert (await watch.expect(ChainUp, since=len(watch.events))).extensions == 1
            await check.look()
            await watch.settle(ground)
            assert len(watch.seen(ChainUp)) == 2


async def test_the_allow_list_of_a_contract_that_seemed_to_have_none_is_read_after_all(ground: Ground) -> None:
    """Its changes were due while an endpoint knew nothing of them; nobody would be kept out of a closed swarm."""
    ground.admit_only("me")
    async with middleman(ground.url) as between:
        between.act = forgetting("extensionsVersion()")
        async with watching(ground.config(between.url, depth=0)) as watch:
            assert (await watch.expect(ChainUp)).extensions == 0
            await watch.until(lambda: not watch.watcher.membership._changes)
            between.act = between._pass_on
            await ExtensionsCheck(watch.terms, watch.watcher).look()
            assert await watch.expect(MembershipRead) == MembershipRead(False, ("me",))
