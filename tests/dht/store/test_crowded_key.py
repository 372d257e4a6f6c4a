"""A crowd of records under one key causes no needless verification."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.p2p.hivemind_api import DHTID, PeerID, dht_pb2
from swarmd.dht.store import seniority
from swarmd.dht.store.capacity import IDLE_BYTES_MIN, KEY_BYTES_MAX
from swarmd.dht.store.lookup import KeySearch, PeerAnswer, ask_peer_for_records
from swarmd.dht.store.parts import KeyPart, ShownRecord
from swarmd.dht.store.validator import CHECKED_BYTES_MAX, CHECKED_BYTES_MIN
from swarmd.dht.wire import names, records
from swarmd.dht.wire.records import SignedRecord
from swarmd.errors import RecordRejected
from tests.dht.making import ALICE, BOB, REPORT, signed_by
from tests.dht.store.protocol import Unconnected

pytestmark = pytest.mark.anyio

KEY = DHTID.from_bytes(names.key_id(REPORT.key))

BUSY_S, WATCHED_S = 0.05, 2.0


class Reader(Unconnected):
    """Reads what it holds itself."""

    def store(self, signed: SignedRecord) -> None:
        """As if a peer had sent it."""
        columns = (KEY.to_bytes(), signed.owner, signed.value, signed.expiration)
        self._store_record("sender", *columns, replayed="")

    def read(self) -> KeySearch:
        """What is found here."""
        run = SimpleNamespace(dht=SimpleNamespace(protocol=self, node_id=DHTID(1)))
        found = KeySearch(cast(Any, run), REPORT.key)
        found.merge_own_records()
        return found


def test_what_is_held_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seniority, "WORK_BITS", 0)  # all have worked
    reader, verified = Reader(), []
    held = [signed_by(ALICE, REPORT), *(unsigned() for _ in range(CHECKED_BYTES_MAX // CHECKED_BYTES_MIN))]
    for signed in held:
        assert reader.storage.store_record(KEY, signed)
    monkeypatch.setattr(records, "is_signature_valid", lambda signed, key: verified.append(signed) or True)
    assert set(reader.read().records) == {signed.owner for signed in held}
    assert reader.read().records[ALICE.peer_id] == held[0]
    assert verified == []


def test_a_record_without_room_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, verified = Reader(), []
    monkeypatch.setattr(records, "is_signature_valid", lambda signed, key: verified.append(signed) or True)
    refused: list[str] = []
    for _ in range(KEY_BYTES_MAX // 16 // IDLE_BYTES_MIN + 50):
        try:
            reader.store(unsigned())
        except records.RecordRejected as error:
            refused.append(error.reason)
    assert set(refused) == {"full"}
    assert len(verified) == KEY_BYTES_MAX // 16 // IDLE_BYTES_MIN + 50 - len(refused)


def unsigned() -> SignedRecord:
    """A record that nobody is to verify."""
    return SignedRecord(generate_identity().peer_id, msgspec.msgpack.encode(REPORT), time.time() + 60, bytes(64))


def test_what_differs_from_what_is_held_is_verified() -> None:
    reader = Reader()
    signed = signed_by(BOB, REPORT)
    reader.storage.store_record(KEY, signed)
    assert reader.verify_shown_record(KEY, BOB.peer_id, signed.value, signed.expiration) == signed
    for value, expiration in (
        (signed.value[:-1] + b"x", signed.expiration),
        (signed.value, signed.expiration + 1.0),
    ):
        with pytest.raises(records.RecordRejected):
            reader.verify_shown_record(KEY, BOB.peer_id, value, expiration)


def test_what_forgers_say_they_have_worked_is_not_remembered() -> None:
    """Whether there is room is asked before the signature is checked; a swarm's name may be as long as a record."""
    seniority._work_bits.cache_clear()
    reader, genuine = Reader(), signed_by(ALICE, REPORT)
    for number in range(4):
        content = msgspec.structs.replace(REPORT, swarm=40_000 * "x", work=number)
        with pytest.raises(RecordRejected, match="not signed"):
            reader.store(msgspec.structs.replace(genuine, payload=msgspec.msgpack.encode(content)))
    assert seniority._work_bits.cache_info().currsize == 0


PEER = PeerID.from_base58(BOB.peer_id)

CROWD = [generate_identity() for _ in range(300)]


class Asker(Unconnected):
    """Asks one peer, which answers what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.verified = 0
        verifies = records.is_signature_valid

        def count(signed: SignedRecord, key: bytes) -> bool:
            self.verified += 1
            return verifies(signed, key)

        monkeypatch.setattr(records, "is_signature_valid", count)

    async def ask(self, shown: list[ShownRecord], *only: Identity) -> PeerAnswer | None:
        """What is made of an answer; where `only` are named, their records were asked for."""
        result = dht_pb2.FindResult(
            type=dht_pb2.FOUND_DICTIONARY,
            value=msgspec.msgpack.encode(KeyPart(b"life", 1, tuple(shown))),
            expiration_time=4e9,
        )

        async def rpc_find(request: Any, timeout: float) -> Any:
            return dht_pb2.FindResponse(results=[result])

        self.get_stub = lambda peer: SimpleNamespace(rpc_find=rpc_find)
        return await ask_peer_for_records(self, PEER, KEY, [each.peer_id for each in only])


@pytest.fixture
def asker(monkeypatch: pytest.MonkeyPatch) -> Asker:
    return Asker(monkeypatch)


def shown_by(identity: Identity, of: Identity | None = None) -> ShownRecord:
    """A record of one peer, in the name of another."""
    signed = signed_by(identity, REPORT)
    return ShownRecord((of or identity).peer_id, signed.value, signed.expiration)


async def test_who_shows_others_than_were_asked_for_has_nothing_of_it_verified(asker: Asker) -> None:
    assert await asker.ask([shown_by(each) for each in (*CROWD, ALICE)], ALICE) is None
    assert asker.verified == 0 and asker.refused == {"unasked": 1}


async def test_an_answer_full_of_forged_records_is_not_read_to_its_end(asker: Asker) -> None:
    answer = await asker.ask([shown_by(ALICE), *(shown_by(BOB, of=each) for each in CROWD)])
    assert answer is not None and [signed.owner for signed in answer.records] == [ALICE.peer_id]
    assert asker.verified <= 1 + 4 and asker.refused == {"bad-signature": 4}
    assert not asker.record_validator.remembered.progress(KEY).cursors, "it is asked for all of them again"


async def test_all_else_goes_on_while_a_long_answer_is_read(asker: Asker) -> None:
    turns = 0

    async def go_on() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.get_running_loop().create_task(go_on())
    answer = await asker.ask([shown_by(each) for each in CROWD])
    beside.cancel()
    assert answer is not None and len(answer.records) == len(CROWD)
    assert turns >= len(CROWD) // 16
    assert cast(Any, asker.record_validator.remembered.progress(KEY).cursors)
