"""The clock, sleeping, waking and starting of coroutines, as an interface with two implementations.

Coroutines that decide something (what to submit, when to check again) use nothing else of an event loop, so that the
simulator can run the same coroutines on simulated time (`swarmd.sim.coroutines`).
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Protocol

import anyio

TimeSource = Callable[[], float]  # seconds since 1970, or since whenever if only differences count
Stopper = Callable[[], object]  # cancels a coroutine that was started, where it waits

STEP_S_MIN = 3.0  # peers tolerate a smaller step of the clock


class Signal(Protocol):
    """Wakes one coroutine."""

    def set(self) -> None:
        """Wake the coroutine that waits, or have the next `wait` return at once."""

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return when it is set, or after `timeout_s`; afterwards it is not set."""


class Runtime(Protocol):
    """A clock, and ways to wait by it."""

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Stopper:
        """Run a coroutine concurrently. It must not raise; `swarmd.worker.tasks.TaskGroup` passes errors on."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""

    def time(self) -> float:
        """The current time in POSIX seconds."""

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s`; with 0, after other coroutines had their turn."""

    def make_signal(self) -> Signal:
        """A new signal, not set."""


class LoopSignal:
    """See `Signal`."""

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

    _started: ClassVar[set[asyncio.Task[Any]]] = set()  # the event loop itself would forget them

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
    """Notices that the wall clock was set, by comparing it with the monotonic clock."""

    def __init__(self) -> None:
        self._offset_s = _wall_clock_offset_s()

    def take_clock_step_s(self) -> float:
        """Seconds that the clock was set forward since it was asked last, negative for back; 0 for less than a step."""
        step_s = _wall_clock_offset_s() - self._offset_s
        if abs(step_s) < STEP_S_MIN:
            return 0.0
        self._offset_s += step_s
        return step_s


def _wall_clock_offset_s() -> float:
    return time.time() - time.monotonic()
