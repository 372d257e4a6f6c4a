"""What answers wait for is worked on once, and has a bound for each address and in all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from swarmd.errors import NotFoundError
from swarmd.web.http import work as work_module
from swarmd.web.http.work import WAITING_MAX, WAITING_OF_ONE_MAX, WorkBusy, WorkPool, asker, keep_up


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.begun: list[int] = []

    def __call__(self, number: int) -> int:
        self.begun.append(number)
        assert self.over.wait(20)
        if number < 0:
            raise NotFoundError("negative")
        return number


def run(check: Callable[[WorkPool, Held], Awaitable[None]], bounded: bool = True) -> None:
    async def whole() -> None:
        work, held = WorkPool("test", 2, bounded), Held()
        try:
            await check(work, held)
        finally:
            held.over.set()
            work.stop()

    asyncio.run(whole())


def test_the_same_question_is_worked_on_once() -> None:
    async def check(work: WorkPool, held: Held) -> None:
        asked = [asyncio.ensure_future(work.do(held, 7)) for _ in range(100)]
        failing = [asyncio.ensure_future(work.do(held, -1)) for _ in range(3)]
        await asyncio.sleep(0)
        held.over.set()
        assert await asyncio.gather(*asked) == [7] * 100
        assert [type(each) for each in await asyncio.gather(*failing, return_exceptions=True)] == [NotFoundError] * 3
        assert sorted(held.begun) == [-1, 7]
        assert await work.do(held, 7) == 7 and held.begun.count(7) == 2, "later it is another question"

    run(check)


def test_who_leaves_does_not_end_it_for_others() -> None:
    async def check(work: WorkPool, held: Held) -> None:
        leaving, staying = (asyncio.ensure_future(work.do(held, 1)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        held.over.set()
        assert await staying == 1

    run(check)


def test_one_address_may_ask_for_so_much_and_all_together_for_more() -> None:
    async def check(work: WorkPool, held: Held) -> None:
        waiting = []

        async def refused(origin: str, number: int) -> bool:
            asker.set(origin)
            task = asyncio.ensure_future(work.do(held, number))
            waiting.append(task)
            await asyncio.sleep(0)
            return task.done() and isinstance(task.exception(), WorkBusy)

        refusals = [await refused("a", number) for number in range(WAITING_OF_ONE_MAX + 3)]
        assert refusals == [False] * WAITING_OF_ONE_MAX + [True] * 3
        assert not await refused("a", 0), "what is worked on anyhow"
        refusals = [await refused(f"b{number}", 100 + number) for number in range(WAITING_MAX)]
        assert refusals.index(True) == WAITING_MAX - WAITING_OF_ONE_MAX
        held.over.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not await refused("a", 500), "there is room again"
        await waiting[-1]

    run(check)


def test_a_task_that_breaks_is_told_of_and_begun_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work_module, "RESTART_S", 0.0)
    begun = []

    async def task() -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            raise IndexError("pop from an empty deque")

    asyncio.run(keep_up(task))
    assert begun == [0, 1, 2]
    assert caplog.text.count("a task beside the server broke") == 2 and "IndexError" in caplog.text
