"""Coroutines beside each other, on the event loop and on simulated time alike."""

import heapq
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from swarmd.sim.coroutines import VirtualRuntime
from swarmd.worker.runtime import LoopRuntime, Runtime
from swarmd.worker.tasks import ConcurrencyLimiter, TaskGroup, run_within

Play = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]
FOR_EVER_S = 3600.0


def on_the_loop(test: Callable[[Runtime], Coroutine[Any, Any, None]]) -> None:
    anyio.run(test, LoopRuntime())


def on_simulated_time(test: Callable[[Runtime], Coroutine[Any, Any, None]]) -> None:
    waiting: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
    at, ended = 0.0, []

    def later(delay_s: float, act: Callable[..., None], *args: Any) -> None:
        heapq.heappush(waiting, (at + delay_s, next(numbers), act, args))

    async def play() -> None:
        await test(runtime)
        ended.append(True)

    numbers = iter(range(1000))
    runtime = VirtualRuntime(later, lambda: at, lambda: at)
    runtime.start(play())
    while waiting and not ended:
        at, _, act, args = heapq.heappop(waiting)
        act(*args)
    assert ended, "it waits for what never comes"


@pytest.fixture(params=[on_the_loop, on_simulated_time])
def play(request: pytest.FixtureRequest) -> Play:
    run: Play = request.param
    return run


def test_a_coroutine_that_ends_in_time_gives_what_it_returns_and_raises_what_it_raises(play: Play) -> None:
    async def soon(runtime: Runtime, error: Exception | None) -> int:
        await runtime.sleep(0.001)
        if error is not None:
            raise error
        return 7

    async def test(runtime: Runtime) -> None:
        assert await run_within(runtime, FOR_EVER_S, soon, runtime, None) == 7
        with pytest.raises(KeyError, match="lost"):
            await run_within(runtime, FOR_EVER_S, soon, runtime, KeyError("lost"))

    play(test)


def test_a_coroutine_that_takes_too_long_is_ended_with_those_that_it_started(play: Play) -> None:
    ended: list[str] = []

    async def child(runtime: Runtime) -> None:
        try:
            await runtime.sleep(FOR_EVER_S)
        finally:
            ended.append("child")

    async def parent(runtime: Runtime) -> None:
        group = TaskGroup(runtime)
        group.start(child, runtime)
        try:
            await group.wait_idle(FOR_EVER_S)
        finally:
            group.stop()

    async def test(runtime: Runtime) -> None:
        with pytest.raises(TimeoutError):
            await run_within(runtime, 0.01, parent, runtime)
        await runtime.sleep(0.01)
        assert ended == ["child"]

    play(test)


def test_a_group_is_idle_when_all_have_ended_and_raises_the_first_error(play: Play) -> None:
    async def wait(runtime: Runtime, delay_s: float, error: Exception | None = None) -> None:
        running.append(1)
        await runtime.sleep(delay_s)
        running.pop()
        if error is not None:
            raise error

    running: list[int] = []

    async def test(runtime: Runtime) -> None:
        group = TaskGroup(runtime)
        await group.wait_idle(FOR_EVER_S)
        group.start(wait, runtime, 0.001)
        group.start(wait, runtime, 0.02)
        await group.wait_idle(0.005)
        assert running == [1]
        await group.wait_idle(FOR_EVER_S)
        assert running == []
        group.start(wait, runtime, FOR_EVER_S)
        group.start(wait, runtime, 0.001, KeyError("lost"))
        with pytest.raises(KeyError, match="lost"):
            await group.wait_idle(FOR_EVER_S)
        group.stop()

    play(test)


def test_a_limiter_lets_so_many_in_at_once_and_forgets_who_was_ended(play: Play) -> None:
    inside: list[int] = []
    most: list[int] = []

    async def enter(runtime: Runtime, limiter: ConcurrencyLimiter, number: int) -> None:
        async with limiter:
            inside.append(number)
            most.append(sum(1 for _ in inside) - left[0])
            await runtime.sleep(0.002)
            left[0] += 1

    left = [0]

    async def test(runtime: Runtime) -> None:
        limiter, group = ConcurrencyLimiter(runtime, 2), TaskGroup(runtime)
        for number in range(3):
            group.start(enter, runtime, limiter, number)
        give_up = runtime.start(enter(runtime, limiter, 9))
        await runtime.sleep(0.001)
        give_up()
        group.start(enter, runtime, limiter, 4)
        await group.wait_idle(FOR_EVER_S)
        assert sorted(inside) == [0, 1, 2, 4] and max(most) == 2
        assert not limiter.is_used

    play(test)
