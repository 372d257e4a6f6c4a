"""The clock of a legacy network, which anybody may write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.core.commands import ReadClock
from swarmd.core.events import RoundAnnounced
from swarmd.dht.legacy import clock as module
from swarmd.dht.legacy.clock import LegacyClock
from swarmd.dht.legacy.search import Latest
from swarmd.dht.legacy.session import LegacySession
from swarmd.dht.legacy.values import encode
from swarmd.errors import RecordRejected

pytestmark = pytest.mark.anyio


class World:
    """A follower's session whose network shows one clock after another, and then no more."""

    def __init__(self, *places: tuple[int, int]) -> None:
        self.coordinating = False
        self.places = list(places)
        self.told: list[tuple[int, int]] = []
        self.config = SimpleNamespace(dht=SimpleNamespace(poll_s=0.0), coordinator=SimpleNamespace(stage_s=60.0))
        self.node = SimpleNamespace(wait_up=self._wait_up)
        self.clock_stored = asyncio.Event()

    async def _wait_up(self) -> None:
        if not self.places:
            self.coordinating = True  # ends `follow`

    def emit(self, event: RoundAnnounced) -> None:
        self.told.append((event.round, event.stage))

    async def find(self, name: str, read: Callable[[str | None, bytes], tuple[int, int]]) -> Any:
        if not self.places:
            return SimpleNamespace(plain=None, answered={})
        read(None, encode(self.places[0]))
        return SimpleNamespace(plain=Latest(self.places.pop(0), 1.0), answered={1: 1})


async def test_a_clock_that_is_written_to_and_fro_makes_no_more_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    world = World((3, 0), *[(2, 1), (3, 0)] * 20, (3, 1), (1, 0), (4, 0))
    await LegacyClock(cast(LegacySession, world)).follow()
    assert world.told == [(3, 0), (3, 1), (4, 0)]


async def test_whoever_asks_is_told_where_it_is_now() -> None:
    world = World((3, 0), (2, 0), (3, 0))
    clock = LegacyClock(cast(LegacySession, world))
    for number in range(3):
        await clock.read(ReadClock(f"clock/{number}"))
    assert world.told == [(3, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
async def test_a_clock_that_was_set_changes_nothing_in_what_rounds_are_taken(
    monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    wrong = SimpleNamespace(time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr(module, "time", wrong)
    world = World((3, 0), (4, 0), (4 + 2 * module.LEAP_ROUNDS, 0))
    clock = LegacyClock(cast(LegacySession, world))
    await clock.read(ReadClock("clock/0"))
    wrong.time = lambda: time.time() + step_s
    await clock.read(ReadClock("clock/1"))
    assert world.told == [(3, 0), (4, 0)]
    with pytest.raises(RecordRejected, match="soon after"):
        await clock.read(ReadClock("clock/2"))
