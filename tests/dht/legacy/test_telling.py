"""Rewards of a legacy network as events: nobody's writing, however busy, makes more of them than the bounds say."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.core.events import ReportSeen
from swarmd.dht.legacy import keys, telling
from swarmd.dht.legacy.search import Latest
from swarmd.dht.legacy.session import LegacySession
from swarmd.dht.legacy.stages import Collecting
from swarmd.dht.legacy.telling import TELL_AGAIN_S, TELLINGS_MAX, RewardReporter
from swarmd.dht.limits.rejections import Rejections

pytestmark = pytest.mark.anyio

PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


class World:
    """A session whose network holds what the test puts there."""

    refuse = LegacySession.refuse
    refuse_once = LegacySession.refuse_once

    def __init__(self) -> None:
        self.coordinating = False
        self.rewards: dict[str, float] = {}
        self.told: list[ReportSeen] = []
        self.rejections = Rejections(time.monotonic)
        self._refused: dict[int, None] = {}

    def emit(self, event: ReportSeen) -> None:
        self.told.append(event)

    async def find_rewards(self, round: int, stage: int) -> Any:
        return SimpleNamespace(entries={peer: Latest(value, 1.0) for peer, value in self.rewards.items()})


async def test_a_writer_who_never_rests_makes_few_events_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "TELL_AGAIN_S", 0.0)
    world = World()
    collecting = Collecting(cast(LegacySession, world), (0, 1))
    for number in range(50):
        world.rewards = {PEER: float(number)}
        await collecting.look(may_count=True)
        await collecting.look(may_count=True)
    assert world.told == [ReportSeen(PEER, 0, 1, float(number)) for number in range(TELLINGS_MAX)]
    assert dict(world.rejections.total) == {"quota": 50 - TELLINGS_MAX}
    assert [(event.peer, event.reason) for event in world.rejections.due()] == [("", "quota")]


async def test_a_new_stage_begins_anew() -> None:
    world = World()
    for stage in range(2):
        world.rewards = {PEER: 1.0}
        await Collecting(cast(LegacySession, world), (0, stage)).look(may_count=True)
    assert [event.stage for event in world.told] == [0, 1]
    assert keys.rewards(0, 0) != keys.rewards(0, 1) and not world.rejections.total


def test_a_reward_that_grows_is_told_again_after_a_while_and_then_as_it_is_by_then() -> None:
    stage = RewardReporter()
    assert stage.take({PEER: 1.0}, 100.0) == ({PEER: 1.0}, [])
    for number in range(10):
        assert stage.take({PEER: 2.0 + number}, 100.0 + number) == ({}, [])
    assert stage.take({PEER: 9.5}, 100.0 + TELL_AGAIN_S) == ({PEER: 9.5}, [])
    assert stage.take({PEER: 9.5}, 100.0 + 2 * TELL_AGAIN_S) == ({}, [])


def test_only_so_many_peers_have_a_reward_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "PEERS_TOLD_MAX", 2)
    stage = RewardReporter()
    due, dropped = stage.take({"a": 1.0, "b": 2.0, "c": 3.0}, 0.0)
    assert due == {"a": 1.0, "b": 2.0}
    assert [(peer, error.reason) for peer, _, error in dropped] == [("c", "full")]
    assert stage.take({"a": 5.0}, TELL_AGAIN_S)[0] == {"a": 5.0}
