"""Calls that cost their sender little and the node much: repeated keys, huge requests, calls that are taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarmd.dht.hive import dht_pb2
from tests.dht.driver import until
from tests.hostile.attack import GROWTH_MIB_MAX, Siege, besieged, varint

pytestmark = pytest.mark.anyio

UNKNOWN_FIELD = b"\xfa\x7f"  # field 2047 of bytes: no message has one


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
    count = 60_000
    request = dht_pb2.StoreRequest(
        keys=[bytes(20)] * count,
        subkeys=[b"a"] * count,
        values=[b"v"] * count,
        expiration_time=[2e9] * count,
        in_cache=[False] * count,
    )
    async with besieged(tmp_path) as siege:
        with pytest.raises(Exception, match="oversized"):
            await siege.stranger.p2p.call_protobuf_handler(
                siege.stranger.victim, "DHTProtocol.rpc_store", request, dht_pb2.StoreResponse
            )
        await siege.is_unharmed()


async def test_calls_that_are_taken_back_leave_nothing_behind(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        await siege.be_silent()
        await take_back_calls(siege, calls=160)
        assert siege.growth_mib < GROWTH_MIB_MAX
        await siege.is_unharmed()


@pytest.mark.soak
async def test_a_thousand_calls_that_are_taken_back_leave_nothing_behind(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        await siege.be_silent()
        for _ in range(16):
            await take_back_calls(siege, calls=64)
        assert siege.growth_mib < GROWTH_MIB_MAX
        await siege.is_unharmed()


async def take_back_calls(siege: Siege, calls: int) -> None:
    """Ping with a megabyte that the node does not know, and to be pinged back, which is not answered; then hang up."""
    padding = UNKNOWN_FIELD + varint(1 << 20) + bytes(1 << 20)
    request = dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=bytes(20)), validate=True)
    request.MergeFromString(request.SerializeToString() + padding)

    async def ping() -> None:
        await siege.stranger.p2p.call_protobuf_handler(
            siege.stranger.victim, "DHTProtocol.rpc_ping", request, dht_pb2.PingResponse
        )

    for _ in range(calls // 16):
        tasks = [asyncio.ensure_future(ping()) for _ in range(16)]
        await asyncio.wait(tasks, timeout=0.3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
