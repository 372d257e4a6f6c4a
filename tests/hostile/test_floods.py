"""Strangers that call, hold streams or send half requests: each has a bounded cost for a whole node."""

import asyncio
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from swarmd.core.commands import CollectReports
from swarmd.core.events import Equivocated, ReportSeen
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.body_streams import ABSENT, PROTOCOL
from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.p2p.limits import STREAMS
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ReportRecord
from swarmd.errors import EXIT_FOR_ROOM
from tests.dht.driver import SWARM, Driver, processes_naming, until
from tests.dht.making import DIGEST, signed_by
from tests.hostile import few_files
from tests.hostile.attack import GROWTH_MIB_MAX, MIB, Siege, besieged, files_of, memory_mib
from tests.hostile.floods import begin_call, crumbs, framed, half_frame, open_streams, rewrite, take_back_calls

pytestmark = pytest.mark.anyio

FILES_MAX = few_files.FILES_MAX
SPARE = 64  # files that the processes have open besides


async def test_idle_streams_take_neither_files_nor_the_place_of_others(tmp_path: Path) -> None:
    async with besieged(tmp_path, few_files.__name__) as siege:
        p2pd = siege.victim.p2pd()
        await open_streams(siege.stranger, count=300)
        await until(lambda: files_of(siege.victim.process.pid) < SPARE + STREAMS.all)
        assert await ask_for_nothing(siege) == ABSENT
        await until(lambda: siege.refused("streams") > 0)
        await until(lambda: files_of(p2pd) < SPARE + STREAMS.all)
        assert siege.victim.p2pd() == p2pd
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
    async with besieged(tmp_path, few_files.__name__) as siege:
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
