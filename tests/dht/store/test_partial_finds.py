"""A peer that is asked again shows what is new; one that is asked for some owners shows only their records."""

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarmd.dht.p2p.hivemind_api import DHTID, RoutingTable, dht_pb2
from swarmd.dht.p2p.limits import PeerLimits
from swarmd.dht.store import parts
from swarmd.dht.store.parts import (
    AnswerMemory,
    AnswerProgress,
    Cursor,
    FindFilter,
    KeyPart,
    add_filter,
    decode_key_part,
    read_filter,
)
from swarmd.dht.store.storage import BoundedStorage
from swarmd.dht.store.validator import answer_find_request, select_key_part
from swarmd.dht.wire import names
from swarmd.dht.wire.records import SignedRecord
from swarmd.errors import RecordRejected
from tests.dht.making import REPORT

KEY = DHTID.from_bytes(names.key_id(REPORT.key))
BYTES_MAX = 2**20


def record(owner: str, version: int = 0) -> SignedRecord:
    """A report whose signature nobody looks at."""
    return SignedRecord(owner, msgspec.msgpack.encode(REPORT), time.time() + 60.0 + version, b"")


class LookUp:
    """Asks storers, of which each is told apart by a name, for what is new since it began."""

    def __init__(self, memory: AnswerMemory) -> None:
        self.memory, self.since = memory, memory.progress(KEY)
        self.known = {signed.owner: signed.expiration for signed in memory.records(KEY, time.time())}

    def ask(self, name: str, storage: BoundedStorage) -> KeyPart:
        """What a storer shows now, after a way over the wire."""
        request = dht_pb2.FindRequest(keys=[KEY.to_bytes()])
        add_filter(request, FindFilter((), self.since.cursor_of(name)))
        sent = dht_pb2.FindRequest.FromString(request.SerializeToString())
        wanted = read_filter(sent)
        assert wanted is not None
        part = decode_key_part(msgspec.msgpack.encode(select_key_part(storage, KEY, wanted)), BYTES_MAX)
        self.memory.remember_answer(KEY, name, part, [record_of(shown) for shown in part.records], self.since)
        for shown in part.records:
            self.known[shown.owner] = max(shown.expiration, self.known.get(shown.owner, 0.0))
        return part


def record_of(shown: parts.ShownRecord) -> SignedRecord:
    return SignedRecord(shown.owner, shown.value, shown.expiration, b"")


OWNERS = st.sampled_from([f"peer-{number}" for number in range(6)])
STORERS = st.sampled_from(["one", "two"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "drop", "restart", "begin", "ask", "forget"]), STORERS, OWNERS, st.integers(0, 1)
    ),
    max_size=40,
)


@given(STEPS)
@example([(what, "one", "peer-0", 0) for what in ("store", "begin", "ask", "store", "begin", "ask")])
@example([(what, "one", "peer-0", which) for what, which in (("store", 0), ("ask", 0), ("ask", 1))])
@example(
    [(what, "one", "peer-0", which) for what, which in (("store", 0), ("ask", 0), ("begin", 1), ("forget", 0))]
    + [(what, "one", "peer-0", which) for what, which in (("ask", 1), ("begin", 0), ("ask", 0))]
)
def test_each_look_up_finds_all_that_there_is_whatever_others_have_been_shown(
    steps: list[tuple[str, str, str, int]],
) -> None:
    memory, storers = AnswerMemory(), {"one": BoundedStorage(), "two": BoundedStorage()}
    look_ups = [LookUp(memory), LookUp(memory)]
    for version, (what, name, owner, which) in enumerate(steps):
        storage = storers[name]
        if what == "store":
            storage.store_record(KEY, record(owner, version))
        elif what == "drop" and storage.held_entry(KEY, owner):
            storage._drop_record(KEY, owner)
        elif what == "restart":
            storers[name] = BoundedStorage()
        elif what == "forget":
            memory.clear()
        elif what == "begin":
            look_ups[which] = LookUp(memory)
        elif what == "ask":
            look_ups[which].ask(name, storage)
            held = {owner: expiration for owner, (_, expiration) in storage.records(KEY).items()}
            assert all(look_ups[which].known[owner] >= expiration for owner, expiration in held.items())


