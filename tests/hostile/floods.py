"""Floods that make a node busy or large, one function each, sent to the outsider's victim."""

import asyncio
import time
import uuid
from contextlib import suppress
from functools import cache

from swarmd.dht.identity.identity import Identity, encode_varint
from swarmd.dht.p2p.body_streams import PROTOCOL
from swarmd.dht.p2p.hivemind_api import dht_pb2, p2pd_pb2
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ReportRecord, sign
from tests.dht.driver import SWARM
from tests.dht.making import DIGEST
from tests.dht.outsider import Outsider, store_request
from tests.hostile.attack import MIB

FIND = "DHTProtocol.rpc_find"
FRAME_BYTES = 4 * MIB
UNKNOWN_FIELD = b"\xfa\x7f"  # field 2047 of bytes: no message has one


async def send(by: Outsider, rpc: str, encoded: bytes, times: int) -> None:
    """A call that was encoded before, so many at once: what it costs to make it is not what is looked at."""
    calls = (by.p2p.control.call_unary_handler(by.victim, f"DHTProtocol.{rpc}", encoded) for _ in range(times))
    await asyncio.gather(*calls, return_exceptions=True)


async def repeat_finds(by: Outsider, key: str) -> None:
    """Ask for one key many times at once."""
    request = dht_pb2.FindRequest(keys=[names.key_id(key)])
    await send(by, "rpc_find", request.SerializeToString(), 32)


async def find_doubled(by: Outsider, key: str) -> None:
    """Name one key 64 times in a call, so that a small question would have a huge answer."""
    request = dht_pb2.FindRequest(keys=[names.key_id(key)] * 64)
    await send(by, "rpc_find", request.SerializeToString(), 32)


async def store_crumbs(by: Outsider, key: str) -> None:
    """Store tens of thousands of records that are none."""
    await send(by, "rpc_store", crumbs(), 2)


@cache
def crumbs() -> bytes:
    """A store request of 60,000 records that are none."""
    request = store_request([(bytes(20), b"\xa1a", b"v", 2e9)] * 60_000)
    return bytes(request.SerializeToString())


async def open_streams(by: Outsider, key: str = "", count: int = 32) -> None:
    """Open streams and keep them for as long as the victim lets us."""
    held = []
    for _ in range(count):
        with suppress(Exception):  # p2pd says so once the victim has hung up
            held.append(await asyncio.wait_for(by.p2p.call_binary_stream_handler(by.victim, PROTOCOL), 2.0))
    by.answer = held  # a writer that nobody holds is closed


async def spam_hints(by: Outsider, key: str) -> None:
    """Gossip hints about nothing."""
    for number in range(100):
        await by.p2p.publish(names.hints_topic(SWARM), number.to_bytes(2, "big") * 300)


async def ping_hugely(by: Outsider, key: str) -> None:
    """Ping with a megabyte that the node does not know."""
    await send(by, "rpc_ping", huge_ping().SerializeToString(), 8)


@cache
def huge_ping() -> dht_pb2.PingRequest:
    """A ping with a megabyte of unknown fields, which asks to be pinged back."""
    request = dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=bytes(20)), validate=True)
    request.MergeFromString(request.SerializeToString() + UNKNOWN_FIELD + encode_varint(MIB) + bytes(MIB))
    return request


async def take_back_calls(by: Outsider, key: str = "", calls: int = 16) -> None:
    """Ping hugely, to be pinged back, which is not answered; then hang up."""

    async def ping() -> None:
        await by.p2p.call_protobuf_handler(by.victim, "DHTProtocol.rpc_ping", huge_ping(), dht_pb2.PingResponse)

    for _ in range(calls // 16):
        tasks = [asyncio.ensure_future(ping()) for _ in range(16)]
        await asyncio.wait(tasks, timeout=0.3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def begin_call(by: Outsider, request: bytes) -> asyncio.StreamWriter | None:
    """Send bytes to where the victim's p2pd expects a call, and read nothing; what is to be kept open."""
    with suppress(Exception):
        opened = await asyncio.wait_for(by.p2p.call_binary_stream_handler(by.victim, FIND), 5.0)
        writer: asyncio.StreamWriter = opened[2]
        writer.write(request)
        return writer
    return None


def half_frame() -> bytes:
    """A frame of which the last byte never comes."""
    return encode_varint(FRAME_BYTES) + bytes(FRAME_BYTES - 1)


def framed(find: bytes) -> bytes:
    """A call as p2pd sends it to another p2pd."""
    call = p2pd_pb2.CallUnaryRequest(peer=b"nobody", proto=FIND, data=find)
    message = p2pd_pb2.PersistentConnectionRequest(callId=uuid.uuid4().bytes, callUnary=call).SerializeToString()
    return encode_varint(len(message)) + bytes(message)


async def rewrite(by: Outsider, owner: Identity, times: int, round: int = 0) -> None:
    """Store a report so often, each with another reward and a later expiration."""
    base = time.time() + 60.0
    for number in range(times):
        record = ReportRecord(SWARM, round, 0, float(number), DIGEST, 10, 1)
        await by.store_signed(record.key, sign(owner, record, base + number * 0.01))
        await asyncio.sleep(0.005)
