"""The supervised node in this process, with a real p2pd: every call has a timeout, every end of p2pd is noticed."""

import asyncio
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from swarmd.dht import adapters
from swarmd.dht.identity.identity import create_identity, generate_identity
from swarmd.dht.p2p import peers
from swarmd.dht.p2p.hivemind_api import DHTID, Multiaddr, PeerID, p2pd_pb2
from swarmd.dht.publisher import Publisher
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ClockRecord, ReportRecord
from swarmd.errors import NetworkDown
from tests.dht.driver import is_alive, until
from tests.dht.making import DIGEST, SWARM
from tests.dht.p2p.conftest import Start, pair

pytestmark = pytest.mark.anyio

CALL_S = 60.0  # a call that nothing ends takes so long
WEBTRANSPORT = bytes.fromhex("d103")  # code of multiaddr


async def test_a_pending_call_fails_at_once_when_p2pd_dies_and_the_node_comes_back(start: Start) -> None:
    one, two = await pair(start)
    report = ReportRecord(SWARM, 1, 0, 0.5, DIGEST, 10, 1)
    await two.publisher.publish(report)
    node_id, pid = two.run.dht.node_id, two.run.p2p.pid
    pending = asyncio.ensure_future(two.node.call(lambda run: asyncio.sleep(CALL_S), CALL_S))
    await asyncio.sleep(0.1)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(NetworkDown, match="signal 9"):
        await pending
    failed_s = time.monotonic() - killed_at
    with pytest.raises(NetworkDown):
        await two.publisher.publish(report)
    await two.node.wait_until_up()
    assert failed_s < CALL_S / 2, "it waited for its own end"
    assert two.run.dht.node_id == node_id and two.run.p2p.pid != pid
    assert two.run.dht.protocol.storage.records(two_key(report))  # what it held is still held
    await until(lambda: one.node.peer_count and two.node.peer_count)
    assert (await one.read(report.key))[two.identity.peer_id].content == report


def two_key(report: ReportRecord) -> Any:

    return DHTID.from_bytes(names.key_id(report.key))


async def test_a_call_has_an_end(start: Start) -> None:
    one = await start()
    began = time.monotonic()
    with pytest.raises(NetworkDown, match="no answer"):
        await one.node.call(lambda run: asyncio.sleep(CALL_S), 0.2)
    assert time.monotonic() - began < CALL_S / 2


async def test_answers_that_a_p2pd_has_not_taken_count_no_longer_when_it_is_gone(start: Start) -> None:
    one = await start()
    control, answers, peer = one.run.p2p.control, one.node.peer_limits.answers, generate_identity().peer_id
    late = asyncio.Event()

    async def answer(data: bytes, caller: Any) -> bytes:
        if data:
            await late.wait()
        return bytes(2**20)

    control.unary_handlers["answer"] = answer
    os.kill(one.run.p2p.pid, signal.SIGSTOP)
    for data in (b"", b"", b"", b"late"):
        request = p2pd_pb2.CallUnaryRequest(peer=PeerID.from_base58(peer).to_bytes(), proto="answer", data=data)
        control._begin_call(uuid4(), request)
    await until(lambda: answers.total == 3 * 2**20)
    os.kill(one.run.p2p.pid, signal.SIGKILL)
    await until(lambda: one.downs)
    late.set()
    await until(lambda: not control._handler_tasks)
    assert answers.total == 0


async def test_an_earlier_expiration_climbs_over_what_an_earlier_life_left(start: Start, tmp_path: Path) -> None:
    one, two = await pair(start)
    report = ReportRecord(SWARM, 1, 0, 0.5)
    before = await two.publisher.publish(report)
    forgetful = two.publish_from(tmp_path / "other.bin", record_s=30.0)
    after = await forgetful.publish(ReportRecord(SWARM, 1, 0, 0.75))
    assert before.expiration < after.expiration < before.expiration + 1.0
    assert (await one.read(report.key))[two.identity.peer_id] == after


