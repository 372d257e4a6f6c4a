"""Runs shipped coroutines on simulated time, without an event loop.

A coroutine runs until it awaits a `VirtualFuture` that is not complete, and continues in the instant when that is
completed: mostly by the simulator's queue, after a delay that the caller drew. So a simulated port is ordinary code:

    async def balance_wei(self, account):
        await self.runtime.sleep(self.latency_s())  # on simulated time
        if self.is_cut_off:
            raise EndpointFailed("no endpoint answers")
        return self.chain.balance_wei(account)

`VirtualRuntime` is a `swarmd.worker.runtime.Runtime`. It uses the `later` of a simulated process
(`SimWorker.call_later`), so that a frozen process stands still and a dead one does nothing; `stop` ends all of its
tasks.
"""

import logging
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from swarmd.worker.runtime import Stopper, TimeSource

T = TypeVar("T")


class ErrorLogged(AssertionError):
    """Shipped code logged an error and continued; in the simulator that ends the run."""


class _RaisingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ErrorLogged(record.getMessage()) from (record.exc_info[1] if record.exc_info else None)


@contextmanager
def raise_logged_errors() -> Iterator[None]:
    """Suppress shipped code's log, except that a logged error raises ErrorLogged and ends the run."""
    log, handler = logging.getLogger("swarmd"), _RaisingHandler()
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


Later = Callable[..., None]  # later(delay_s, act, *args) calls `act(*args)` after `delay_s` of simulated time


class VirtualFuture:
    """A future that one task can await."""

    __slots__ = ("given", "task")

    def __init__(self) -> None:
        self.task: VirtualTask | None = None  # the waiting task
        self.given = False

    def complete(self) -> None:
        """Resume the waiting task; only the first call has an effect."""
        if not self.given:
            self.given = True
            if self.task is not None:
                self.task.run_until_blocked()

    def __await__(self) -> "Generator[VirtualFuture, None, None]":
        if not self.given:
            yield self


class VirtualTask:
    """A running coroutine.

    Args:
        coroutine: may await only `VirtualFuture`s.
        on_end: called with the coroutine's result or error. Without it an error is raised to the caller that resumed
            the coroutine: the simulator's main loop.
        among: the set of running tasks, which contains this one until it ends.
    """

    __slots__ = ("_among", "_coroutine", "_on_end", "_runs", "_stopped")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        on_end: Callable[[T | None, Exception | None], None] | None = None,
        among: "dict[VirtualTask, None] | None" = None,
    ) -> None:
        self._coroutine = coroutine
        self._on_end = on_end
        self._among = {} if among is None else among
        self._among[self] = None
        self._runs = False
        self._stopped = False

    def run_until_blocked(self) -> None:
        """Run up to the next future that is not complete."""
        if self._stopped:
            return
        self._runs = True
        try:
            self._coroutine.send(None).task = self
        except StopIteration as ended:
            self._finish(ended.value, None)
        except Exception as error:
            if self._on_end is None:
                self._among.pop(self, None)
                raise
            self._finish(None, error)
        finally:
            self._runs = False
        if self._stopped:
            self._coroutine.close()

    def _finish(self, value: Any, error: Exception | None) -> None:
        stopped, self._stopped = self._stopped, True
        self._among.pop(self, None)
        if self._on_end is not None and not stopped:
            self._on_end(value, error)

    def stop(self) -> None:
        """Stop the task; one that is running at this moment continues up to its next wait."""
        self._stopped = True
        self._among.pop(self, None)
        if not self._runs:
            self._coroutine.close()


class VirtualSignal:
    """Implements `swarmd.worker.runtime.Signal`."""

    def __init__(self, later: Later) -> None:
        self._later = later
        self._is_set = False
        self._waiting: VirtualFuture | None = None

    def set(self) -> None:
        """Wake the waiting coroutine, once the one that runs now waits itself."""
        self._is_set = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._later(0.0, waiting.complete)

    async def wait(self, timeout_s: float | None = None) -> None:
        if not self._is_set:
            answer = VirtualFuture()
            self._waiting = answer
            if timeout_s is not None:
                self._later(timeout_s, answer.complete)
            await answer
            self._waiting = None
        self._is_set = False


class VirtualRuntime:
    """A simulated process's runtime, see `swarmd.worker.runtime.Runtime`.

    Args:
        later: calls a function after a delay, unless the process has died.
        now: returns the simulated time, in seconds.
        clock: returns POSIX time by the machine's clock.
    """

    def __init__(self, later: Later, now: TimeSource, clock: TimeSource) -> None:
        self._later = later
        self._tasks: dict[VirtualTask, None] = {}
        self.now = now
        self.time = clock

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Stopper:
        """Run a coroutine, starting now; an exception in it ends the simulation."""
        task = VirtualTask(coroutine, among=self._tasks)
        task.run_until_blocked()
        return task.stop

    def stop(self) -> None:
        """End all tasks, because the process is dead."""
        while self._tasks:
            next(iter(self._tasks)).stop()

    async def sleep(self, delay_s: float) -> None:
        if delay_s > 0:
            answer = VirtualFuture()
            self._later(delay_s, answer.complete)
            await answer

    def make_signal(self) -> VirtualSignal:
        return VirtualSignal(self._later)

    async def gather(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Return the results of concurrent coroutines, in order. Raises the error of the first that failed."""
        results: list[Any] = [None] * len(coroutines)
        errors: list[Exception | None] = [None] * len(coroutines)
        left = len(coroutines)
        done = VirtualFuture()

        def record_result(place: int, value: T | None, error: Exception | None) -> None:
            nonlocal left
            results[place], errors[place] = value, error
            left -= 1
            if not left:
                done.complete()

        for place, coroutine in enumerate(coroutines):
            VirtualTask(coroutine, partial(record_result, place)).run_until_blocked()
        if coroutines:
            await done
        for error in errors:
            if error is not None:
                raise error
        return results