def test_an_answer_of_which_something_does_not_count_yet_is_asked_for_again() -> None:
    storage, memory = BoundedStorage(), AnswerMemory()
    storage.store_record(KEY, record("peer-0"))
    memory.remember_answer(KEY, "one", select_key_part(storage, KEY, FindFilter()), [], AnswerProgress())
    assert memory.progress(KEY).cursor_of("one") == Cursor()


def test_another_life_of_a_storer_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = BoundedStorage()
    for number in range(3):
        storage.store_record(KEY, record(f"peer-{number}"))
    for cursor in (Cursor(b"another!", 1), Cursor(storage.changes.life, 99)):
        assert len(select_key_part(storage, KEY, FindFilter((), cursor)).records) == 3
    assert len(select_key_part(storage, KEY, FindFilter((), Cursor(storage.changes.life, 2))).records) == 1


def test_one_owners_record_is_shown_alone_and_nothing_of_whoever_has_none() -> None:
    storage = BoundedStorage()
    for number in range(3):
        storage.store_record(KEY, record(f"peer-{number}"))
    assert [
        shown.owner for shown in select_key_part(storage, KEY, FindFilter(("peer-1", "nobody", "peer-1"))).records
    ] == ["peer-1"]
    assert select_key_part(BoundedStorage(), KEY, FindFilter()).records == ()


def asking(encoded: bytes, keys: int = 1, times: int = 1) -> Any:
    """A request that says this."""
    request = dht_pb2.FindRequest(keys=[KEY.to_bytes()] * keys)
    for _ in range(times):
        request.MergeFromString(bytes([parts.FILTER_FIELD << 3 | 2, len(encoded)]) + encoded)
    return request


GENUINE = msgspec.msgpack.encode(FindFilter())
FORGED = [
    (b"", 1, 1),
    (b"\xc1", 1, 1),
    (b"\x92\x90\x92\xc4\x01a\xff", 1, 1),  # a negative number
    (b"\x92\x91\x01\x92\xc4\x00\x00", 1, 1),  # an owner that is none
    (b"\x91" * 20 + b"\x90", 1, 1),
    (GENUINE, 2, 1),
    (GENUINE, 0, 1),
    (GENUINE, 1, 2),
]


@pytest.mark.parametrize(("encoded", "keys", "times"), FORGED)
def test_odd_filters_are_refused_and_counted(encoded: bytes, keys: int, times: int) -> None:
    counted: list[tuple[str, str]] = []
    peer_limits = PeerLimits(lambda peer, reason, detail: counted.append((peer, reason)))
    protocol = SimpleNamespace(p2p=SimpleNamespace(peer_limits=peer_limits))
    with pytest.raises(RecordRejected):
        answer_find_request(protocol, "stranger", asking(encoded, keys, times))
    assert [peer for peer, _ in counted] == ["stranger"] and counted[0][1] in ("malformed", "nested")


def test_a_part_is_bounded_like_any_answer() -> None:
    counted: list[str] = []
    peer_limits = PeerLimits(lambda peer, reason, detail: counted.append(reason))
    storage, table = BoundedStorage(), RoutingTable(DHTID(0), bucket_size=20, depth_modulo=5)
    storage.store_record(KEY, record("peer"))
    p2p = SimpleNamespace(peer_limits=peer_limits)
    protocol: Any = SimpleNamespace(p2p=p2p, storage=storage, routing_table=table, bucket_size=20)
    answered = 0
    with pytest.raises(RecordRejected):
        while answered < 100:
            result = answer_find_request(protocol, "stranger", asking(GENUINE))
            assert len(decode_key_part(result.value, BYTES_MAX).records) == 1
            peer_limits.bytes_out.charge(peer_limits.remote_peer_of("stranger"), 2**20)
            answered += 1
    assert counted == ["bytes-out"] and answered > 1
    assert answer_find_request(protocol, "another", dht_pb2.FindRequest(keys=[KEY.to_bytes()])) is None


@pytest.mark.parametrize(
    "value", [b"\x93\x01\x02\x03", b"\x93", b"\x93\xc4\x00\x00\x91\x93\xa1a\xc4\x00\xcb\x7f\xf8" + bytes(6)]
)
def test_odd_parts_are_refused(value: bytes) -> None:
    with pytest.raises(RecordRejected):
        decode_key_part(value, BYTES_MAX)
    with pytest.raises(RecordRejected, match="bytes"):
        decode_key_part(value, 0)
