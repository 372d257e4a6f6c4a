"""How a peer's records and answers are checked before they are used, without a network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import msgspec
import pytest

from swarmd.bounds import RateLimiter
from swarmd.dht.identity.identity import generate_identity, peer_id_of
from swarmd.dht.p2p.hivemind_api import (
    DHTID,
    MSGPackSerializer,
    PeerID,
    RoutingTable,
    dht_pb2,
    protocol_module,
)
from swarmd.dht.p2p.limits import REQUEST_BYTES_MAX, RejectionCounter
from swarmd.dht.store import storage
from swarmd.dht.store.storage import HANDED_BYTES_MAX, MEETINGS_BURST, BoundedStorage
from swarmd.dht.store.validator import (
    BYTES_BURST,
    CHECKED_BYTES_MAX,
    NEARBY_MAX,
    GuardedProtocol,
    Validator,
    dht_id_of,
    peers_named_in,
)
from swarmd.dht.wire import names
from swarmd.dht.wire.records import RecordPolicy, RolloutsRecord, SignedRecord, sign
from swarmd.errors import RecordRejected
from tests.dht.making import ALICE, BOB, COORDINATOR, DIGEST, POLICY, REPORT, SWARM, signed_by
from tests.dht.outsider import store_request
from tests.dht.store.protocol import Unconnected

pytestmark = pytest.mark.anyio

KEY = names.key_id(REPORT.key)


def test_a_peer_that_names_thousands_of_others_is_heard_out_for_a_few() -> None:
    peers = [PeerID(number.to_bytes(8, "big")) for number in range(5 * NEARBY_MAX)]
    answer = dht_pb2.FindResult(nearest_peer_ids=[peer.to_bytes() for peer in peers])
    assert list(peers_named_in(answer).values()) == peers[:NEARBY_MAX]


async def test_a_crowd_that_calls_in_turn_is_handed_little_and_has_keys_looked_through_a_few_times(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket has places for 20 and 20 that wait: of more than that, each is met anew with each of its calls."""
    keeper.hold(keys=50, size_bytes=60_000)
    handed: list[int] = []

    async def call_store(peer: PeerID, keys: Any, values: Any, *rest: Any, **more: Any) -> None:
        handed.append(sum(map(storage.message_size_bound, values)))

    monkeypatch.setattr(keeper, "call_store", call_store)
    looked = keeper.count_looks(monkeypatch)
    crowd = [PeerID.from_base58(generate_identity().peer_id) for _ in range(200)]
    for peer in 2 * crowd:
        await keeper.update_routing_table(dht_id_of(peer), peer)
    await asyncio.sleep(0)
    assert 0 < looked() <= MEETINGS_BURST * 50
    assert len(handed) <= MEETINGS_BURST and max(handed) <= HANDED_BYTES_MAX


