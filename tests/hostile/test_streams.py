"""Streams that are opened and not used: they must cost neither the node's files nor the streams of others."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.core.commands import CollectReports, Gather
from swarmd.core.events import Equivocated, ReportSeen, RolloutsGathered
from swarmd.dht.identity.identity import Identity, create_identity, generate_identity, read_identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, find_work
from swarmd.dht.limits.door import STREAMS
from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.rounds import gather
from swarmd.dht.rounds.fetch import ABSENT, PROTOCOL
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ReportRecord, RolloutsRecord
from swarmd.errors import EXIT_FOR_ROOM
from swarmd.swarms import rollouts
from tests.dht.driver import SWARM, Driver, processes_naming, until
from tests.dht.making import DIGEST, signed_by
from tests.dht.outsider import Outsider
from tests.hostile.attack import GROWTH_MIB_MAX, MIB, Siege, besieged, files_of, memory_mib
from tests.hostile.floods import begin_call, crumbs, framed, half_frame, open_streams, rewrite, take_back_calls

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


MEMORY_BYTES_MAX = 256 * MIB  # half of it p2pd's, which has 64 MiB in peace


async def test_halves_of_requests_are_cut_off_before_p2pd_is_too_large(tmp_path: Path) -> None:
    async with besieged(tmp_path, memory_bytes_max=MEMORY_BYTES_MAX) as siege:
        p2pd = siege.victim.p2pd()
        held = [await begin_call(siege.stranger, half_frame()) for _ in range(16)]
        await until(lambda: b"little room is left" in siege.victim.errors)
        await until(lambda: memory_mib(p2pd) < MEMORY_BYTES_MAX / MIB / 2)
        assert siege.victim.p2pd() == p2pd and held
        assert siege.growth_mib < GROWTH_MIB_MAX
        await siege.is_unharmed()


async def test_answers_that_nobody_takes_are_no_more_than_a_share(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        (key,) = await siege.fill_stages(1, records=40)
        find = dht_pb2.FindRequest(keys=[names.key_id(key)]).SerializeToString()
        held = [await begin_call(siege.stranger, framed(find)) for _ in range(100)]
        await until(lambda: siege.refused("bytes-out") > 0)
        assert siege.growth_mib < GROWTH_MIB_MAX and held
        await siege.is_unharmed()


async def test_half_open_connections_at_the_limit_of_files_leave_p2pd_as_it_is(tmp_path: Path) -> None:
    async with besieged(tmp_path, files_max=FILES_MAX) as siege:
        p2pd, quiet = siege.victim.p2pd(), files_of(siege.victim.p2pd())
        port = int((await siege.victim.address()).split("/")[4])
        with ExitStack() as opened:
            for _ in range(FILES_MAX + 50):
                half = opened.enter_context(closing(socket.socket()))
                half.setblocking(False)
                half.connect_ex(("127.0.0.1", port))
            await until(lambda: b"little room is left" in siege.victim.errors)
            assert siege.victim.process.returncode is None
        await until(lambda: files_of(p2pd) <= quiet + 8)
        assert siege.victim.p2pd() == p2pd
        await siege.is_unharmed()


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


async def test_a_worker_above_its_mark_makes_room_and_leaves_no_p2pd(tmp_path: Path) -> None:
    victim = await Driver(tmp_path / "victim", memory_bytes_max=32 << 20).start()
    try:
        assert await victim.wait() == EXIT_FOR_ROOM
        fault = victim.faults[-1]
        assert not fault.permanent and "makes room" in fault.reason
        await until(lambda: not processes_naming(victim.paths.sockets))
    finally:
        await victim.clean()


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


async def test_a_report_that_keeps_changing_is_found_out_once(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        await siege.victim.do(CollectReports("collect/0/0", 0, 0))
        flooder, honest = generate_identity(), generate_identity()
        await rewrite(siege.stranger, flooder, 150)
        record = report(1.0)
        assert await siege.honest.store_signed(record.key, signed_by(honest, record))
        await siege.victim.expect(ReportSeen, peer=honest.peer_id)
        await until(lambda: siege.refused("flood") > 0)
        assert len(siege.victim.seen(ReportSeen, peer=flooder.peer_id)) <= 1
        assert len(siege.victim.seen(Equivocated, peer=flooder.peer_id)) == 1
        await siege.is_unharmed()


def report(reward: float) -> ReportRecord:
    """Of the open stage."""
    return ReportRecord(SWARM, 0, 0, reward, DIGEST, 10, 1)
