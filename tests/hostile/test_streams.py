"""Streams that are opened and not used: they must cost neither the node's files nor the streams of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarmd.dht.limits.door import STREAMS
from swarmd.dht.rounds.fetch import ABSENT, PROTOCOL
from tests.dht.driver import until
from tests.hostile.attack import Siege, besieged, files_of
from tests.hostile.floods import open_streams

pytestmark = pytest.mark.anyio

FILES_MAX = 192
SPARE = 64  # files that the processes have open besides


async def test_idle_streams_take_neither_files_nor_the_place_of_others(tmp_path: Path) -> None:
    async with besieged(tmp_path, files_max=FILES_MAX) as siege:
        p2pd = siege.victim.p2pd()
        await open_streams(siege.stranger, count=300)
        assert files_of(siege.victim.process.pid) < SPARE + STREAMS.all
        assert await ask_for_nothing(siege) == ABSENT
        await until(lambda: siege.refused("streams") > 0)
        await until(lambda: files_of(p2pd) < SPARE + STREAMS.all)
        assert siege.victim.p2pd() == p2pd
        await siege.is_unharmed()


async def test_whoever_keeps_opening_streams_is_disconnected(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        await open_streams(siege.stranger, count=100)
        connected = True
        for _ in range(100):
            connected = siege.stranger.victim in [peer.peer_id for peer in await siege.stranger.p2p.list_peers()]
            if not connected:
                break
            await asyncio.sleep(0.2)
        assert not connected
        await siege.is_unharmed()


async def ask_for_nothing(siege: Siege) -> int:
    """What an honest peer hears when it asks for a body that the victim has not."""
    _, reader, writer = await siege.honest.p2p.call_binary_stream_handler(siege.honest.victim, PROTOCOL)
    writer.write(bytes(32))
    answer = int.from_bytes(await asyncio.wait_for(reader.readexactly(8), 10.0), "big")
    writer.close()
    return answer