async def test_a_renewal_never_overtakes_the_record_that_replaces_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await pair(start)
    clocks = [ClockRecord(SWARM, round, 0, 1.0, 2.0) for round in range(3)]
    await one.publisher.publish(ReportRecord(SWARM, 0, 0, 0.5))
    await one.publisher.publish(clocks[0])
    place = Publisher._store_and_prove

    async def slowly(self: Publisher, *args: Any) -> Any:
        await asyncio.sleep(0.1)
        return await place(self, *args)

    monkeypatch.setattr(Publisher, "_store_and_prove", slowly)
    for delay_s in (0.05, 0.15):  # while the report is renewed, and while the clock is
        later = clocks[1] if delay_s < 0.1 else clocks[2]
        renewing = asyncio.ensure_future(one.publisher._renew_all(one.told.append))
        await asyncio.sleep(delay_s)
        await one.publisher.publish(later)
        await renewing
        assert (await two.read(later.key))[one.identity.peer_id].content == later


async def test_what_a_record_replaced_is_not_renewed_though_nobody_showed_the_new_one(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that timed out may have arrived: the one before, renewed, would lead the swarm back. A restart too."""
    one, two = await pair(start)
    before, later = (ClockRecord(SWARM, round, 0, 1.0, 2.0) for round in (1, 2))
    await one.publisher.publish(before)

    async def mute(*args: Any) -> tuple[bool, None]:
        return False, None

    with monkeypatch.context() as patch, pytest.raises(NetworkDown, match="no peer could show"):
        patch.setattr(adapters.HivemindReplicas, "read_back", mute)
        await one.publisher.publish(later)
    restarted = one.publish_from(tmp_path / "0" / "records.bin")
    for each in (one.publisher, restarted):
        await each._renew_all(one.told.append)
        assert (await two.read(later.key))[one.identity.peer_id].content == later


async def test_a_mute_p2pd_is_killed_and_started_anew(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "REJOIN_S", 0.3)
    one, two = await pair(start, call_s=0.5)
    pid = two.run.p2p.pid
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: two.downs, timeout_s=20.0)
    assert not is_alive(pid)
    await two.node.wait_until_up()
    await until(lambda: one.node.peer_count and two.node.peer_count)
    assert two.run.p2p.pid != pid


@pytest.mark.parametrize("other", [False, True], ids=["gone", "another one's"])
async def test_without_its_key_a_node_does_not_come_back_and_makes_no_other(
    start: Start, tmp_path: Path, other: bool
) -> None:
    one = await start()
    key = one.node.settings.identity
    kept = key.rename(tmp_path / "kept.key")
    if other:
        create_identity(key)
    os.kill(one.run.p2p.pid, signal.SIGKILL)
    told = "the node runs as" if other else "there is no identity"
    await until(lambda: any(told in down for down in one.downs))
    assert key.exists() == other
    kept.replace(key)
    await one.node.wait_until_up()


async def test_a_peer_at_an_address_that_hivemind_cannot_read_is_met_like_any_other(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await pair(start)
    listed = one.run.p2p.list_peers

    async def list_peers() -> list[Any]:
        strange = Multiaddr(Multiaddr("/ip4/1.2.3.4/udp/1/quic-v1").to_bytes() + WEBTRANSPORT)
        return [SimpleNamespace(peer_id=peer.peer_id, addrs=(strange,)) for peer in await listed()]

    monkeypatch.setattr(one.run.p2p, "list_peers", list_peers)
    for node_id in list(one.run.routing_table.uid_to_peer_id):
        del one.run.routing_table[node_id]
    assert await one.rejoin._list_connected_peers(one.run) == {two.identity.peer_id: ["/ip4/1.2.3.4/udp/1/quic-v1"]}
    rounds = one.rejoin.rounds
    await until(lambda: one.rejoin.rounds > rounds and one.node.peer_count, timeout_s=60.0)


async def test_an_emptied_table_is_filled_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a partition hivemind's tables stay as they are, though libp2p is connected."""
    monkeypatch.setattr(peers, "REJOIN_S", 0.5)
    one, two = await pair(start)
    for single in (one, two):
        for node_id in list(single.run.routing_table.uid_to_peer_id):
            del single.run.routing_table[node_id]
    assert (one.node.peer_count, two.node.peer_count) == (0, 0)
    await until(lambda: one.node.peer_count and two.node.peer_count)
