"""Time as the daemon sees it, in one place, so that tests can move it."""

from __future__ import annotations

import time
from typing import Protocol

import anyio

from swarmd.core.events import ClockSet
from swarmd.shell.ports import FactSink
from swarmd.worker.runtime import ClockWatch

LOOK_EVERY_S = 1.0


class WallClock(Protocol):
    """Wall-clock time; peers agree on deadlines by it."""

    def now(self) -> float:
        """POSIX seconds, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """POSIX seconds, UTC."""
        return time.time()


async def watch_clock(facts: FactSink, every_s: float = LOOK_EVERY_S) -> None:
    """Record that somebody set the machine's clock, within `every_s` of it: the core's waits go by that clock.

    The daemon does it, for a worker that notices may be the one that waits for its next start.
    """
    watch = ClockWatch()
    while True:
        await anyio.sleep(every_s)
        if step_s := watch.step_s():
            await facts.observe(ClockSet(step_s))
