"""What a node of a legacy network keeps for others: every record that v0.4 could have written, within bounds."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from swarmd.dht.legacy import keys, storage
from swarmd.dht.legacy.guard import AHEAD_S, KEPT_BURST, SUBKEY_LENGTH_MAX, LegacyGuard
from swarmd.dht.legacy.protocol import LegacyProtocol
from swarmd.dht.legacy.records import LIFE_S
from swarmd.dht.legacy.storage import ENTRY_BYTES, HEAP_SLACK, LegacyStorage, answer_bytes
from swarmd.dht.legacy.values import VALUE_BYTES_MAX, encode
from swarmd.dht.limits import door
from swarmd.dht.limits.answer_size import NEARBY_BYTES, RECORD_BYTES, check_answerable
from swarmd.dht.limits.door import RequestLimits
from swarmd.dht.limits.rejections import Rejections
from swarmd.dht.p2p.hivemind_api import DHTID, DictionaryDHTValue, PeerID, RoutingTable, dht_pb2, protocol_module
from swarmd.dht.store.handing_on import HandingOn
from swarmd.dht.store.shown_records import YIELD_EVERY
from swarmd.dht.store.storage import RECOUNT_S
from swarmd.dht.wire import names
from swarmd.errors import RecordRejected
from tests.dht.making import ALICE
from tests.dht.outsider import bomb, dictionary_of

pytestmark = pytest.mark.anyio

SENDER = PeerID.from_base58("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
PEER = str(SENDER)
REWARDS, CLOCK = keys.rewards(0, 0), keys.CLOCK
NIL, WHOLE = msgpack.packb(None), b""


def in_s(seconds: float) -> float:
    return time.time() + seconds


class Keeper:
    """`LegacyProtocol` without a network."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.guard = LegacyGuard(Rejections(time.monotonic), self.stored.append)
        self.protocol = LegacyProtocol(_initialized_with_create=True)
        self.protocol.record_validator = self.guard
        self.protocol.storage = LegacyStorage()
        self.protocol.node_info = dht_pb2.NodeInfo()

    async def store(self, name: str, tag: bytes, value: bytes, expiration: float, key: bytes = b"") -> bool:
        request = dht_pb2.StoreRequest(
            keys=[key or names.key_id(name)], subkeys=[tag], values=[value], expiration_time=[expiration]
        )
        context = cast(Any, SimpleNamespace(remote_id=SENDER))
        return bool((await LegacyProtocol.rpc_store(self.protocol, request, context)).store_ok[0])

    def held(self, name: str, subkey: str | None = None) -> Any:
        found = self.protocol.storage.held(DHTID.from_bytes(names.key_id(name)), subkey)
        return None if found is None else found[0]

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.guard.rejections.total)


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    async def ping_nobody(*args: object) -> None:
        """The sender is not added to any table."""

    monkeypatch.setattr(LegacyProtocol, "rpc_ping", ping_nobody)
    yield Keeper()


