"""The coordinator divides a large swarm's records into shards, and says since when."""

from __future__ import annotations

import math
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from swarmd.core.commands import Announce
from swarmd.core.coordinator.shards import ROUNDS_KEPT, SHARDS_MAX, place_records, shards_for
from swarmd.core.events import MemberSeen, ReportSeen, RoundPublished
from swarmd.core.state import AnyCoordination, Member, Members
from tests.core.story import Story, coordinator_settings


class Placement(NamedTuple):
    """Where the records of stages lie."""

    shards: int = 0
    since: int = 0
    before: int = 0


UNDIVIDED = Placement()


def placed(count: int, each: int, round: int, before: Placement = UNDIVIDED) -> Placement:
    """Where they lie from a round on, with so many members."""
    members = Members.of(Member(f"peer-{number}", "", 0) for number in range(count))
    coordination = AnyCoordination(round=round, members=members)
    coordination.shards, coordination.sharded_since, coordination.shards_before = before
    place_records(coordination, each)
    return Placement(coordination.shards, coordination.sharded_since, coordination.shards_before)


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
    grown = placed(300, 64, 5)
    assert grown == Placement(4, 5, 0)
    again = placed(700, 64, 6, grown)
    assert again == Placement(8, 6, 4)
    assert placed(10, 64, 6 + ROUNDS_KEPT - 1, again) == again
    assert placed(10, 64, 6 + ROUNDS_KEPT, again) == Placement(0, 6 + ROUNDS_KEPT, 8)


def test_an_announcement_says_them_and_a_later_stage_of_the_round_keeps_them() -> None:
    node = Story(coordinator_settings(min_peers=3, shard_members=1))
    node.join()
    commands = node.tell(MemberSeen("a"), MemberSeen("b"))
    (opened,) = [command for command in commands if isinstance(command, Announce)]
    assert (opened.shards, opened.sharded_since, opened.shards_before) == (4, 0, 0)
    node.tell(RoundPublished(opened.id, 0, 0), *(MemberSeen(f"late-{number}") for number in range(9)))
    node.tell(*(ReportSeen(peer, 0, 0, 1.0) for peer in ("me", "a", "b")))
    commands = node.wait("stage") or node.wait("stage")
    (opened,) = [command for command in commands if isinstance(command, Announce)]
    assert (opened.round, opened.shards, opened.sharded_since, opened.shards_before) == (1, 16, 1, 4)
