"""Work that answers wait for, beside the event loop: the same question is worked on once, and what waits has a bound.

Folding a piece of the log takes tens of milliseconds, so a crowd that scrubs could keep everybody waiting. What is
over the bound is refused at once with the time after which to ask again; the page does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from swarmd.errors import SwarmdError
from swarmd.web.http.origins import asker

WAITING_MAX = 16  # questions worked on or waiting, of everybody
WAITING_OF_ONE_MAX = 8  # of these, of one address
AGAIN_S = 1  # told to who is refused

T = TypeVar("T")


class WorkBusy(SwarmdError):
    """Too much is asked at once; the same question may be asked again after `AGAIN_S`."""


class WorkPool:
    """Threads for one kind of questions.

    Args:
        name: of the threads.
        threads: how many questions are worked on at once.
        bounded: whether what is too much is refused; else only the same question is shared.
    """

    def __init__(self, name: str, threads: int, bounded: bool = True) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._bounded = bounded
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}
        self._of: Counter[str] = Counter()

    async def do(self, call: Callable[..., T], *args: Any) -> T:
        """The result of `call(*args)`, or what it raises; who asks while the same is worked on gets the same.

        Raises:
            Busy: too much waits already.
        """
        key = (call, args)
        future = self._under_way.get(key)
        if future is None:
            future = self._begin(key, asker.get())
        result: T = await asyncio.shield(future)  # who leaves does not end it for others
        return result

    def _begin(self, key: tuple[Callable[..., Any], tuple[Any, ...]], origin: str) -> asyncio.Future[Any]:
        if self._bounded and (len(self._under_way) >= WAITING_MAX or self._of[origin] >= WAITING_OF_ONE_MAX):
            raise WorkBusy("too much is asked of this server at once", f"Ask again in {AGAIN_S} s")
        call, args = key
        future = asyncio.get_running_loop().run_in_executor(self._pool, call, *args)
        self._under_way[key] = future
        self._of[origin] += 1

        def end(ended: asyncio.Future[Any]) -> None:
            del self._under_way[key]
            self._of[origin] -= 1
            if not self._of[origin]:
                del self._of[origin]
            if not ended.cancelled():
                ended.exception()  # nobody may be left to hear of it

        future.add_done_callback(end)
        return future

    def stop(self) -> None:
        """Start no further work."""
        self._pool.shutdown(wait=False, cancel_futures=True)
