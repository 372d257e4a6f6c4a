"""Room under a key is shared between those whom the swarm knows and those whom it does not, by rank."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.core.values import Standing
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, find_work
from swarmd.dht.p2p.hivemind_api import DHTID
from swarmd.dht.store import seniority as ranks_module
from swarmd.dht.store import storage
from swarmd.dht.store.key_capacity import IDLE_BYTES_MIN, NEWCOMERS_SHARE, KeyCapacity, _order_of
from swarmd.dht.store.seniority import Places, Rank, Seniority
from swarmd.dht.store.storage import BoundedStorage
from swarmd.dht.wire import names
from swarmd.dht.wire.records import SignedRecord
from swarmd.errors import RecordRejected
from tests.dht.making import ALICE, BOB, REPORT, SWARM, signed_by

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
        gone = room.find(owner, size, rank)
        if gone is None:
            continue
        known_bytes = sum(size for size, rank in held.values() if rank.known)
        for loser in gone:
            other = held[loser][1]
            lower = _order_of(other) < _order_of(rank)
            assert other.known != rank.known or lower
            assert rank.known or not held[loser][1].known or known_bytes > BYTES * (1 - NEWCOMERS_SHARE)
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
            gone = room.find(f"second {number}", 10, second)
            if gone is None:
                break
            for owner in gone:
                room.drop(owner)
            room.put(f"second {number}", 10, second)
        sides = {side: sum(rank.known is side for rank in room.ranks.values()) for side in (True, False)}
        assert sides == {True: 75, False: 25}


def test_identities_that_cost_nothing_have_a_small_part_however_much_is_free() -> None:
    room, worked = KeyCapacity(64 * IDLE_BYTES_MIN), Rank(0, WORK_BITS, True, b"a")
    for number in range(8):
        room.admit(f"idle {number}", 10, Rank(0, 0, True, bytes([number])))
    assert room.ranks.keys() == {f"idle {number}" for number in (4, 5, 6, 7)}, "by lot"
    for number in range(8):
        assert room.admit(f"worked {number}", IDLE_BYTES_MIN, worked) == []
    assert room.admit("idle 9", 10, Rank(0, WORK_BITS - 1, True, b"a")) == ["idle 4"]
    room.rank_anew(lambda owner: int(owner == "idle 5"))
    assert room.admit("idle 10", 10, Rank(0, 0, True, b"z")) == ["idle 6"], "whom credit makes no member"


def test_a_young_member_has_room_beside_elders_whose_records_fill_it() -> None:
    room = KeyCapacity(BYTES)
    for number in range(10):
        assert room.admit(f"elder {number}", BYTES // 10, Rank(50 + number, 16, False, b"l")) == []
    assert room.admit("young, large", 50, Rank(1, 16, False, b"m")) is None
    assert room.admit("young", 10, Rank(1, 16, True, b"m")) == ["elder 0"]
    assert room.admit("elder 11", BYTES - 5, Rank(99, 16, False, b"m")) is None, "it stays"


def test_first_the_longest_credited_then_who_worked_more_then_a_lot_of_this_nodes_own() -> None:
    seniority = Seniority(lambda peer: peer == "always")
    elder, younger, worker, idle = (generate_identity() for _ in range(4))
    seniority.learn(
        Standing(each.peer_id, "", 0.0, rounds, 0) for each, rounds in ((younger, 1), (elder, 5), (idle, 0))
    )
    records = {idle.peer_id: signed_by(idle, REPORT)}
    for each in (elder, younger, worker):
        work = find_work(SWARM, each.peer_id, WORK_BITS)
        records[each.peer_id] = signed_by(each, msgspec.structs.replace(REPORT, work=work))
    order = seniority.choose(records, KEY.to_bytes(), lambda rank: True)
    assert order == [each.peer_id for each in (elder, younger, worker, idle)]
    assert seniority.choose(records, KEY.to_bytes(), Places(1, 1, 0).try_occupy) == [elder.peer_id, worker.peer_id]
    lots = {Seniority().rank_of(records[idle.peer_id], KEY.to_bytes()).lot for _ in range(4)}
    lots |= {seniority.rank_of(records[idle.peer_id], key).lot for key in (b"one", b"two")}
    assert len(lots) == 6, "each node's, and each key's"


def test_a_known_peers_record_takes_the_place_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "KEY_BYTES_MAX", 4 * len(signed_by(ALICE, REPORT).value))
    monkeypatch.setattr(ranks_module, "WORK_BITS", 0)  # all strangers count as having worked
    seniority = Seniority()
    held = BoundedStorage(seniority)

    def admit(signed: SignedRecord) -> bool:
        try:
            return held.admit(KEY, signed)
        except RecordRejected as error:
            assert error.reason == "full"
            return False

    strangers = [signed_by(generate_identity(), REPORT) for _ in range(12)]
    assert all(admit(signed) for signed in strangers[:4])
    admit(signed_by(BOB, REPORT))
    assert len(held.records(KEY)) == 4
    seniority.learn([Standing(ALICE.peer_id, "", 0.0, 3, 2)])
    for reward in (0.25, 0.75):  # and a later one in the place of its own
        assert admit(signed_by(ALICE, msgspec.structs.replace(REPORT, reward=reward), 60.0 + reward))
        for signed in strangers:
            admit(signed)
        assert ALICE.peer_id in held.records(KEY) and len(held.records(KEY)) == 4
