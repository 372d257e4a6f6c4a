"""What a hostile peer sends to a real worker is refused and counted; the worker keeps its records and goes on."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgpack
import msgspec
import pytest

from swarmd.core.commands import Announce, CollectReports, PublishReport, ReadClock
from swarmd.core.events import (
    RecordsRejected,
    ReportPublished,
    ReportSeen,
    RoundAnnounced,
    RoundPublished,
)
from swarmd.dht.gossip import Hint
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.body_streams import PROTOCOL
from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ClockRecord, ReportRecord, SignedRecord
from tests.dht.driver import SWARM, Driver, until
from tests.dht.making import ALICE, DIGEST, forged, signed_by
from tests.dht.outsider import Outsider, bomb, dictionary_of

pytestmark = pytest.mark.anyio

KEY = names.reports_key(SWARM, 0, 0)
REPORT = ReportRecord(SWARM, 0, 0, 0.5, DIGEST, 10, 1)


class Scene:
    """A coordinator with an announced round and its own report, and an outsider connected to it."""

    def __init__(self, victim: Driver, outsider: Outsider) -> None:
        self.victim = victim
        self.outsider = outsider

    async def is_unharmed(self) -> None:
        """The victim lives, and what it published is what one reads."""
        held = await self.outsider.find(KEY)
        assert self.victim.peer_id in held
        assert self.victim.process.returncode is None and not self.victim.faults
        since = len(self.victim.events)
        await self.victim.do(ReadClock("clock/again"))
        assert (await self.victim.expect(RoundAnnounced, since=since)).round == 0

    def rejected(self) -> dict[str, int]:
        """Reason → count, of all rejections reported of the outsider so far."""
        counts: dict[str, int] = {}
        for event in self.victim.seen(RecordsRejected, peer=self.outsider.peer_id):
            counts[event.reason] = counts.get(event.reason, 0) + event.count
        return counts


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    victim = await Driver(tmp_path / "victim", poll_s=0.5).start()
    outsider = Outsider(tmp_path / "o")
    try:
        address = await victim.address()
        await victim.do(Announce("announce/0/0/1", 0, 0, time.time(), time.time() + 60))
        await victim.expect(RoundPublished)
        await victim.expect(RoundAnnounced)
        await victim.do(CollectReports("collect/0/0", 0, 0))
        await victim.do(PublishReport("report/0/0", 0, 0, 0.5, victim.put(["body"], 1)))
        await victim.expect(ReportPublished)
        await outsider.open(address)
        yield Scene(victim, outsider)
    finally:
        await victim.clean()
        await outsider.close()


async def test_every_kind_of_bad_record_is_refused_and_counted(scene: Scene) -> None:
    outsider, victim = scene.outsider, scene.victim
    later = time.time() + 100
    mine = signed_by(ALICE, REPORT)
    owner = msgpack.packb(victim.peer_id)
    held_value, held_expiration = (await outsider.find(KEY))[victim.peer_id]
    spoof = msgspec.msgpack.encode(REPORT)
    clock = ClockRecord(SWARM, 99, 0, 1.0, 2.0)
    attempts = {
        "oversized": (KEY, msgpack.packb(ALICE.peer_id), b"x" * 80_000, later),
        "malformed": (KEY, *_parts(forged(ALICE, None, key=KEY, payload=b"\xc1"))),
        "unsigned": (KEY, owner, spoof, later),
        "bad-signature": (KEY, owner, spoof + bytes(64), later),
        "stale": (KEY, *_parts(signed_by(ALICE, REPORT, -100.0))),
        "nested": (KEY, *_parts(forged(ALICE, None, key=KEY, payload=b"\x91" * 50 + b"\xc0"))),
        "duplicate": (KEY, owner, held_value, held_expiration),
        "unowned": (KEY, msgpack.packb(None), msgpack.packb("wipe" * 30), later),
        "far-expiration": (KEY, owner, held_value, 1e18),
        "wrong-key": (
            KEY,
            *_parts(forged(ALICE, {**msgspec.to_builtins(REPORT), "kind": "report", "round": 1}, key=KEY)),
        ),
        "wrong-swarm": (
            names.reports_key("other", 0, 0),
            *_parts(signed_by(ALICE, msgspec.structs.replace(REPORT, swarm="other"))),
        ),
        "wrong-round": (
            names.reports_key(SWARM, 50, 0),
            *_parts(signed_by(ALICE, msgspec.structs.replace(REPORT, round=50))),
        ),
        "not-the-coordinator": (clock.key, *_parts(signed_by(ALICE, clock))),
        "non-finite": (KEY, *_parts(signed_by(ALICE, msgspec.structs.replace(REPORT, reward=math.nan)))),
    }
    for reason, attempt in attempts.items():
        assert await outsider.store(*attempt) is False, reason
    assert await outsider.store(KEY, owner, held_value, held_expiration + 5.0) is False  # a replay, kept alive
    await until(lambda: len(scene.rejected()) >= len(attempts), 8.0)
    counted = scene.rejected()
    assert counted.pop("bad-signature") >= 1
    assert counted == dict.fromkeys(attempts.keys() - {"bad-signature"}, 1)
    assert list(await outsider.find(KEY)) == [victim.peer_id]
    assert victim.seen(ReportSeen, peer=ALICE.peer_id) == []
    assert await outsider.store_signed(KEY, mine) is True  # an honest record through the same peer_limits
    assert (await victim.expect(ReportSeen, peer=ALICE.peer_id)).reward == 0.5
    await scene.is_unharmed()


def _parts(signed: SignedRecord) -> tuple[bytes, bytes, float]:
    return msgpack.packb(signed.owner), signed.value, signed.expiration


async def test_a_holder_whose_own_id_has_another_size_does_no_harm(scene: Scene) -> None:
    """hivemind makes a number of it, and an assertion ended the worker."""
    outsider, victim = scene.outsider, scene.victim
    await outsider.pose_as_node()
    await until(lambda: outsider.asked > 0)
    outsider.node_id = b"\xff" * 21
    await victim.do(ReadClock("clock/odd"))  # it, or a poll, asks; a peer that answers so may lose its place at once
    await until(lambda: "malformed" in scene.rejected())
    assert victim.process.returncode is None
    await scene.is_unharmed()


async def test_a_poisoned_holder_is_not_believed(scene: Scene) -> None:
    """A peer that answers a reader with lies: forged records, and an expiration that would end the search."""
    outsider, victim = scene.outsider, scene.victim
    later = ClockRecord(SWARM, 77, 0, 1.0, 2.0)
    lies = dictionary_of(
        [
            (victim.peer_id, msgspec.msgpack.encode(later) + bytes(64), time.time() + 500),
            (ALICE.peer_id, signed_by(ALICE, later).value, time.time() + 500),
        ]
    )
    outsider.answer = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=lies, expiration_time=math.inf)
    await outsider.pose_as_node()
    await until(lambda: "bad-signature" in scene.rejected())
    for answer in (
        dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=bomb(5000), expiration_time=math.nan),
        dht_pb2.FindResult(type=dht_pb2.FOUND_REGULAR, value=b"\xc1", expiration_time=1e300),
        dht_pb2.FindResult(type=dht_pb2.FOUND_REGULAR, value=msgpack.packb("plain"), expiration_time=math.inf),
    ):
        outsider.answer = answer
        asked = outsider.asked
        await victim.do(ReadClock(f"clock/{asked}"))
        await until(lambda asked=asked: outsider.asked > asked)
    assert {event.round for event in victim.seen(RoundAnnounced)} == {0}
    await scene.is_unharmed()


async def test_hints_of_others_and_floods_of_hints_lead_to_nothing(scene: Scene, tmp_path: Path) -> None:
    outsider, victim = scene.outsider, scene.victim
    topic = names.hints_topic(SWARM)
    listening = asyncio.ensure_future(_drain(outsider, topic))
    clock = names.clock_key(SWARM)
    messages = [
        msgspec.msgpack.encode(Hint("clock", clock, math.nan, victim.peer_id)),  # in another's name
        msgspec.msgpack.encode(Hint("clock", clock, math.inf, outsider.peer_id)),
        msgspec.msgpack.encode(Hint("clock", "x" * 5000, 1.0, outsider.peer_id)),
        b"\x91" * 400,
        b"\xa9\x00\x00\x00\x00\x00\x00\x00\x00\x80",
        b"",
    ]
    for number in range(200):
        await outsider.p2p.publish(topic, messages[number % len(messages)])
    since = len(victim.events)
    await asyncio.sleep(0.5)
    listening.cancel()
    assert victim.seen(RoundAnnounced, since) == []
    other = Outsider(tmp_path / "other")  # whoever floods is put out, and its like are served
    try:
        await other.open(await victim.address())
        await Scene(victim, other).is_unharmed()
    finally:
        await other.close()


async def _drain(outsider: Outsider, topic: str) -> None:
    async for _ in outsider.p2p.subscribe(topic):
        continue


async def test_only_listed_members_may_write_or_fetch(tmp_path: Path) -> None:
    victim = await Driver(tmp_path / "victim", members=(ALICE.peer_id,)).start()
    outsider = Outsider(tmp_path / "o")
    try:
        await outsider.open(await victim.address())
        await victim.do(PublishReport("report/0/0", 0, 0, 0.5, ref := victim.put(["body"], 1)))
        await victim.expect(ReportPublished)
        stranger = signed_by(generate_identity(), REPORT)
        assert await outsider.store_signed(KEY, stranger) is False
        assert await outsider.store_signed(KEY, signed_by(ALICE, REPORT)) is True
        assert (await victim.expect(RecordsRejected, peer=outsider.peer_id)).reason == "not-a-member"
        _, reader, writer = await outsider.p2p.call_binary_stream_handler(outsider.victim, PROTOCOL)
        writer.write(bytes.fromhex(ref.digest))
        assert await reader.readexactly(8) == b"\xff" * 8
        writer.close()
    finally:
        await victim.clean()
        await outsider.close()