async def test_whoever_is_met_is_handed_what_it_should_keep(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper.hold(keys=3, size_bytes=100)
    handed: list[Any] = []

    async def call_store(peer: PeerID, keys: Any, *rest: Any, **more: Any) -> None:
        handed.append((peer, sorted(keys)))

    monkeypatch.setattr(keeper, "call_store", call_store)
    keeper.count_looks(monkeypatch)
    bob = PeerID.from_base58(BOB.peer_id)
    await keeper.update_routing_table(dht_id_of(bob), bob)
    await asyncio.sleep(0)
    assert handed == [(bob, sorted(key for key, _ in keeper.storage.items()))]
    assert dht_id_of(bob) in keeper.routing_table


@pytest.mark.parametrize(("keys", "owners", "owner_bytes"), [(1, 24_000, 52), (1, 1000, 4000), (400, 1, 16_000)])
async def test_whatever_a_node_holds_what_it_hands_on_fits_into_messages(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, keys: int, owners: int, owner_bytes: int
) -> None:
    """One that does not fit fails like one to a peer that is gone, which is then called no more for a while."""
    keeper.hold(keys=1, size_bytes=100)
    for _ in range(keys):
        key = DHTID.generate()
        for number in range(owners):
            keeper.storage.store_subkey(key, f"{number:0{owner_bytes}}", b"x" * 130, time.time() + 900)
    sent: list[int] = []

    async def call_store(self: Any, peer: PeerID, keys: Any, values: Any, *rest: Any, **more: Any) -> list[bool]:
        sent.append(sum(len(MSGPackSerializer.dumps(value)) for value in values))
        return [True for _ in keys]

    monkeypatch.setattr(protocol_module.DHTProtocol, "call_store", call_store)
    keeper.count_looks(monkeypatch)
    bob = PeerID.from_base58(BOB.peer_id)
    await keeper.update_routing_table(dht_id_of(bob), bob)
    for _ in range(len(sent) + 10):
        await asyncio.sleep(0)
    assert sent and max(sent) <= REQUEST_BYTES_MAX["DHTProtocol.rpc_store"] - 64 * 1024


class Keeper(Unconnected):
    """Stores what peers send."""

    def __init__(self) -> None:
        self.accepted: list[SignedRecord] = []
        self.awaited: set[tuple[bytes, str]] = set()  # keys and owners whose reports are wanted
        super().__init__(accepted=self.accepted.append, awaits=lambda *report: report in self.awaited)

    async def store(self, *records: SignedRecord, sender: str = BOB.peer_id, key: bytes = KEY) -> list[bool]:
        rows = ((key, msgpack.packb(signed.owner), signed.value, signed.expiration) for signed in records)
        request = store_request(rows)
        context = cast(Any, SimpleNamespace(remote_id=PeerID.from_base58(sender)))
        return list((await self.rpc_store(request, context)).store_ok)

    def hold(self, keys: int, size_bytes: int) -> None:
        """Have it keep a record of this size under each of so many keys, and know nobody."""
        self.routing_table = RoutingTable(DHTID(0), bucket_size=20, depth_modulo=5)
        self.node_id, self.num_replicas = DHTID(0), 5
        self.rpc_semaphore = asyncio.Semaphore(0)
        for _ in range(keys):
            key = DHTID.generate()
            self.storage.store_subkey(key, ALICE.peer_id, b"x" * size_bytes, time.time() + 900)

    def count_looks(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
        """From now on, how often it looks who is nearest to a key."""
        nearest, keys = RoutingTable.get_nearest_neighbors, list[Any]()

        def look(table: Any, key: Any, *rest: Any, **more: Any) -> Any:
            keys.append(key)
            return nearest(table, key, *rest, **more)

        monkeypatch.setattr(RoutingTable, "get_nearest_neighbors", look)
        monkeypatch.setattr(self, "call_ping", self._ping)
        return lambda: len(keys)

    async def _ping(self, peer: PeerID) -> None:
        """Nobody is asked."""

    def held(self, owner: str) -> bytes | None:
        found = self.storage.records(DHTID.from_bytes(KEY)).get(owner)
        return found and found[0]


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    async def ping_nobody(*args: object) -> None:
        """The sender is not added to any table."""

    monkeypatch.setattr(GuardedProtocol, "rpc_ping", ping_nobody)
    yield Keeper()


async def test_a_changed_value_under_a_signature_seen_before_is_refused(keeper: Keeper) -> None:
    genuine = signed_by(ALICE, REPORT)
    assert await keeper.store(genuine) == [True]
    better = msgspec.msgpack.encode(msgspec.structs.replace(REPORT, reward=9.5))
    changed = msgspec.structs.replace(genuine, payload=better)
    assert await keeper.store(changed, sender=ALICE.peer_id) == [False]
    assert await keeper.store(changed) == [False]
    assert keeper.refused == {"bad-signature": 2} and keeper.held(ALICE.peer_id) == genuine.value


@pytest.mark.parametrize("size_bytes", [0, 19, 21, 5000])
async def test_a_key_of_another_length_is_refused_and_counted(keeper: Keeper, size_bytes: int) -> None:
    assert await keeper.store(signed_by(ALICE, REPORT), key=size_bytes * b"x") == [False]
    assert keeper.refused == {"malformed": 1}


async def test_another_record_of_the_same_expiration_is_no_duplicate_but_comes_too_late(keeper: Keeper) -> None:
    first = signed_by(ALICE, REPORT)
    second = sign(ALICE, msgspec.structs.replace(REPORT, reward=0.75), first.expiration)
    assert await keeper.store(first, second) == [True, False]
    assert keeper.refused == {"stale": 1} and keeper.held(ALICE.peer_id) == first.value
    assert await keeper.store(second, sender=ALICE.peer_id) == [False]
    assert keeper.accepted == [first]


async def test_who_sends_a_record_again_that_is_held_is_refused_unless_it_is_its_owner(keeper: Keeper) -> None:
    mine = signed_by(ALICE, REPORT)
    assert await keeper.store(mine, mine) == [True, False]
    assert await keeper.store(mine, sender=ALICE.peer_id) == [True]
    assert keeper.refused == {"duplicate": 1} and keeper.accepted == [mine]


def test_a_key_whose_one_signature_is_good_for_all_values_has_no_other_record_verified_again() -> None:
    """An Ed25519 key that is the neutral element: S = 0 and R = A verify whatever is signed."""
    validator, neutral = Validator(POLICY, RejectionCounter(time.monotonic)), b"\x01" + bytes(31)
    owner, expiration = peer_id_of(neutral), time.time() + 60.0
    for number in range(CHECKED_BYTES_MAX // 48_000 + 2):
        content = RolloutsRecord(SWARM, 3, 0, DIGEST, 10, 1, number.to_bytes(2, "big") + bytes(48_000))
        signed = SignedRecord(owner, msgspec.msgpack.encode(content), expiration, neutral + bytes(32))
        assert validator.verify_record(names.key_id(content.key), owner, signed.value, expiration) == signed
    genuine = signed_by(ALICE, RolloutsRecord(SWARM, 3, 0, DIGEST, 10, 1, bytes(48_000)))
    asked = (names.key_id(genuine.content.key), ALICE.peer_id, genuine.value, genuine.expiration)
    assert validator.verify_record(*asked) is validator.verify_record(*asked)


@pytest.mark.parametrize("known", [False, True])
def test_a_record_that_was_checked_before_is_judged_by_what_holds_now(known: bool) -> None:
    now = time.time()
    policy = RecordPolicy(SWARM, COORDINATOR.peer_id, now=lambda: now)
    validator = Validator(policy, RejectionCounter(time.monotonic))
    signed = signed_by(ALICE, REPORT)
    asked = (KEY, signed.owner, signed.value, signed.expiration)
    if known:
        assert validator.verify_record(*asked) is validator.verify_record(*asked)
    policy.admit_only([BOB.peer_id])
    with pytest.raises(RecordRejected, match="members list"):
        validator.verify_record(*asked)
    policy.admit_only([ALICE.peer_id])
    now += 3600.0
    with pytest.raises(RecordRejected, match="expired"):
        validator.verify_record(*asked)


async def test_few_large_records_use_up_a_senders_bytes_before_its_records(keeper: Keeper) -> None:
    large = signed_by(ALICE, RolloutsRecord(SWARM, 3, 0, DIGEST, 10, 1, b"x" * 49_000))
    count = int(BYTES_BURST / len(large.value)) + 8
    keeper.record_validator.bytes_quota = RateLimiter(
        BYTES_BURST, 0.0, time.monotonic
    )  # nothing comes back while this test takes
    await keeper.store(*[large] * count, key=names.key_id(large.content.key))
    assert keeper.refused["quota"] >= 1
    assert keeper.refused["quota"] + keeper.refused["duplicate"] == count - 1
    assert await keeper.store(signed_by(ALICE, REPORT), sender=ALICE.peer_id) == [True], "another sender has its own"


async def test_a_report_that_is_awaited_counts_though_there_is_no_room_to_keep_it(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "STORED_BYTES_MAX", 1024)
    keeper.storage = BoundedStorage()
    mine = signed_by(ALICE, REPORT)
    assert await keeper.store(mine, sender=ALICE.peer_id) == [False] and keeper.refused == {"full": 1}
    keeper.awaited = {(KEY, ALICE.peer_id)}
    assert await keeper.store(mine) == [False] and keeper.accepted == [] and keeper.refused == {"full": 2}
    assert await keeper.store(mine, sender=ALICE.peer_id) == [False], "others are to keep it"
    assert keeper.accepted == [mine] and keeper.refused == {"full": 2} and keeper.held(ALICE.peer_id) is None


async def test_what_is_awaited_is_judged_like_all_else(keeper: Keeper) -> None:
    keeper.awaited = {(KEY, ALICE.peer_id)}
    forged = msgspec.structs.replace(signed_by(ALICE, REPORT), signature=bytes(64))
    assert await keeper.store(forged, sender=ALICE.peer_id) == [False]
    assert keeper.refused == {"bad-signature": 1} and keeper.accepted == []
