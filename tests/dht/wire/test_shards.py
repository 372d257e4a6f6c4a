"""Reports and memberships of a large swarm count in their owners' shards only."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.dht.wire import names
from swarmd.dht.wire.names import EPOCH_ROUNDS, MemberSharding, epoch_of, member_shard_of, shard_of
from swarmd.dht.wire.records import PROTOCOL, AnnouncedShards, ClockRecord, Payload, RecordPolicy, is_sharded
from tests.dht.making import ALICE, CLOCK, COORDINATOR, MEMBERSHIP, REPORT, ROLLOUTS, SWARM, judge, signed_by

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


def test_the_shard_of_a_report_is_the_one_that_the_protocol_says() -> None:
    peer = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
    assert [shard_of("swarm", peer, 7, 1, shards) for shards in (2, 64, 1024)] == [1, 3, 579]


@pytest.mark.parametrize("content", [REPORT, ROLLOUTS])
def test_a_record_counts_in_its_owners_shard_only(content: object) -> None:
    own = shard_of(SWARM, ALICE.peer_id, 3, 0, 4)
    for shard in range(4):
        placed = replace(content, shards=4, shard=shard)  # type: ignore[type-var]
        assert judge(signed_by(ALICE, placed), placed.key) == ("" if shard == own else "wrong-shard")
        assert judge(signed_by(ALICE, placed), content.key) in ("bad-signature", "wrong-key")  # type: ignore[attr-defined]


@pytest.mark.parametrize("content", [REPORT, MEMBERSHIP], ids=["report", "membership"])
@pytest.mark.parametrize(("shards", "shard"), [(1, 0), (3, 0), (4, 4), (0, 1), (4, 5), (2048, 0)])
def test_shards_that_cannot_be_are_malformed(content: Payload, shards: int, shard: int) -> None:
    placed = replace(content, shards=shards, shard=shard)  # type: ignore[type-var]
    assert judge(signed_by(ALICE, placed), placed.key) == "malformed"
    clock = replace(CLOCK, shards=shards)
    assert judge(signed_by(COORDINATOR, clock), clock.key) == ("" if shards in (0, 4) else "malformed")


def test_another_number_of_shards_than_the_clock_announces_is_refused() -> None:
    announced = AnnouncedShards()
    policy = RecordPolicy(SWARM, COORDINATOR.peer_id, shards=announced)
    records = {
        shards: replace(REPORT, shards=shards, shard=shard_of(SWARM, ALICE.peer_id, 3, 0, shards)) for shards in (0, 4)
    }
    assert [judge(signed_by(ALICE, each), each.key, policy) for each in records.values()] == ["", ""]
    announced.apply_clock(replace(CLOCK, shards=4, sharded_since=3))
    assert [judge(signed_by(ALICE, each), each.key, policy) for each in records.values()] == ["wrong-shard", ""]


def clock(round: int, shards: int, since: int = 0, before: int = 0) -> ClockRecord:
    return ClockRecord(SWARM, round, 0, 0.0, 1.0, shards=shards, sharded_since=since, shards_before=before)


def test_what_was_announced_is_known_for_the_rounds_before_and_not_for_later_ones() -> None:
    announced = AnnouncedShards()
    assert announced.known_shards_of(0) is None and announced.latest_shards_of(0) == 0
    announced.apply_clock(clock(9, 4, 8, 2))
    assert [announced.known_shards_of(round) for round in (7, 8, 9, 10)] == [
        2,
        4,
        4,
        None,
    ] and announced.latest_shards_of(10) == 4
    announced.apply_clock(clock(12, 8, 11, 4))
    announced.apply_clock(clock(10, 4, 8, 2))  # late
    assert [announced.known_shards_of(round) for round in (7, 9, 10, 11, 12)] == [2, 4, 4, 8, 8]


def test_a_swarm_on_a_chain_has_no_shards_whatever_is_announced() -> None:
    announced = AnnouncedShards(0)
    announced.apply_clock(clock(9, 4, 0, 0))
    assert announced.known_shards_of(9) == announced.known_shards_of(99) == announced.latest_shards_of(9) == 0
    assert AnnouncedShards().known_shards_of(0) is None


def policy_of(round: int | None = None) -> RecordPolicy:
    policy = RecordPolicy(SWARM, COORDINATOR.peer_id)
    policy.round = round
    return policy


def test_members_are_spread_evenly_and_nobody_stays_in_a_shard_or_lies_where_its_reports_do() -> None:
    held = Counter(member_shard_of(SWARM, f"peer-{number}", MemberSharding(16, 3)) for number in range(1024))
    assert len(held) == 16 and max(held.values()) < 2 * 64
    assert len({member_shard_of(SWARM, "peer", MemberSharding(16, epoch)) for epoch in range(64)}) > 8
    places = [
        (member_shard_of(SWARM, "peer", MemberSharding(64, 3)), shard_of(SWARM, "peer", 3, at, 64)) for at in range(9)
    ]
    assert any(own != stage for own, stage in places)


def test_the_shard_is_the_one_that_the_protocol_says() -> None:
    peer = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
    assert [member_shard_of("swarm", peer, MemberSharding(shards, 7)) for shards in (2, 64, 1024)] == [1, 37, 997]
    assert names.members_key("swarm", 64, 7, 5) == "swarmd/swarm/members/64/7/5"
    assert names.is_shard_key("swarmd/swarm/members/64/7/5") and not names.is_shard_key(names.members_key("swarm"))


def test_a_membership_counts_in_its_owners_shard_of_its_epoch_only() -> None:
    own = member_shard_of(SWARM, ALICE.peer_id, MemberSharding(4, 2))
    for shard in range(4):
        placed = replace(MEMBERSHIP, shards=4, epoch=2, shard=shard)
        signed = signed_by(ALICE, placed)
        assert is_sharded(placed)
        assert judge(signed, placed.key, policy_of()) == ("" if shard == own else "wrong-shard")
        assert judge(signed, names.members_key(SWARM), policy_of()) in ("bad-signature", "wrong-key")
        assert judge(signed, names.members_key(SWARM, 4, 3, shard), policy_of()) in ("bad-signature", "wrong-key")


def test_a_membership_of_a_far_epoch_is_refused_and_of_a_near_one_is_not() -> None:
    reasons = {}
    for epoch in range(1, 7):
        shard = member_shard_of(SWARM, ALICE.peer_id, MemberSharding(4, epoch))
        placed = replace(MEMBERSHIP, shards=4, epoch=epoch, shard=shard)
        reasons[epoch] = judge(signed_by(ALICE, placed), placed.key, policy_of(round=4 * EPOCH_ROUNDS))
    assert [epoch for epoch, reason in reasons.items() if not reason] == [3, 4, 5]
    assert set(reasons.values()) == {"", "wrong-round"}


def test_who_speaks_another_protocol_takes_no_part() -> None:
    other = replace(MEMBERSHIP, protocol=PROTOCOL + 1)
    assert judge(signed_by(ALICE, other), other.key, policy_of()) == "other-protocol"


def test_memberships_move_with_the_number_of_shards_and_with_the_epoch_and_are_told_to_once() -> None:
    announced, moves = AnnouncedShards(), list[MemberSharding]()
    announced.set_members_moved_listener(lambda: moves.append(announced.members))
    assert announced.needs_clock
    later = EPOCH_ROUNDS + 1
    for heard in ((0, 0), (1, 0), (2, 4, 2), (3, 4, 2), (EPOCH_ROUNDS, 4, 2), (later, 8, later, 4), (2, 4, 2)):
        announced.apply_clock(clock(*heard))
    assert moves == [MemberSharding(4, 0), MemberSharding(4, 1), MemberSharding(8, 1)] and not announced.needs_clock
    assert announced.members_before == MemberSharding(4, 1)
    assert epoch_of(EPOCH_ROUNDS - 1) == 0 and epoch_of(EPOCH_ROUNDS) == 1


@pytest.mark.parametrize(
    ("heard", "before"),
    [
        ((2 * EPOCH_ROUNDS, 4, 2), MemberSharding(4, 1)),  # an epoch has just begun
        ((2 * EPOCH_ROUNDS + 5, 8, 2 * EPOCH_ROUNDS + 5, 4), MemberSharding(4, 2)),  # the number has just grown
        ((EPOCH_ROUNDS - 1, 4), MemberSharding()),  # the first epoch of all
    ],
)
def test_a_node_that_has_just_begun_knows_where_memberships_lay_before(
    heard: tuple[int, ...], before: MemberSharding
) -> None:
    announced = AnnouncedShards()
    announced.apply_clock(clock(*heard))
    assert announced.members_before == before


def test_memberships_stay_together_on_a_chain_and_by_invitation() -> None:
    for announced in (AnnouncedShards(0), AnnouncedShards(None, "invitation")):
        announced.apply_clock(clock(9, 4))
        assert announced.members == MemberSharding() and not announced.needs_clock


def test_a_swarm_on_a_chain_has_the_shards_of_its_manifest_and_its_memberships_stay() -> None:
    announced = AnnouncedShards(4)
    assert announced.is_large_swarm and not announced.needs_clock
    announced.apply_clock(clock(9 * EPOCH_ROUNDS, 8))
    assert announced.known_shards_of(0) == announced.known_shards_of(10**6) == announced.latest_shards_of(3) == 4
    assert announced.members == announced.members_before == MemberSharding(4, 0)


@pytest.mark.parametrize(
    ("shards", "epoch", "refusal"), [(4, 0, ""), (4, 1, "wrong-shard"), (8, 0, "wrong-shard"), (0, 0, "wrong-shard")]
)
def test_memberships_on_a_chain_lie_in_the_first_epoch_in_every_round(shards: int, epoch: int, refusal: str) -> None:
    policy = policy_of()
    policy.shards, policy.round = AnnouncedShards(4), 100 * EPOCH_ROUNDS
    place = MemberSharding(shards, epoch)
    placed = replace(MEMBERSHIP, shards=shards, epoch=epoch, shard=member_shard_of(SWARM, ALICE.peer_id, place))
    assert judge(signed_by(ALICE, placed), placed.key, policy) == refusal
