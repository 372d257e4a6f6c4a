"""A contract that an endpoint did not know well is told again as it is."""

from __future__ import annotations

from typing import Any

import pytest

from swarmd.chain.contract import encode_call
from swarmd.chain.watching.watcher import ExtensionsCheck
from swarmd.core.events import ChainUp, MembershipRead
from tests.chain.grounds import Answer, Ground, middleman, result, watching

pytestmark = pytest.mark.anyio


async def forget(call: dict[str, Any]) -> Answer:
    """An endpoint that says of the contract that it has no extensions."""
    asked = call["params"][0]["data"] if call["method"] == "eth_call" else ""
    return result(call, "0x") if asked == "0x" + encode_call("extensionsVersion()").hex() else None


async def test_extensions_that_an_endpoint_knew_nothing_of_are_told_when_one_does(ground: Ground) -> None:
    async with middleman(ground.url) as between:
        between.act = forget
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
        between.act = forget
        async with watching(ground.config(between.url, depth=0)) as watch:
            assert (await watch.expect(ChainUp)).extensions == 0
            await watch.until(lambda: not watch.watcher.membership._changes)
            between.act = between._pass_on
            await ExtensionsCheck(watch.terms, watch.watcher).look()
            assert await watch.expect(MembershipRead) == MembershipRead(False, ("me",))
