"""An interface to the clock, to sleeping, waking and starting coroutines, with two implementations.

Coroutines that make decisions (what to submit, when to check again) use nothing else of an event loop, so that the
simulator can run them on simulated time (`swarmd.sim.coroutines`).
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Protocol

import anyio

TimeSource = Callable[[], float]  # seconds since 1970, or since any time if only differences count
Stopper = Callable[[], object]  # cancels a started coroutine at its next wait

STEP_S_MIN = 3.0  # smaller clock steps are ignored, since peers tolerate them


class Signal(Protocol):
    """Wakes one coroutine."""

    def set(self) -> None:
        """Wake the waiting coroutine, or make the next `wait` return at once."""

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return when set, or after `timeout_s`; clears the signal."""


class Runtime(Protocol):
    """A clock, and ways to wait by it."""

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Stopper:
        """Run a coroutine concurrently. It must not raise; `swarmd.worker.tasks.TaskGroup` handles errors."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""

    def time(self) -> float:
        """The current time in POSIX seconds."""

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s`; with 0, let other coroutines run first."""

    def make_signal(self) -> Signal:
        """A new signal, not set."""


class LoopSignal:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        with anyio.move_on_after(timeout_s):
            await self._event.wait()
        self._event.clear()


class LoopRuntime:
    """The running event loop, see `Runtime`."""

    _started: ClassVar[set[asyncio.Task[Any]]] = set()  # strong references, which the event loop does not keep

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Stopper:
        task = asyncio.ensure_future(coroutine)
        self._started.add(task)
        task.add_done_callback(self._started.discard)
        return task.cancel

    def now(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    async def sleep(self, delay_s: float) -> None:
        await anyio.sleep(delay_s)

    def make_signal(self) -> LoopSignal:
        return LoopSignal()


LOOP = LoopRuntime()


class ClockStepDetector:
    """Detects that the wall clock was set, by comparing it with the monotonic clock."""

    def __init__(self) -> None:
        self._offset_s = _wall_clock_offset_s()

    def take_clock_step_s(self) -> float:
        """Seconds by which the clock was set since the last call, negative for backwards; 0 if below `STEP_S_MIN`."""
        step_s = _wall_clock_offset_s() - self._offset_s
        if abs(step_s) < STEP_S_MIN:
            return 0.0
        self._offset_s += step_s
        return step_s


def _wall_clock_offset_s() -> float:
    return time.time() - time.monotonic()
