"""Concurrency on any `Runtime`: task groups, timeouts, and a limit on concurrent coroutines."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from swarmd.logger import get_logger
from swarmd.worker.runtime import Runtime, Signal, Stopper

T = TypeVar("T")


class TaskGroup:
    """Coroutines that are stopped together."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._running: dict[int, Stopper | None] = {}  # by number; None until `runtime.start` returns
        self._count = 0
        self._changed = runtime.make_signal()
        self._error: Exception | None = None

    def start(self, run: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Run a coroutine concurrently. `wait_idle` raises the first error."""
        self._count += 1
        number = self._count
        self._running[number] = None
        stop = self._runtime.start(self._run_coroutine(number, run, args))
        if number in self._running:
            self._running[number] = stop

    async def _run_coroutine(
        self, number: int, run: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> None:
        try:
            await run(*args)
        except Exception as error:
            self._error = self._error or error
        finally:
            self._running.pop(number, None)
            if not self._running or self._error is not None:
                self._changed.set()

    async def wait_idle(self, timeout_s: float) -> None:
        """Return when none runs, or after `timeout_s`. Raises the first error of a coroutine."""
        until = self._runtime.now() + timeout_s
        while self._running and self._error is None and (left_s := until - self._runtime.now()) > 0:
            await self._changed.wait(left_s)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        running, self._running = self._running, {}
        for stop in running.values():
            if stop is not None:
                stop()


async def run_within(runtime: Runtime, limit_s: float, run: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run a coroutine and return its result; cancel it after `limit_s`. Raises TimeoutError, and the coroutine's
    errors."""
    ended = runtime.make_signal()
    results: list[T] = []
    errors: list[Exception] = []

    async def store_result() -> None:
        try:
            results.append(await run(*args))
        except Exception as error:
            errors.append(error)
        ended.set()

    stop = runtime.start(store_result())
    try:
        if not (results or errors):
            await ended.wait(limit_s)
    finally:
        stop()
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"it took longer than {limit_s:g} s")
    return results[0]


class ConcurrencyLimiter:
    """Admits `places` coroutines at once; others wait in order. Use it as `async with limiter:`."""

    def __init__(self, runtime: Runtime, places: int) -> None:
        self._runtime = runtime
        self._free = places
        self._places = places
        self._waiting: deque[Signal] = deque()

    @property
    def is_used(self) -> bool:
        """Whether any is inside."""
        return self._free < self._places

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        signal = self._runtime.make_signal()
        self._waiting.append(signal)
        try:
            await signal.wait()
        except BaseException:  # cancelled while waiting, or just as it was admitted
            if signal in self._waiting:
                self._waiting.remove(signal)
            else:
                self._release_place()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._release_place()

    def _release_place(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._free += 1


_running: set[asyncio.Task[Any]] = set()
log = get_logger(__name__)


def spawn_in_background(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine in the background; failures are logged at debug level."""
    task = asyncio.ensure_future(coroutine)
    _running.add(task)
    task.add_done_callback(_on_task_done)
    return task


def _on_task_done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.debug("a task in the background failed: %r", task.exception())
