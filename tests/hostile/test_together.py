"""All floods at once, from several identities, while an honest peer asks on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from swarmd.dht import names
from swarmd.dht.fetch import PROTOCOL
from swarmd.dht.hive import dht_pb2
from tests.dht.driver import SWARM, until
from tests.dht.outsider import Outsider
from tests.hostile.attack import GROWTH_MIB_MAX, MIB, Siege, besieged, varint

pytestmark = [pytest.mark.anyio, pytest.mark.soak]

ATTACK_S = 60.0
BACK_S = 60.0
STRANGERS = 1  # of each kind
ANSWERED_LEAST = 0.95  # of the honest peer's questions


async def test_an_honest_peer_is_answered_under_all_floods_at_once(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        keys = await siege.fill_stages(1, records=20)
        p2pd = siege.victim.p2pd()
        floods: tuple[Flood, ...] = (repeat_finds, store_crumbs, open_streams, spam_hints, ping_hugely)
        strangers = [await stranger(siege, tmp_path / f"s{number}") for number in range(STRANGERS * len(floods))]
        attacks = [
            asyncio.ensure_future(attack(each, floods[number % len(floods)], keys[0]))
            for number, each in enumerate(strangers)
        ]
        answers, growth = [], [0.0]
        until_at = time.monotonic() + ATTACK_S
        while time.monotonic() < until_at:
            began = time.monotonic()
            answered = await siege.find([names.clock(SWARM)], by=siege.honest) == ""
            answers.append((answered, time.monotonic() - began))
            growth.append(siege.growth_mib)
            await asyncio.sleep(0.1)
        for each in attacks:
            each.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in strangers))
        good = sum(answered for answered, _ in answers)
        waits = sorted(wait for _, wait in answers)
        print(f"{good} of {len(answers)} answered, median {waits[len(waits) // 2]:.3f} s, worst {waits[-1]:.3f} s")
        print(f"growth {max(growth):.0f} MiB, p2pd the same: {siege.victim.p2pd() == p2pd}")
        assert good >= ANSWERED_LEAST * len(answers)
        assert max(growth) < GROWTH_MIB_MAX
        await until(lambda: siege.growth_mib < GROWTH_MIB_MAX / 2, BACK_S)
        await siege.is_unharmed()


Flood = Callable[[Outsider, str], Awaitable[None]]


async def stranger(siege: Siege, root: Path) -> Outsider:
    """One more identity, connected to the victim."""
    return await Outsider(root).open(await siege.victim.address())


async def attack(by: Outsider, flood: Flood, key: str) -> None:
    """Do it again and again, whatever comes of it."""
    while True:
        with suppress(Exception):
            await asyncio.wait_for(flood(by, key), 5.0)
        await asyncio.sleep(0.01)


async def send(by: Outsider, rpc: str, encoded: bytes, times: int) -> None:
    """A call that was encoded before, so many at once: what it costs to make it is not what is looked at."""
    calls = (by.p2p.control.call_unary_handler(by.victim, f"DHTProtocol.{rpc}", encoded) for _ in range(times))
    await asyncio.gather(*calls, return_exceptions=True)


async def repeat_finds(by: Outsider, key: str) -> None:
    request = dht_pb2.FindRequest(keys=[names.key_id(key)])
    await send(by, "rpc_find", request.SerializeToString(), 32)


async def store_crumbs(by: Outsider, key: str) -> None:
    await send(by, "rpc_store", crumbs(), 2)


@cache
def crumbs() -> bytes:
    """A store request of 60,000 records that are none."""
    count = 60_000
    request = dht_pb2.StoreRequest(
        keys=[bytes(20)] * count,
        subkeys=[b"\xa1a"] * count,
        values=[b"v"] * count,
        expiration_time=[2e9] * count,
        in_cache=[False] * count,
    )
    return bytes(request.SerializeToString())


async def open_streams(by: Outsider, key: str) -> None:
    by.answer = [await by.p2p.call_binary_stream_handler(by.victim, PROTOCOL) for _ in range(32)]


async def spam_hints(by: Outsider, key: str) -> None:
    for number in range(100):
        await by.p2p.publish(names.hints(SWARM), number.to_bytes(2, "big") * 300)


async def ping_hugely(by: Outsider, key: str) -> None:
    request = dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=bytes(20)), validate=True)
    encoded = request.SerializeToString() + b"\xfa\x7f" + varint(MIB) + bytes(MIB)
    await send(by, "rpc_ping", encoded, 8)
