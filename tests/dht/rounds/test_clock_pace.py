"""In a large swarm the clock is read rarely until a stage is overdue, and the coordinator is called less often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.config import DhtConfig
from swarmd.dht.members.coordinator_contact import CoordinatorContact
from swarmd.dht.rounds.clock import CALL_EVERY_S, CALLS_PER_S, SwarmClock
from swarmd.dht.rounds.clock_pace import WATCHED_SLOWLY
from swarmd.dht.store.announced_shards import AnnouncedShards
from swarmd.dht.wire.records import ClockRecord

pytestmark = pytest.mark.anyio

SWARM, COORDINATOR = "s", "boss"
POLL_S = DhtConfig().poll_s


class Enough(Exception):
    """The test has seen what it wanted."""


class Follower:
    """What a follower's clock needs, at a time of ours."""

    def __init__(self, members: int = 1) -> None:
        self.now = 0.0
        self.swarm, self.coordinator, self.coordinating, self.members = SWARM, COORDINATOR, False, members
        self.config = SimpleNamespace(dht=DhtConfig())
        self.shards = AnnouncedShards(True, members_sharded=True)
        self.policy = SimpleNamespace(now=lambda: self.now, round=None)
        self.hearing = CoordinatorContact(True, lambda: self.now, lambda: self.now)
        self.exchange = self.herald = self.records = self.runtime = self
        self.watched = SimpleNamespace(poll_s=POLL_S, look=lambda: self.looks.append(self.now))
        self.looks: list[float] = []
        self.called_at: list[float] = []
        self.ends_at = 0.0
        self.clock: Any = SwarmClock(self)  # type: ignore[arg-type]
        self.clock.follow()

    def watch(self, name: str, seen: Any) -> Any:
        return self.watched

    def start(self, task: Any) -> None:
        """Tasks are run by the test."""

    def emit(self, event: Any) -> None:
        """Nobody listens."""

    def hold(self, name: str, record: Any) -> None:
        """Kept nowhere."""

    def pass_on(self, record: Any) -> None:
        """Told nobody."""

    async def answers(self, peer: str) -> bool:
        self.called_at.append(self.now)
        return True

    async def sleep(self, seconds: float) -> None:
        """Time passes, until the test has seen enough."""
        self.now += seconds
        if self.now > self.ends_at:
            raise Enough

    def hear(self, shards: int, deadline_at: float = 90.0, final: bool = False) -> None:
        content = ClockRecord(SWARM, 0, 0, 0.0, deadline_at, final, shards=shards)
        record: Any = SimpleNamespace(owner=COORDINATOR, content=content, expiration=self.now + 900.0)
        self.clock._see({COORDINATOR: record})

    async def play(self, task: Any, until_s: float) -> None:
        self.ends_at = until_s
        with pytest.raises(Enough):
            await task()


def test_the_clock_of_a_large_swarm_is_read_less_often_and_that_of_a_small_one_as_ever() -> None:
    follower = Follower()
    follower.hear(shards=4)
    assert follower.watched.poll_s == WATCHED_SLOWLY * POLL_S
    follower.now = 1.0
    follower.hear(shards=0)
    assert follower.watched.poll_s == POLL_S


async def test_all_followers_together_call_the_coordinator_so_often_however_many_they_are() -> None:
    few, many = Follower(members=60), Follower(members=10_000)
    for follower in (few, many):
        await follower.play(follower.clock._call_coordinator, 1000.0)
    assert few.called_at[-1] - few.called_at[-2] == CALL_EVERY_S
    assert many.called_at[-1] - many.called_at[-2] == 10_000 / CALLS_PER_S
