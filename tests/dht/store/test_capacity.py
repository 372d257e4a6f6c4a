"""How much a key, and a whole node, has room for, and which records are dropped for others."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.core.values import Standing
from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, find_work
from swarmd.dht.p2p.hivemind_api import DHTID
from swarmd.dht.store import seniority, storage
from swarmd.dht.store import seniority as ranks_module
from swarmd.dht.store.capacity import (
    IDLE_BYTES_MIN,
    MEMBERSHIPS_MAX,
    NEWCOMERS_SHARE,
    RECORD_BYTES,
    STAGES_MAX,
    KeyCapacity,
    _sort_key_of,
)
from swarmd.dht.store.seniority import PeerSlots, Rank, Seniority, pick_by_rank
from swarmd.dht.store.storage import BoundedStorage
from swarmd.dht.wire import names
from swarmd.dht.wire.names import MemberSharding, member_shard_of
from swarmd.dht.wire.records import Payload, SignedRecord
from swarmd.errors import RecordRejected
from tests.dht.making import ALICE, BOB, MEMBERSHIP, REPORT, SWARM, signed_by

KEY = DHTID.from_bytes(names.key_id(REPORT.key))

BYTES = 1000

ranks = st.builds(
    Rank,
    st.integers(0, 3),
    st.sampled_from([0, WORK_BITS, WORK_BITS + 1]),
    st.booleans(),
    st.binary(min_size=1, max_size=1),
)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 400), ranks), max_size=40))
def test_whoever_is_let_in_the_bounds_hold_and_nobody_gives_way_to_a_lower_rank(
    arrivals: list[tuple[int, int, Rank]],
) -> None:
    room, held = KeyCapacity(BYTES), dict[str, tuple[int, Rank]]()
    for number, size, rank in arrivals:
        owner = str(number)
        gone = room.find_displaced(owner, size, rank)
        if gone is None:
            continue
        known_bytes = sum(size for size, rank in held.values() if rank.is_credited)
        for loser in gone:
            other = held[loser][1]
            lower = _sort_key_of(other) < _sort_key_of(rank)
            assert other.is_credited != rank.is_credited or lower
            assert rank.is_credited or not held[loser][1].is_credited or known_bytes > BYTES * (1 - NEWCOMERS_SHARE)
            del held[loser]
            room.drop(loser)
        room.put(owner, size, rank)
        held[owner] = (size, rank)
        assert room.size_bytes == sum(size for size, _ in held.values()) <= BYTES
        assert room.ranks == {owner: rank for owner, (_, rank) in held.items()}


def test_each_side_has_its_share_however_full_the_other_is() -> None:
    newcomer, known = Rank(0, WORK_BITS, True, b"m"), Rank(1, WORK_BITS, True, b"m")
    for first, second in ((newcomer, known), (known, newcomer)):
        room = KeyCapacity(BYTES)
        for number in range(100):
            room.put(f"first {number}", 10, first)
        for number in range(100):
            gone = room.find_displaced(f"second {number}", 10, second)
            if gone is None:
                break
            for owner in gone:
                room.drop(owner)
            room.put(f"second {number}", 10, second)
        sides = {side: sum(rank.is_credited is side for rank in room.ranks.values()) for side in (True, False)}
        assert sides == {True: 75, False: 25}


def test_identities_that_cost_nothing_have_a_small_part_however_much_is_free() -> None:
    room, worked = KeyCapacity(64 * IDLE_BYTES_MIN), Rank(0, WORK_BITS, True, b"a")
    for number in range(8):
        room.try_put(f"idle {number}", 10, Rank(0, 0, True, bytes([number])))
    assert room.ranks.keys() == {f"idle {number}" for number in (4, 5, 6, 7)}, "by lot"
    for number in range(8):
        assert room.try_put(f"worked {number}", IDLE_BYTES_MIN, worked) == []
    assert room.try_put("idle 9", 10, Rank(0, WORK_BITS - 1, True, b"a")) == ["idle 4"]
    room.update_ranks(lambda owner: int(owner == "idle 5"))
    assert room.try_put("idle 10", 10, Rank(0, 0, True, b"z")) == ["idle 6"], "whom credit makes no member"
    assert not Rank(1, 0, True, b"a").is_credited


def test_a_young_member_has_room_beside_elders_whose_records_fill_it() -> None:
    room = KeyCapacity(BYTES)
    for number in range(10):
        assert room.try_put(f"elder {number}", BYTES // 10, Rank(50 + number, 16, False, b"l")) == []
    assert room.try_put("young, large", 50, Rank(1, 16, False, b"m")) is None
    assert room.try_put("young", 10, Rank(1, 16, True, b"m")) == ["elder 0"]
    assert room.try_put("elder 11", BYTES - 5, Rank(99, 16, False, b"m")) is None, "it stays"


def test_first_the_longest_credited_then_who_worked_more_then_a_lot_of_this_nodes_own() -> None:
    seniority = Seniority(lambda peer: peer == "always")
    elder, younger, worker, idle = (generate_identity() for _ in range(4))
    seniority.update_standings(
        Standing(each.peer_id, "", 0.0, rounds, 0) for each, rounds in ((younger, 1), (elder, 5), (idle, 0))
    )
    records = {idle.peer_id: signed_by(idle, REPORT)}
    for each in (elder, younger, worker):
        work = find_work(SWARM, each.peer_id, WORK_BITS)
        records[each.peer_id] = signed_by(each, msgspec.structs.replace(REPORT, work=work))
    placed = seniority.ranks_of(records, KEY.to_bytes())
    order = pick_by_rank(placed, lambda rank: True)
    assert order == [each.peer_id for each in (elder, younger, worker, idle)]
    assert pick_by_rank(placed, PeerSlots(1, 1, 0).try_occupy) == [elder.peer_id, worker.peer_id]
    lots = {Seniority().rank_of(records[idle.peer_id], KEY.to_bytes()).tie_breaker for _ in range(4)}
    lots |= {seniority.rank_of(records[idle.peer_id], key).tie_breaker for key in (b"one", b"two")}
    assert len(lots) == 6, "each node's, and each key's"


def test_a_known_peers_record_takes_the_place_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "KEY_BYTES_MAX", 4 * len(signed_by(ALICE, REPORT).value))
    monkeypatch.setattr(ranks_module, "WORK_BITS", 0)  # all strangers count as having worked
    seniority = Seniority()
    held = BoundedStorage(seniority)

    def admit(signed: SignedRecord) -> bool:
        try:
            return held.store_record(KEY, signed)
        except RecordRejected as error:
            assert error.reason == "full"
            return False

    strangers = [signed_by(generate_identity(), REPORT) for _ in range(12)]
    assert all(admit(signed) for signed in strangers[:4])
    admit(signed_by(BOB, REPORT))
    assert len(held.records(KEY)) == 4
    seniority.update_standings([Standing(ALICE.peer_id, "", 0.0, 3, 2)])
    for reward in (0.25, 0.75):  # and a later one in the place of its own
        assert admit(signed_by(ALICE, msgspec.structs.replace(REPORT, reward=reward), 60.0 + reward))
        for signed in strangers:
            admit(signed)
        assert ALICE.peer_id in held.records(KEY) and len(held.records(KEY)) == 4


ROOM = 40 * RECORD_BYTES


class Keeper:
    """A storage with little room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(storage, "STORED_BYTES_MAX", ROOM)
        monkeypatch.setattr(storage, "RECOUNT_S", -1.0)
        monkeypatch.setattr(seniority, "WORK_BITS", 0)  # all have worked
        self.seniority = Seniority()
        self.storage = BoundedStorage(self.seniority)

    def admit(self, identity: Identity, content: Payload, ttl_s: float = 60.0) -> bool:
        """Is a record taken?"""
        try:
            return self.storage.store_record(key_of(content), signed_by(identity, content, ttl_s))
        except RecordRejected as error:
            assert error.reason == "full"
            return False

    def holds(self, identity: Identity, content: Payload) -> bool:
        return self.storage.held_entry(key_of(content), identity.peer_id) is not None

    @property
    def count(self) -> int:
        """Records that are held."""
        return sum(len(item.value) for _, item in self.storage.items())


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    return Keeper(monkeypatch)


