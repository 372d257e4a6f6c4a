"""Coroutines on simulated time."""

import heapq
from collections.abc import Callable
from typing import Any

import pytest

from swarmd.sim.coroutines import VirtualRuntime


class Queue:
    """Things to do, by their time."""

    def __init__(self) -> None:
        self.at = 100.0
        self._waiting: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.runtime = VirtualRuntime(self.later, lambda: self.at, lambda: self.at)

    def later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._waiting, (self.at + delay_s, self._count, act, args))

    def run(self) -> None:
        while self._waiting:
            self.at, _, act, args = heapq.heappop(self._waiting)
            act(*args)


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_a_sleep_takes_simulated_time_and_others_go_on_meanwhile(queue: Queue) -> None:
    told: list[tuple[str, float]] = []

    async def sleeper(name: str, *pauses_s: float) -> None:
        for pause_s in pauses_s:
            await queue.runtime.sleep(pause_s)
            told.append((name, queue.at))

    queue.runtime.start(sleeper("slow", 3.0, 3.0))
    queue.runtime.start(sleeper("quick", 1.0, 4.0))
    queue.run()
    assert told == [("quick", 101.0), ("slow", 103.0), ("quick", 105.0), ("slow", 106.0)]


def test_what_nobody_catches_ends_the_simulation(queue: Queue) -> None:
    async def fails() -> None:
        await queue.runtime.sleep(1.0)
        raise ValueError("a defect")

    queue.runtime.start(fails())
    with pytest.raises(ValueError, match="a defect"):
        queue.run()


def test_a_dead_process_does_nothing_more_not_even_from_within_its_own_step(queue: Queue) -> None:
    told: list[str] = []

    async def dies(name: str) -> None:
        await queue.runtime.sleep(1.0)
        told.append(name)
        queue.runtime.stop()
        await queue.runtime.sleep(0.0 if name == "never" else 1.0)
        told.append("lives on")

    queue.runtime.start(dies("first"))
    queue.runtime.start(dies("second"))
    queue.run()
    assert told == ["first"]
