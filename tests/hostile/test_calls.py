"""Calls that cost their sender little and the node much: repeated keys, huge requests, calls that are taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.dht.driver import until
from tests.hostile.attack import GROWTH_MIB_MAX, besieged
from tests.hostile.floods import crumbs, take_back_calls

pytestmark = pytest.mark.anyio


async def test_an_answer_above_the_frame_is_refused_before_it_is_made(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        keys = await siege.fill_stages(1, records=3)
        answers = await asyncio.gather(*(siege.find(keys * 64) for _ in range(32)))
        assert all("doubled" in answer for answer in answers)
        assert siege.growth_mib < GROWTH_MIB_MAX
        await until(lambda: siege.refused("doubled") > 0)
        await siege.is_unharmed()


async def test_many_large_keys_in_one_call_are_refused(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        keys = await siege.fill_stages(3, records=35)
        assert "oversized" in await siege.find(keys)
        assert await siege.find(keys[:1]) == ""
        await siege.is_unharmed()


async def test_a_call_of_thousands_of_crumbs_is_refused_whole(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        with pytest.raises(Exception, match="oversized"):
            await siege.stranger.p2p.control.call_unary_handler(
                siege.stranger.victim, "DHTProtocol.rpc_store", crumbs()
            )
        await siege.is_unharmed()


async def test_calls_that_are_taken_back_leave_nothing_behind(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        await siege.be_silent()
        await take_back_calls(siege.stranger, calls=160)
        assert siege.growth_mib < GROWTH_MIB_MAX
        await siege.is_unharmed()
