"""Drives the loop of `swarmd.shell.loop` with a real clock and a real disk.

While the disk works the loop waits in a thread, so supervisors, signals and status go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import anyio
from anyio import to_thread

from swarmd.core.chart import GAPS
from swarmd.core.events import Event, NodeStarted, NodeStopped
from swarmd.core.state import State
from swarmd.daemon.clock import WallClock
from swarmd.logger import get_logger
from swarmd.shell.loop import Loop

log = get_logger("swarmd.engine")


class Watchdog(Protocol):
    """Ends a daemon whose loop stands still: the service manager, through `swarmd.daemon.notify.ServiceNotifier`."""

    @property
    def pulse_s(self) -> float:
        """How often `alive` must be called; infinite for never."""
        ...

    def alive(self) -> None:
        """A sign of life; may be given more often. Raises nothing: a daemon works on where nobody watches it."""
        ...


class Engine:
    """Waits for facts and deadlines, and has the loop commit them; the sink of all facts.

    Args:
        loop: connected before the first commit.
        clock: wall-clock time.
        watchdog: is told on every turn that the loop is alive.
    """

    def __init__(self, loop: Loop, clock: WallClock, watchdog: Watchdog) -> None:
        self.loop = loop
        self._clock = clock
        self._watchdog = watchdog
        self._news: anyio.Event | None = None  # set when a fact comes
        self._room: anyio.Event | None = None  # set when facts were taken out of the inbox

    @property
    def state(self) -> State:
        """The state after all events that are durable."""
        return self.loop.state

    async def observe(self, event: Event) -> None:
        """Bring a fact; waits while the inbox is full."""
        while not self.loop.offer(event):
            self._room = self._room or anyio.Event()
            await self._room.wait()
        if self._news is not None:
            self._news.set()

    async def begin(self, started: NodeStarted) -> None:
        """Record that a life begins, and act on it."""
        self.loop.begin(started)
        await self.commit(self.loop.next_facts(self._clock.now()))

    async def run(self) -> NodeStopped:
        """Commit facts until the node has stopped.

        Raises:
            LogWriteFailed: a commit could not be made durable; its facts had no effect.
        """
        while self.loop.ended is None:
            self._watchdog.alive()
            if facts := self.loop.next_facts(self._clock.now()):
                self._make_room()
                await self.commit(facts)
            else:
                await self._wait()
        return self.loop.ended

    async def commit(self, facts: Sequence[Event]) -> None:
        """Make one batch of facts durable, then adopt it and act on it. Only `begin` and `run` call this."""
        failed = self.loop.snapshots.failed
        written = await to_thread.run_sync(self.loop.write, self._clock.now(), facts)
        self.loop.adopt(written)
        if self.loop.snapshots.failed > failed:
            log.warning(self.loop.snapshots.note)
        for gap in GAPS.told():
            log.warning("no chart says what this means here; nothing was changed", gap=gap, seq=self.loop.next_seq - 1)

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    async def _wait(self) -> None:
        """Until a fact comes, or a deadline or the pulse is due."""
        self._news = anyio.Event()
        with anyio.move_on_after(min(self._watchdog.pulse_s, self.loop.idle_s(self._clock.now()))):
            await self._news.wait()