def key_of(content: Payload) -> DHTID:
    return DHTID.from_bytes(names.key_id(content.key))


def membership(shards: int, epoch: int) -> Payload:
    shard = member_shard_of(SWARM, ALICE.peer_id, MemberSharding(shards, epoch))
    return msgspec.structs.replace(MEMBERSHIP, shards=shards, epoch=epoch, shard=shard)


def report(round: int, stage: int) -> Payload:
    return msgspec.structs.replace(REPORT, round=round, stage=stage)


def fill(keeper: Keeper, keys: int, identities: int) -> None:
    """A crowd writes under so many keys."""
    for _ in range(identities):
        identity = generate_identity()
        for stage in range(keys):
            keeper.admit(identity, report(3, stage))


def test_a_crowd_that_writes_all_keys_keeps_nobody_out_whom_the_swarm_knows(keeper: Keeper) -> None:
    fill(keeper, keys=6, identities=20)
    assert 0 < keeper.storage._whole.size_bytes <= ROOM * NEWCOMERS_SHARE
    keeper.seniority.update_standings([Standing(ALICE.peer_id, "", 0.0, 3, 2)])
    for stage in range(6, 12):
        assert keeper.admit(ALICE, report(3, stage)), "a key that is new"
    fill(keeper, keys=12, identities=10)
    assert all(keeper.holds(ALICE, report(3, stage)) for stage in range(6, 12))


