"""Publishing, watching and fetching this node's records and bodies, with failing replicas and hostile peers."""

import asyncio
import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgpack
import msgspec
import pytest

from swarmd.config import Config, DhtConfig, SwarmConfig
from swarmd.dht.p2p import body_streams as fetch
from swarmd.dht.p2p.body_streams import DIGEST_BYTES, BodyServer
from swarmd.dht.p2p.hivemind_api import PeerID
from swarmd.dht.p2p.limits import PeerLimits
from swarmd.dht.publisher import FAILED_S, RENEWALS, KeptRecord, OwnRecordFile, OwnRecords, Publisher
from swarmd.dht.record_store import WHOLE_POLLS, KeyWatch
from swarmd.dht.wire.records import Payload, ReportRecord
from swarmd.errors import NetworkDown, RecordRejected
from tests.dht.making import ALICE, CLOCK, MEMBERSHIP, REPORT, SWARM
from tests.dht.network import Network, VirtualTime

pytestmark = pytest.mark.anyio

NOW, TTL_S = 1.7e9, 900.0


def publisher_to(network: Any, time: VirtualTime, records: OwnRecords) -> Publisher:
    """The publisher of a coordinator."""
    config = Config(SwarmConfig(id=SWARM), role="coordinator", dht=DhtConfig(record_s=TTL_S))
    gossip: Any = SimpleNamespace(announce_stored=lambda record: None, announce_renewed=lambda record: None)
    return Publisher(Network(config, time.runtime).view, network, records, gossip)


def test_a_record_expires_after_one_of_a_clock_that_was_ahead_as_soon_as_peers_take_that() -> None:
    time, records = VirtualTime(NOW), OwnRecords(SWARM)
    publisher = publisher_to(None, time, records)
    ahead = NOW + 3000.0 + TTL_S
    records.keep_record(MEMBERSHIP, ahead)
    records.keep_record(MEMBERSHIP, publisher._next_expiration(MEMBERSHIP.key))
    assert records.used_expirations(MEMBERSHIP.key) == (NOW + TTL_S, ahead), "nobody would take a later one"
    time.now += 300.0
    assert publisher._next_expiration(MEMBERSHIP.key) > ahead


class Enough(Exception):
    """The test has seen what it wanted."""


class RenewingNetwork:
    """A network in which publishing succeeds or fails, and that says how long the publisher waits after it."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.waits: list[float] = []

    async def wait_until_up(self) -> None: ...

    async def wait_for_disturbance(self, within_s: float, lonely: bool) -> None:
        self.waits.append(within_s)
        if not lonely:
            raise Enough

    def sign(self, content: Payload, expiration: float) -> Any:
        return SimpleNamespace(content=content, expiration=expiration)

    async def call(self, operation: Any) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [
        (None, TTL_S / RENEWALS),
        (NetworkDown("nobody could show it"), FAILED_S),
        (RecordRejected("wrong-round", "it is over"), TTL_S / RENEWALS),
    ],
)
async def test_what_could_not_be_renewed_is_tried_again_before_it_expires(
    error: Exception | None, wait_s: float
) -> None:
    network = RenewingNetwork(error)
    publisher = publisher_to(network, VirtualTime(NOW), OwnRecords(SWARM, [KeptRecord(REPORT, NOW + TTL_S)]))
    with pytest.raises(Enough):
        await publisher.run()
    assert network.waits[-1] == wait_s


class HastyReplicas:
    """Two strangers are the first to say that they have taken a record, and then show it to nobody."""

    def __init__(self, trusted: str, near: list[str]) -> None:
        self.trusted, self.others = trusted, near
        self.settled: list[str] = []

    def store_locally(self, name: str, record: Any) -> None: ...

    def nearest_peers(self, name: str) -> list[str]:
        return ["hasty", "hastier", *self.others]

    def trusted_peers(self, name: str) -> list[str]:
        return [self.trusted] if self.trusted else []

    async def store_at_peers(self, name: str, record: Any, peers: list[str]) -> list[str]:
        return peers[:2]

    async def read_back(self, peer: str, name: str, record: Any) -> tuple[bool, None]:
        return not peer.startswith("hast"), None

    def replicate_in_background(self, name: str, record: Any, stored: list[str]) -> None:
        self.settled.append(name)


async def publish_to(replicas: HastyReplicas, monkeypatch: pytest.MonkeyPatch) -> None:
    network = RenewingNetwork(None)
    monkeypatch.setattr(network, "call", lambda operation: operation(replicas))
    await publisher_to(network, VirtualTime(NOW), OwnRecords(SWARM)).publish(MEMBERSHIP)


@pytest.mark.parametrize(("trusted", "near"), [("coordinator", []), ("", ["one", "other"])])
async def test_strangers_that_take_a_record_first_and_show_it_to_nobody_do_not_keep_it_from_counting(
    trusted: str, near: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = HastyReplicas(trusted, near)
    await publish_to(replicas, monkeypatch)
    assert replicas.settled == [MEMBERSHIP.key]


async def test_one_stranger_is_no_proof_where_others_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkDown, match="only one of 3 peers"):
        await publish_to(HastyReplicas("", ["one"]), monkeypatch)


BODY = bytes(48 * 1024)  # less than a transport takes before anybody has to wait

ASKED = bytes(DIGEST_BYTES)


class Stream:
    """A request under way, and the peer's end of its socket."""

    def __init__(self, peers: socket.socket, writer: asyncio.StreamWriter, serving: asyncio.Task[None]) -> None:
        self.peers = peers
        self.writer = writer
        self.serving = serving