@pytest.fixture
def table(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> RoutingTable:
    """The keeper's routing table; whoever is in it need not show that it is there still."""

    async def ping(*args: object) -> None:
        """Nobody is asked."""

    protocol = keeper.protocol
    monkeypatch.setattr(protocol, "call_ping", ping)
    protocol.handing_on, protocol.node_id, protocol.num_replicas = HandingOn(), DHTID(0), 5
    table = protocol.routing_table = RoutingTable(DHTID(0), bucket_size=20, depth_modulo=5)
    return table


async def test_a_peer_has_one_place_however_many_it_names(keeper: Keeper, table: RoutingTable) -> None:
    other = PeerID.from_base58(ALICE.peer_id)
    await keeper.protocol.update_routing_table(DHTID(7), other)
    for number in range(100):
        await keeper.protocol.update_routing_table(DHTID.generate(number), SENDER)
    assert set(table.uid_to_peer_id) == {DHTID(7), DHTID.generate(99)}, "one that was started anew has a new one"
    await keeper.protocol.update_routing_table(DHTID.generate(99), SENDER)
    assert table.get(peer_id=SENDER) == DHTID.generate(99) and keeper.refused == {}


async def test_nobody_takes_the_place_of_another_peer(keeper: Keeper, table: RoutingTable) -> None:
    other = PeerID.from_base58(ALICE.peer_id)
    await keeper.protocol.update_routing_table(DHTID(7), other)
    await keeper.protocol.update_routing_table(DHTID(7), SENDER)
    assert dict(table.uid_to_peer_id) == {DHTID(7): other} and keeper.refused == {"wrong-id": 1}
    await keeper.protocol.update_routing_table(None, other, responded=False)
    await keeper.protocol.update_routing_table(DHTID(7), SENDER)
    assert dict(table.uid_to_peer_id) == {DHTID(7): SENDER}, "who does not answer gives its place up"


async def test_every_record_of_v04_is_kept(keeper: Keeper) -> None:
    output = encode((time.time(), {"question": "q", "answer": None, "agent_answers": {PEER: "text" * 5000}}))
    records = [
        (CLOCK, NIL, encode((0, 0))),
        (REWARDS, msgpack.packb(PEER), encode(4.25)),
        (REWARDS, msgpack.packb("a uuid of v0.1"), encode(1)),
        (keys.outputs(PEER, 0, 0), msgpack.packb(keys.question_key("q")), output),
        (keys.outputs(PEER, 0, 0), msgpack.packb("a whole question, as before v0.3" * 100), output),
        (keys.leaderboard(0, 0), NIL, encode([(PEER, float(number)) for number in range(2000)])),
    ]
    for name, tag, value in records:
        assert await keeper.store(name, tag, value, in_s(LIFE_S)), name
    whole = dictionary_of([(str(number), encode(float(number)), in_s(LIFE_S)) for number in range(500)])
    assert await keeper.store(keys.rewards(0, 1), WHOLE, whole, in_s(LIFE_S))
    assert keeper.held(CLOCK) == encode((0, 0)) and keeper.held(REWARDS, PEER) == encode(4.25)
    assert keeper.held(keys.rewards(0, 1), "499") == encode(499.0)
    assert keeper.refused == {} and keeper.stored[0] == names.key_id(CLOCK)


async def test_a_later_expiration_wins_and_an_earlier_one_is_no_offence(keeper: Keeper) -> None:
    at = in_s(100)
    for name, tag in ((CLOCK, NIL), (REWARDS, msgpack.packb(PEER))):
        subkey = None if tag == NIL else PEER
        values = [encode((number, 0) if subkey is None else float(number)) for number in range(3)]
        assert await keeper.store(name, tag, values[0], at)
        assert not await keeper.store(name, tag, values[1], at)
        assert not await keeper.store(name, tag, values[1], at - 1)
        assert keeper.held(name, subkey) == values[0]
        assert await keeper.store(name, tag, values[2], at + 1)
        assert keeper.held(name, subkey) == values[2]
    assert keeper.refused == {}


@pytest.mark.parametrize(
    ("name", "tag", "value", "expires_in_s", "reason"),
    [
        (REWARDS, msgpack.packb(PEER), encode(1.0), math.inf, "far-expiration"),
        (REWARDS, msgpack.packb(PEER), encode(1.0), math.nan, "far-expiration"),
        (REWARDS, msgpack.packb(PEER), encode(1.0), LIFE_S + AHEAD_S + 10, "far-expiration"),
        (REWARDS, msgpack.packb(7), encode(1.0), 60.0, "malformed"),
        (REWARDS, b"\xc1", encode(1.0), 60.0, "malformed"),
        (REWARDS, bomb(400), encode(1.0), 60.0, "nested"),
        (REWARDS, msgpack.packb("x" * (SUBKEY_LENGTH_MAX + 1)), encode(1.0), 60.0, "oversized"),
        (REWARDS, msgpack.packb(PEER), b"\xc1", 60.0, "malformed"),
        (REWARDS, msgpack.packb(PEER), bomb(400), 60.0, "nested"),
        (REWARDS, msgpack.packb(PEER), b"\x00" * (VALUE_BYTES_MAX + 1), 60.0, "oversized"),
        (REWARDS, WHOLE, b"\xc1", 60.0, "malformed"),
        (REWARDS, WHOLE, dictionary_of([(None, encode(1.0), 4e9)]), 60.0, "malformed"),
        (REWARDS, WHOLE, dictionary_of([(PEER, "text", 4e9)]), 60.0, "malformed"),
        (REWARDS, WHOLE, dictionary_of([(PEER, encode(1.0), "soon")]), 60.0, "far-expiration"),
        (CLOCK, NIL, encode("round 3"), 60.0, "malformed"),
        (CLOCK, NIL, encode((3, 9)), 60.0, "malformed"),
        (CLOCK, msgpack.packb(PEER), encode((3, 1)), 60.0, "malformed"),
        (CLOCK, WHOLE, dictionary_of([(PEER, encode((3, 1)), 4e9)]), 60.0, "malformed"),
    ],
)
async def test_what_v04_never_writes_is_not_kept(
    keeper: Keeper, name: str, tag: bytes, value: bytes, expires_in_s: float, reason: str
) -> None:
    assert not await keeper.store(name, tag, value, in_s(expires_in_s))
    assert keeper.refused == {reason: 1} and keeper.stored == []
    assert len(keeper.protocol.storage) == 0


@pytest.mark.parametrize("size_bytes", [5, 21, 5000])
async def test_a_key_of_another_length_is_refused(keeper: Keeper, size_bytes: int) -> None:
    assert not await keeper.store("", NIL, encode(1.0), in_s(60), key=size_bytes * b"x")
    assert keeper.refused == {"malformed": 1}


async def test_a_plain_value_does_not_wipe_what_peers_have(keeper: Keeper) -> None:
    assert await keeper.store(REWARDS, msgpack.packb(PEER), encode(1.0), in_s(60))
    assert not await keeper.store(REWARDS, NIL, encode(1.0), in_s(600))
    assert keeper.held(REWARDS, PEER) == encode(1.0) and keeper.refused == {"malformed": 1}


async def test_bad_entries_of_a_dictionary_cost_only_themselves(keeper: Keeper) -> None:
    entries = [("good", encode(1.0), in_s(60)), ("bad", b"\xc1", in_s(60)), ("far", encode(1.0), 1e18)]
    assert not await keeper.store(REWARDS, WHOLE, dictionary_of(entries), in_s(60))
    assert keeper.held(REWARDS, "good") == encode(1.0) and keeper.held(REWARDS, "bad") is None
    assert keeper.refused == {"malformed": 1, "far-expiration": 1}


async def test_one_peer_fills_only_its_share(keeper: Keeper) -> None:
    value = encode("x" * (VALUE_BYTES_MAX - 5))
    keeper.guard.bytes_quota.try_charge = lambda *args: True  # type: ignore[method-assign]
    answers = [await keeper.store(f"key {number}", NIL, value, in_s(60)) for number in range(70)]
    assert 60 < sum(answers) <= KEPT_BURST / VALUE_BYTES_MAX + 1 and not answers[-1]
    assert set(keeper.refused) == {"quota"}


async def test_one_sender_is_heard_only_so_often(keeper: Keeper) -> None:
    keeper.guard.records_quota.try_charge = lambda *args: False  # type: ignore[method-assign]
    assert not await keeper.store(REWARDS, msgpack.packb(PEER), encode(1.0), in_s(60))
    assert keeper.refused == {"quota": 1}


async def test_keys_and_bytes_have_bounds(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "KEYS_MAX", 2)
    monkeypatch.setattr(storage, "KEY_BYTES_MAX", 100)
    assert await keeper.store("one", msgpack.packb("a"), encode("x" * 60), in_s(60))
    assert not await keeper.store("one", msgpack.packb("b"), encode("x" * 60), in_s(60))
    assert await keeper.store("two", NIL, encode(1), in_s(60))
    assert not await keeper.store("three", NIL, encode(1), in_s(60))
    assert keeper.refused == {"full": 2}


def test_replaced_records_leave_nothing_behind() -> None:
    kept, key, at = LegacyStorage(), DHTID.generate(), in_s(60)
    for number in range(3 * HEAP_SLACK):
        assert kept.keep(key, "subkey", encode(number), at + number * 0.001)
    item = kept.get(key)
    assert item is not None and len(item.value.expiration_heap) <= HEAP_SLACK + 4
    assert len(kept.expiration_heap) <= HEAP_SLACK + 4
    assert kept.held(key, "subkey") == (encode(3 * HEAP_SLACK - 1), at + (3 * HEAP_SLACK - 1) * 0.001)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each count of a key went through."""
    made: list[int] = []

    def count(value: Any) -> int:
        made.append(len(value) if isinstance(value, DictionaryDHTValue) else 1)
        return answer_bytes(value)

    monkeypatch.setattr(storage, "answer_bytes", count)
    return made


def test_a_key_of_many_records_is_not_counted_anew_for_each(counts: list[int]) -> None:
    kept, key, at = LegacyStorage(), DHTID.generate(), in_s(60)
    for number in range(2000):
        assert kept.keep(key, str(number), encode(1.0), at)
    assert sum(counts) <= 2000


def test_a_replaced_record_takes_its_place_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "KEY_BYTES_MAX", 100 + 2 * RECORD_BYTES)
    kept, key, at = LegacyStorage(), DHTID.generate(), in_s(60)
    for number in range(10):
        assert kept.keep(key, "a", encode("x" * 80), at + number)
    with pytest.raises(RecordRejected) as refusal:
        kept.keep(key, "b", encode("x" * 30), at)
    assert refusal.value.reason == "full"
    assert kept.keep(key, "a", encode("x" * 10), at + 20) and kept.keep(key, "b", encode("x" * 30), at)


def test_a_full_key_is_counted_now_and_then_and_takes_the_place_of_what_expired(
    monkeypatch: pytest.MonkeyPatch, counts: list[int]
) -> None:
    monkeypatch.setattr(storage, "KEY_BYTES_MAX", 100 + 2 * RECORD_BYTES)
    now = 1000.0
    monkeypatch.setattr(storage.time, "monotonic", lambda: now)
    kept, key = LegacyStorage(), DHTID.generate()
    assert kept.keep(key, "long", encode("x"), in_s(60)) and kept.keep(key, "short", encode("x" * 80), in_s(0.05))
    for _ in range(50):
        with pytest.raises(RecordRejected):
            kept.keep(key, "b", encode("x" * 40), in_s(60))
    assert len(counts) <= 1
    deadline = time.time() + 5
    while kept.held(key, "short") is not None:
        assert time.time() < deadline
    now += RECOUNT_S + 1
    assert kept.keep(key, "b", encode("x" * 40), in_s(60))


@pytest.mark.parametrize("start", ["", 200 * "x"], ids=["short", "long"])
def test_a_key_that_many_small_records_fill_can_be_shown(monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    monkeypatch.setattr(storage, "KEY_BYTES_MAX", 20_000)
    monkeypatch.setattr(door, "ANSWER_BYTES_MAX", 20_000 + NEARBY_BYTES)
    kept, key, at = LegacyStorage(), DHTID.generate(), in_s(60)
    with pytest.raises(RecordRejected, match="too many bytes"):
        for number in range(10_000):
            kept.keep(key, f"{start}{number}", encode(1.0), at)
    check_answerable(RequestLimits(lambda *refused: None), PEER, [key.to_bytes()], kept)
    item = kept.get(key)
    assert item is not None and 5_000 < len(item.value.packb()) <= 20_000


def test_names_of_records_count_in_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "STORED_BYTES_MAX", 100_000)
    kept, at = LegacyStorage(), in_s(60)
    with pytest.raises(RecordRejected, match="can hold no more"):
        for number in range(12):
            kept.keep(DHTID.generate(), f"{number:010000}", encode(None), at)


def test_small_records_count_as_what_they_cost_when_all_are_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "STORED_BYTES_MAX", 20 * ENTRY_BYTES)
    now = 1000.0
    monkeypatch.setattr(storage.time, "monotonic", lambda: now)
    kept, at = LegacyStorage(), in_s(60)
    with pytest.raises(RecordRejected, match="can hold no more"):
        for number in range(60):
            now += RECOUNT_S + 1
            kept.keep(DHTID.generate(), str(number), encode(1), at)
    assert len(kept) <= 21


def test_expired_records_are_gone() -> None:
    kept, key = LegacyStorage(), DHTID.generate()
    assert kept.keep(key, None, encode(1), in_s(0.05))
    assert kept.held(key, None) is not None
    deadline = time.monotonic() + 2
    while kept.held(key, None) is not None:
        assert time.monotonic() < deadline
    assert kept.keep(key, "a", encode(1), in_s(60))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (dht_pb2.FindResult(type=dht_pb2.NOT_FOUND), None),
        (dht_pb2.FindResult(type=dht_pb2.FOUND_REGULAR, value=encode(1), expiration_time=1e18), None),
        (dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=b"\xc1", expiration_time=4e9), None),
        (dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=dictionary_of([]), expiration_time=4e9), None),
    ],
)
async def test_answers_without_a_record_are_empty(keeper: Keeper, result: Any, expected: Any) -> None:
    key = DHTID.from_bytes(names.key_id(REWARDS))
    assert await keeper.protocol._open_result(PEER, key, result) == (expected, {})


async def test_all_else_goes_on_while_a_long_answer_is_read(keeper: Keeper) -> None:
    entries = [(f"peer-{number}", encode(1.0), in_s(60)) for number in range(4000)]
    result = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=dictionary_of(entries), expiration_time=4e9)
    turns = 0

    async def do_something_else() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    elsewhere = asyncio.create_task(do_something_else())
    held, _ = await keeper.protocol._open_result(PEER, DHTID.from_bytes(names.key_id(REWARDS)), result)
    elsewhere.cancel()
    assert len(held.value) == 4000 and turns >= 2000 // YIELD_EVERY


def test_the_wire_names_are_hiveminds() -> None:
    assert LegacyProtocol._get_handle_name(None, "rpc_store") == protocol_module.DHTProtocol._get_handle_name(
        None, "rpc_store"
    )


def test_the_guard_signs_nothing() -> None:
    guard = LegacyGuard(Rejections(time.monotonic))
    record = protocol_module.DHTRecord(b"k", b"s", b"value", 1.0)
    assert guard.sign_value(record) == guard.strip_value(record) == b"value" and guard.validate(record)
    with pytest.raises(RecordRejected):
        guard.check(names.key_id(REWARDS), PEER, "text", 1.0)
