"""A contract that an endpoint did not know well is told again as it is."""

from __future__ import annotations

from typing import Any

import pytest

from swarmd.chain.contract import encode_call
from swarmd.chain.watching.extensions_check import ExtensionsCheck
from swarmd.core.events import ChainUp
from tests.chain.grounds import Answer, Ground, middleman, result, watching

pytestmark = pytest.mark.anyio


async def test_extensions_that_an_endpoint_knew_nothing_of_are_told_when_one_does(ground: Ground) -> None:
    async def forget(call: dict[str, Any]) -> Answer:
        asked = call["params"][0]["data"] if call["method"] == "eth_call" else ""
        return result(call, "0x") if asked == "0x" + encode_call("extensionsVersion()").hex() else None

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
