"""The coordinator divides a large swarm's records into shards, and says since when."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from swarmd.core.commands import Announce
from swarmd.core.coordinator.shards import ROUNDS_KEPT, SHARDS_MAX, Placement, place_records, shards_for
from swarmd.core.events import MemberSeen, ReportSeen, RoundPublished
from swarmd.core.state import Coordination, Member, Members
from tests.core.story import Story, coordinator_settings

UNDIVIDED = Placement()


def with_members(count: int, placed: Placement = UNDIVIDED) -> Coordination:
    members = Members.of(Member(f"peer-{number}", "", 0) for number in range(count))
    return Coordination(members=members, shards=placed.shards, sharded_since=placed.since, shards_before=placed.before)


@given(st.integers(0, 200_000), st.integers(1, 4096))
def test_the_number_is_a_power_of_two_and_shards_hold_about_what_is_asked(members: int, each: int) -> None:
    shards = shards_for(members, each)
    if members <= each:
        assert shards == 0
    elif shards < SHARDS_MAX:
        assert shards >= 2 and shards & (shards - 1) == 0
        assert each / 2 <= members / shards <= each * math.sqrt(2.0001) or shards == 2
    assert shards_for(members, 0) == 0


def test_small_swarms_have_none_and_ten_thousand_have_128() -> None:
    assert [shards_for(members, 64) for members in (1, 64, 65, 100, 1000, 10_000)] == [0, 0, 2, 2, 16, 128]


def test_the_number_grows_at_once_and_shrinks_later() -> None:
    grown = place_records(with_members(300), 64, 5)
    assert grown == Placement(4, 5, 0)
    again = place_records(with_members(700, grown), 64, 6)
    assert again == Placement(8, 6, 4)
    few = with_members(10, again)
    assert place_records(few, 64, 6 + ROUNDS_KEPT - 1) == again
    assert place_records(few, 64, 6 + ROUNDS_KEPT) == Placement(0, 6 + ROUNDS_KEPT, 8)


def test_an_announcement_says_them_and_a_later_stage_of_the_round_keeps_them() -> None:
    node = Story(coordinator_settings(min_peers=3, shard_members=1))
    node.join()
    commands = node.tell(MemberSeen("a"), MemberSeen("b"))
    (opened,) = [command for command in commands if isinstance(command, Announce)]
    assert (opened.shards, opened.sharded_since, opened.shards_before) == (4, 0, 0)
    node.tell(RoundPublished(opened.id, 0, 0), *(MemberSeen(f"late-{number}") for number in range(9)))
    node.tell(*(ReportSeen(peer, 0, 0, 1.0) for peer in ("me", "a", "b")))
    commands = node.wait("stage")
    (opened,) = [command for command in commands if isinstance(command, Announce)]
    assert (opened.round, opened.shards, opened.sharded_since, opened.shards_before) == (1, 16, 1, 4)
