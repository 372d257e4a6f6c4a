"""What runs beside the server begins again when it breaks, and says so."""

from __future__ import annotations

import asyncio

import pytest

from swarmd.web.http import work
from swarmd.web.http.work import keep_up


def test_a_task_that_breaks_is_told_of_and_begun_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work, "RESTART_S", 0.0)
    begun = []

    async def task() -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            raise IndexError("pop from an empty deque")

    asyncio.run(keep_up(task))
    assert begun == [0, 1, 2]
    assert caplog.text.count("a task beside the server broke") == 2 and "IndexError" in caplog.text


def test_a_task_that_is_cancelled_ends() -> None:
    async def live() -> None:
        task = asyncio.create_task(keep_up(asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()

    asyncio.run(live())
