"""Work beside answers: the same question is worked on once, what waits has a bound, and no task ends in silence.

Folding a piece of the log takes tens of milliseconds, so a crowd that scrubs could keep everybody waiting. What is
over the bound is refused at once with the time after which to ask again; the page does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

from swarmd.errors import SwarmdError
from swarmd.http_server import UNKNOWN
from swarmd.logger import get_logger

asker: ContextVar[str] = ContextVar("asker", default=UNKNOWN)  # see `swarmd.http_server.origin_of`


RESTART_S = 5.0  # before a task that broke begins again

Background = Callable[[], Awaitable[None]]

log = get_logger("swarmd.web")


async def keep_up(task: Background) -> None:
    """Run a task until it returns or this is cancelled; whenever it breaks, say so and begin it again."""
    while True:
        try:
            await task()
            return
        except Exception:
            log.exception("a task beside the server broke, and begins again in %g s", RESTART_S)
        await asyncio.sleep(RESTART_S)


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
