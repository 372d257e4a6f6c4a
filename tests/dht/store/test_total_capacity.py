"""All keys together have so much room, and whoever writes many keys takes nobody's part of it."""

from __future__ import annotations

import msgspec
import pytest

from swarmd.core.values import Standing
from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.p2p.hivemind_api import DHTID
from swarmd.dht.store import seniority, storage
from swarmd.dht.store.key_capacity import NEWCOMERS_SHARE
from swarmd.dht.store.seniority import Seniority
from swarmd.dht.store.storage import BoundedStorage
from swarmd.dht.store.total_capacity import MEMBERSHIPS_MAX, RECORD_BYTES, STAGES_MAX
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Payload
from swarmd.dht.wire.shards import MembersPlace, member_shard_of
from swarmd.errors import RecordRejected
from tests.dht.making import ALICE, BOB, MEMBERSHIP, REPORT, SWARM, signed_by

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
            return self.storage.admit(key_of(content), signed_by(identity, content, ttl_s))
        except RecordRejected as error:
            assert error.reason == "full"
            return False

    def holds(self, identity: Identity, content: Payload) -> bool:
        return self.storage.held(key_of(content), identity.peer_id) is not None

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
    shard = member_shard_of(SWARM, ALICE.peer_id, MembersPlace(shards, epoch))
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
    assert keeper.storage.size_bytes() + keeper.count * RECORD_BYTES <= ROOM * NEWCOMERS_SHARE
    keeper.seniority.learn([Standing(ALICE.peer_id, "", 0.0, 3, 2)])
    for stage in range(6, 12):
        assert keeper.admit(ALICE, report(3, stage)), "a key that is new"
    fill(keeper, keys=12, identities=10)
    assert all(keeper.holds(ALICE, report(3, stage)) for stage in range(6, 12))


def test_records_under_keys_that_are_held_already_have_the_same_bound(keeper: Keeper) -> None:
    fill(keeper, keys=2, identities=60)
    assert 0 < keeper.count <= ROOM * NEWCOMERS_SHARE / RECORD_BYTES
    assert len(keeper.storage) <= 2, "a key without records is none"


def test_the_latest_stages_of_an_owner_are_kept_in_whatever_order_they_come(keeper: Keeper) -> None:
    keeper.seniority.learn([Standing(ALICE.peer_id, "", 0.0, 3, 2)])
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
    keeper.seniority.learn([Standing(ALICE.peer_id, "", 0.0, 9, 9), Standing(BOB.peer_id, "", 0.0, 3, 9)])
    assert keeper.admit(BOB, MEMBERSHIP)
    places = [membership(2**exponent, epoch) for exponent in range(1, 11) for epoch in range(6)]
    assert all(keeper.admit(ALICE, each, 60.0 + number) for number, each in enumerate(places))
    assert keeper.holds(BOB, MEMBERSHIP) and keeper.count == MEMBERSHIPS_MAX + 1
    assert all(keeper.holds(ALICE, each) for each in places[-MEMBERSHIPS_MAX:]), "the latest written"
    assert keeper.admit(ALICE, places[-MEMBERSHIPS_MAX], 200.0), "renewed"
    assert not keeper.admit(ALICE, places[0], 60.0), "an old one, sent again by whomever"
