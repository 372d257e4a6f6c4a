"""Bodies and their streams: some never end, some are never taken, some are opened for nothing."""

from __future__ import annotations

import asyncio
import hashlib
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.core.commands import Gather
from swarmd.core.events import RolloutsGathered
from swarmd.dht.identity.identity import Identity, create_identity, generate_identity, read_identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, find_work
from swarmd.dht.rounds import gather
from swarmd.dht.rounds.fetch import PROTOCOL
from swarmd.dht.wire.records import ReportRecord, RolloutsRecord
from swarmd.swarms import rollouts
from tests.dht.driver import SWARM
from tests.dht.making import signed_by
from tests.dht.outsider import Outsider
from tests.hostile.attack import Siege, besieged

pytestmark = pytest.mark.anyio

STALLING = 6
Serve = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


def test_what_is_fetched_is_bounded_as_what_is_read() -> None:
    assert gather.ROLLOUTS_BYTES_MAX == rollouts.BODY_BYTES_MAX


async def test_streams_that_never_end_cost_no_honest_body(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        owners = await asyncio.gather(
            owner(siege, tmp_path / "honest", give, WORK_BITS),
            *(owner(siege, tmp_path / f"stalling-{number}", stall) for number in range(STALLING)),
        )
        try:
            honest = {owners[0].peer_id} | {await publish_inline(siege) for _ in range(3)}
            assert await gathered(siege, 0) == honest
        finally:
            await asyncio.gather(*(each.close() for each in owners))


async def gathered(siege: Siege, stage: int) -> set[str]:
    """Whose rollouts of a stage the victim gathers."""
    command = f"gather/{stage}"
    await siege.victim.do(Gather(command, 0, stage + 1, 0, stage, time.time() + 35.0))
    told = await siege.victim.expect(RolloutsGathered, command=command)
    return {ref.peer for ref in told.rollouts}


async def publish_inline(siege: Siege, stage: int = 0) -> str:
    """Have the victim hold rollouts with their body; their owner."""
    identity = generate_identity()
    body = body_of(identity)
    rollouts = rollouts_of(body, stage, zlib.compress(body))
    for record in (rollouts, report_of(rollouts)):
        assert await siege.honest.store_signed(record.key, signed_by(identity, record))
    return identity.peer_id


async def owner(siege: Siege, root: Path, serve: Serve, bits: int = 0) -> Outsider:
    """A peer that has worked so much, with a report and rollouts of the first stage, which it gives in its own way."""
    root.mkdir(exist_ok=True)  # noqa: ASYNC240 - once, before anything runs
    identity = create_identity(root / "identity.key")
    outsider = Outsider(root / "sockets", identity=root / "identity.key")
    await outsider.open(await siege.victim.address())
    body = body_of(identity)

    async def answer(stream: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(32)
        writer.write(len(body).to_bytes(8, "big"))
        await serve(writer, body)

    await outsider.p2p.add_binary_stream_handler(PROTOCOL, answer)
    await publish(outsider, root, 0, bits)
    return outsider


async def publish(outsider: Outsider, root: Path, stage: int, bits: int) -> None:
    """Have the victim hold the records of a stage, with so much work."""
    identity = read_identity(root / "identity.key")
    work = find_work(SWARM, identity.peer_id, bits) if bits else 0
    rollouts = rollouts_of(body_of(identity), stage)
    for content in (rollouts, report_of(rollouts)):
        record = msgspec.structs.replace(content, work=work)
        assert await outsider.store_signed(record.key, signed_by(identity, record))


def body_of(identity: Identity) -> bytes:
    """A body that no other peer has."""
    return msgspec.msgpack.encode([identity.peer_id, b"x" * 100_000])


def rollouts_of(body: bytes, stage: int, inline: bytes = b"") -> RolloutsRecord:
    """The record of a body."""
    return RolloutsRecord(SWARM, 0, stage, hashlib.sha256(body).hexdigest(), len(body), 1, inline)


def report_of(rollouts: RolloutsRecord) -> ReportRecord:
    """The report that names it."""
    return ReportRecord(SWARM, rollouts.round, rollouts.stage, 0.5, rollouts.digest, rollouts.size_bytes, 1)


async def stall(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Begin, and never go on."""
    writer.write(body[:1000])
    await asyncio.sleep(120.0)


async def give(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Send all."""
    writer.write(body)
    await writer.drain()
    writer.close()
