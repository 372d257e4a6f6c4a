"""Records of a large swarm lie in their owners' shards and nowhere else."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.dht.store.announced_shards import AnnouncedShards
from swarmd.dht.wire.records import ClockRecord, RecordPolicy
from swarmd.dht.wire.shards import shard_of
from tests.dht.making import ALICE, CLOCK, COORDINATOR, REPORT, ROLLOUTS, SWARM, judge, signed_by

SIZES = st.sampled_from([2**exponent for exponent in range(1, 11)])


@given(st.text(max_size=60), st.integers(0, 2**31 - 1), st.integers(0, 1023), SIZES)
def test_every_peer_has_one_shard_of_those_there_are(peer: str, round: int, stage: int, shards: int) -> None:
    shard = shard_of(SWARM, peer, round, stage, shards)
    assert 0 <= shard < shards and shard_of(SWARM, peer, round, stage, 2 * shards) % shards == shard
    assert shard_of(SWARM, peer, round, stage, 0) == 0


def test_peers_are_spread_evenly_and_nobody_stays_where_it_is() -> None:
    held = Counter(shard_of(SWARM, f"peer-{number}", 3, 0, 16) for number in range(1024))
    assert len(held) == 16 and max(held.values()) < 2 * 64
    assert len({shard_of(SWARM, "peer", round, 0, 16) for round in range(64)}) > 8


def test_the_shard_is_the_one_that_the_protocol_says() -> None:
    peer = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
    assert [shard_of("swarm", peer, 7, 1, shards) for shards in (2, 64, 1024)] == [1, 3, 579]


@pytest.mark.parametrize("content", [REPORT, ROLLOUTS])
def test_a_record_counts_in_its_owners_shard_only(content: object) -> None:
    own = shard_of(SWARM, ALICE.peer_id, 3, 0, 4)
    for shard in range(4):
        placed = replace(content, shards=4, shard=shard)  # type: ignore[type-var]
        assert judge(signed_by(ALICE, placed), placed.key) == ("" if shard == own else "wrong-shard")
        assert judge(signed_by(ALICE, placed), content.key) in ("bad-signature", "wrong-key")  # type: ignore[attr-defined]


@pytest.mark.parametrize(("shards", "shard"), [(1, 0), (3, 0), (4, 4), (0, 1), (4, 5)])
def test_shards_that_cannot_be_are_malformed(shards: int, shard: int) -> None:
    placed = replace(REPORT, shards=shards, shard=shard)
    assert judge(signed_by(ALICE, placed), placed.key) == "malformed"
    if shards:
        clock = replace(CLOCK, shards=shards)
        assert judge(signed_by(COORDINATOR, clock), clock.key) == ("malformed" if shards != 4 else "")


def test_another_number_of_shards_than_the_clock_announces_is_refused() -> None:
    policy, announced = RecordPolicy(SWARM, COORDINATOR.peer_id), AnnouncedShards(True)
    policy.shards = announced
    records = {
        shards: replace(REPORT, shards=shards, shard=shard_of(SWARM, ALICE.peer_id, 3, 0, shards)) for shards in (0, 4)
    }
    assert [judge(signed_by(ALICE, each), each.key, policy) for each in records.values()] == ["", ""]
    announced.note(replace(CLOCK, shards=4, sharded_since=3))
    assert [judge(signed_by(ALICE, each), each.key, policy) for each in records.values()] == ["wrong-shard", ""]


def clock(round: int, shards: int, since: int, before: int) -> ClockRecord:
    return ClockRecord(SWARM, round, 0, 0.0, 1.0, shards=shards, sharded_since=since, shards_before=before)


def test_what_was_announced_is_known_for_the_rounds_before_and_not_for_later_ones() -> None:
    announced = AnnouncedShards(True)
    assert announced.of(0) is None and announced.latest_of(0) == 0
    announced.note(clock(9, 4, 8, 2))
    assert [announced.of(round) for round in (7, 8, 9, 10)] == [2, 4, 4, None] and announced.latest_of(10) == 4
    announced.note(clock(12, 8, 11, 4))
    announced.note(clock(10, 4, 8, 2))  # late
    assert [announced.of(round) for round in (7, 9, 10, 11, 12)] == [2, 4, 4, 8, 8]


def test_a_swarm_on_a_chain_has_no_shards_whatever_is_announced() -> None:
    announced = AnnouncedShards.of_swarm(0)
    announced.note(clock(9, 4, 0, 0))
    assert announced.of(9) == announced.of(99) == announced.latest_of(9) == 0
    assert AnnouncedShards.of_swarm(None).of(0) is None