async def begin() -> Stream:
    """Have the body asked for, over a socket that holds little."""
    server = BodyServer(
        cast(Any, SimpleNamespace(peer_limits=PeerLimits(), streams={})),
        cast(Any, SimpleNamespace(has=lambda digest: True, get=lambda digest: BODY)),
        lambda peer: True,
    )
    own, peers = socket.socketpair()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    reader, writer = await asyncio.open_unix_connection(sock=own)
    peers.sendall(ASKED)
    asker = SimpleNamespace(peer_id=PeerID.from_base58(ALICE.peer_id))
    return Stream(peers, writer, asyncio.ensure_future(server.serve(asker, reader, writer)))


async def test_whoever_takes_all_but_the_end_of_a_body_holds_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CHUNK_S", 0.2)
    stream = await begin()
    with anyio.fail_after(30.0), pytest.raises(RecordRejected, match="the end of what it asked for"):
        await stream.serving
    await asyncio.sleep(0.05)
    assert stream.writer.transport.get_write_buffer_size() == 0
    assert stream.writer.get_extra_info("socket").fileno() == -1, "the file is open still"
    stream.peers.close()


async def all_of(stream: Stream) -> bytes:
    stream.peers.setblocking(False)
    got = b""
    while len(got) < 8 + len(BODY):
        got += await asyncio.get_running_loop().sock_recv(stream.peers, 65536)
    return got


async def test_a_stream_is_open_until_who_asked_has_closed_it() -> None:
    """p2pd may drop the last of a stream that the giver closes first."""
    stream = await begin()
    await all_of(stream)
    await asyncio.sleep(0.1)
    assert not stream.serving.done() and not stream.writer.is_closing()
    stream.peers.close()
    with anyio.fail_after(fetch.CHUNK_S / 2):
        await stream.serving


async def test_a_stream_that_nobody_closes_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CHUNK_S", 0.2)
    stream = await begin()
    await all_of(stream)
    with anyio.fail_after(30.0):
        await stream.serving
    assert stream.writer.is_closing()
    stream.peers.close()


POLL_S = 0.4


class Reading:
    """Peers that hold one record, nobody's whom the hints name."""

    def __init__(self) -> None:
        self.asked_for: list[dict[str, float]] = []

    async def find_records(self, name: str, wanted: dict[str, float]) -> Any:
        self.asked_for.append(dict(wanted))
        records = {} if wanted else {"honest": "record"}
        return SimpleNamespace(records=records, has_all=lambda wanted: False)

    async def wait_until_up(self) -> None:
        """It is."""

    def cpu_time_s(self) -> float:
        return 0.0


async def watched(reading: Reading, seconds: float, hints_every_s: float) -> list[str]:
    """Whose records a watch has seen after its first read."""
    seen: list[str] = []
    watch = KeyWatch(Network().view, cast(Any, reading), "key", POLL_S, seen.extend)
    running = asyncio.ensure_future(watch.run())
    await asyncio.sleep(0.02)
    seen.clear()
    for number in range(int(seconds / hints_every_s)):
        watch.request_record("stranger", float(number))
        await asyncio.sleep(hints_every_s)
    running.cancel()
    return seen


async def test_hints_without_end_do_not_keep_other_records_from_being_read() -> None:
    assert "honest" in await watched(Reading(), 6 * POLL_S, hints_every_s=0.01)


async def test_a_hint_now_and_then_has_just_what_it_names_read() -> None:
    reading = Reading()
    await watched(reading, WHOLE_POLLS * POLL_S / 2, hints_every_s=WHOLE_POLLS * POLL_S / 4)
    hinted = [wanted for wanted in reading.asked_for if wanted]
    assert hinted and all(set(wanted) == {"stranger"} for wanted in hinted)


def test_the_file_of_own_records_survives_and_keeps_the_latest_of_each_kind(tmp_path: Path) -> None:
    path = tmp_path / "records.bin"
    kept = OwnRecordFile(path, SWARM)
    for round in range(6):
        kept.keep_record(msgspec.structs.replace(REPORT, round=round), 100.0 + round)
    kept.keep_record(CLOCK, 7.0)
    kept.keep_record(msgspec.structs.replace(CLOCK, round=9), 8.0)
    anyio.run(kept.save)
    again = OwnRecordFile(path, SWARM)
    rounds = [content.round for content, *_ in again.all_records if isinstance(content, ReportRecord)]
    assert rounds == [3, 4, 5]
    assert (again.used_expirations(CLOCK.key)[0], again.used_expirations(MEMBERSHIP.key)[0]) == (8.0, 0.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert OwnRecordFile(path, "another").all_records == []


@pytest.mark.parametrize("content", [b"", b"noise", msgpack.packb([[b"\x91" * 50, 1.0]]), msgpack.packb([["x", 1.0]])])
def test_a_damaged_file_of_own_records_is_put_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "records.bin"
    path.write_bytes(content)
    assert OwnRecordFile(path, SWARM).all_records == []
    assert path.with_suffix(".damaged").read_bytes() == content