def test_records_under_keys_that_are_held_already_have_the_same_bound(keeper: Keeper) -> None:
    fill(keeper, keys=2, identities=60)
    assert 0 < keeper.count <= ROOM * NEWCOMERS_SHARE / RECORD_BYTES
    assert len(keeper.storage) <= 2, "a key without records is none"


def test_the_latest_stages_of_an_owner_are_kept_in_whatever_order_they_come(keeper: Keeper) -> None:
    keeper.seniority.update_standings([Standing(ALICE.peer_id, "", 0.0, 3, 2)])
    assert keeper.admit(ALICE, MEMBERSHIP)
    for stage in range(2 * STAGES_MAX):
        assert keeper.admit(ALICE, report(3, stage))
    kept = [stage for stage in range(2 * STAGES_MAX) if keeper.holds(ALICE, report(3, stage))]
    assert kept == list(range(STAGES_MAX, 2 * STAGES_MAX)) and keeper.holds(ALICE, MEMBERSHIP)
    assert not keeper.admit(ALICE, report(3, 0)), "an old one, sent again by whomever"
    assert keeper.admit(ALICE, report(3, STAGES_MAX), 90.0), "renewed"
    assert keeper.admit(ALICE, report(4, 0))
    assert keeper.count == STAGES_MAX + 1


def test_one_member_in_every_number_of_shards_and_every_epoch_takes_few_places(keeper: Keeper) -> None:
    """There are some thirty keys that its membership may lie under, and before a clock is heard any number."""
    keeper.seniority.update_standings([Standing(ALICE.peer_id, "", 0.0, 9, 9), Standing(BOB.peer_id, "", 0.0, 3, 9)])
    assert keeper.admit(BOB, MEMBERSHIP)
    places = [membership(2**exponent, epoch) for exponent in range(1, 11) for epoch in range(6)]
    assert all(keeper.admit(ALICE, each, 60.0 + number) for number, each in enumerate(places))
    assert keeper.holds(BOB, MEMBERSHIP) and keeper.count == MEMBERSHIPS_MAX + 1
    assert all(keeper.holds(ALICE, each) for each in places[-MEMBERSHIPS_MAX:]), "the latest written"
    assert keeper.admit(ALICE, places[-MEMBERSHIPS_MAX], 200.0), "renewed"
    assert not keeper.admit(ALICE, places[0], 60.0), "an old one, sent again by whomever"
