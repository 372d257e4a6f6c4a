"""The task that watches a node's status and tells its operator of changes, once each.

It lives in the process that serves the node's page, so it can tell that the daemon died. What fails here is logged and
counted, and ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from swarmd.config import NotifyConfig
from swarmd.errors import NotifyFailed, SwarmdError
from swarmd.observe.status import Status
from swarmd.observe.telemetry.metrics import Metrics
from swarmd.paths import DataPaths
from swarmd.web.notifications.health_changes import HealthChanges, HealthMessage
from swarmd.web.notifications.memory import NotifierState
from swarmd.web.notifications.senders import NotificationSender, senders_of
from swarmd.worker.runtime import TimeSource

LOOK_S = 2.0  # between two looks at the status
FAREWELL_LOOK_S = 0.1
FAREWELL_S = 2.5  # longest telling of the daemon's stop; the daemon waits for this process a little longer
QUEUED_MAX = 64  # notes that wait for one sender; the oldest is let go at the bound

log = logging.getLogger("swarmd.notify")


class LatestStatus(Protocol):
    """Gives the newest status that is known already."""

    def __call__(self) -> Status | None:
        """It, or None while there is none. Returns at once, and raises nothing."""


class LastStatus(Protocol):
    """Asks for the status of a node that may have stopped."""

    async def __call__(self) -> Status:
        """It. Raises SwarmdError where it cannot be had."""


class HealthNotifier:
    """Sends changes of a node's health through every sender, each at its own pace.

    Args:
        edges: decides what is told.
        senders: the ways out.
        metrics: counts what came of each note.
        memory: what was told before; None to begin anew.
        clock: POSIX seconds.
    """

    def __init__(
        self,
        edges: HealthChanges,
        senders: Sequence[NotificationSender],
        metrics: Metrics,
        memory: NotifierState | None = None,
        clock: TimeSource = time.time,
    ) -> None:
        self._edges = edges
        self._metrics = metrics
        self._memory = memory
        self._leads = memory is None
        self._clock = clock
        self._outlets = [_Outlet(sender, metrics) for sender in senders]

    async def run(self, latest: LatestStatus, every_s: float = LOOK_S, last: LastStatus | None = None) -> None:
        """Watch until cancelled.

        Args:
            latest: gives the newest status, None while there is none, and does not wait.
            every_s: seconds between two looks.
            last: gives the status when this ends; with it, a daemon that has stopped is told of before.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for outlet in self._outlets:
                    tasks.create_task(outlet.run())
                while True:
                    self.look(latest())
                    await asyncio.sleep(every_s)
        except asyncio.CancelledError:
            if last is not None and self._leads:
                await self._say_farewell(last)
            raise
        finally:
            if self._memory is not None:
                self._memory.release()
                self._leads = False

    async def _say_farewell(self, last: LastStatus) -> None:
        try:
            async with asyncio.timeout(FAREWELL_S):
                status = await last()
                while status.process.healthy:  # asked a moment too soon: whoever ends this process is about to stop
                    await asyncio.sleep(FAREWELL_LOOK_S)
                    status = await last()
                self._put(self._edges.farewell(status, self._clock()))
                await asyncio.gather(*(outlet.drain() for outlet in self._outlets))
        except TimeoutError:
            log.warning("the end of the node may not have been told: no time left, it took %g s", FAREWELL_S)
        except SwarmdError as error:
            log.warning("the end of the node may not have been told: %s", error)

    def look(self, status: Status | None) -> list[HealthMessage]:
        """Take a status into account; gives the notes that are on their way now."""
        if status is None or not self._acquire_lead():
            return []
        return self._put(self._edges.look(status, self._clock()))

    def _put(self, notes: list[HealthMessage]) -> list[HealthMessage]:
        if self._memory is not None:
            self._memory.keep(self._edges.past)
        for note in notes:
            log.info("told: %s", note.text)
            for outlet in self._outlets:
                outlet.put(note)
        return notes

    def _acquire_lead(self) -> bool:
        """Acquire the lock on this node's notifications; on success, resume from the last process's state."""
        if not self._leads and self._memory is not None and self._memory.acquire():
            self._edges.past = self._memory.recall()
            self._leads = True
        return self._leads


class _Outlet:
    """A sender and what waits for it."""

    def __init__(self, sender: NotificationSender, metrics: Metrics) -> None:
        self._sender = sender
        self._metrics = metrics
        self._waiting: deque[HealthMessage] = deque()
        self._more = asyncio.Event()

    def put(self, note: HealthMessage) -> None:
        if len(self._waiting) >= QUEUED_MAX:
            gone = self._waiting.popleft()
            self._note_failure(NotifyFailed(f"{QUEUED_MAX} messages wait for {self._sender.name}; let go: {gone.text}"))
        self._waiting.append(note)
        self._more.set()

    async def run(self) -> None:
        while True:
            await self._more.wait()
            await self.drain()
            self._more.clear()

    async def drain(self) -> None:
        """Send what waits; one that is being sent when this is cancelled waits on."""
        while self._waiting:
            note = self._waiting[0]
            await self._send(note)
            if self._waiting and self._waiting[0] is note:  # else the queue was full meanwhile, and let it go
                self._waiting.popleft()

    async def _send(self, note: HealthMessage) -> None:
        try:
            await self._sender.send(note)
        except NotifyFailed as error:
            self._note_failure(error)
        except Exception as error:  # a fault of ours: the node's page and the other ways go on
            log.exception("a sender broke")
            self._note_failure(NotifyFailed(f"{self._sender.name} broke: {type(error).__name__}"))
        else:
            self._metrics.count_notification(self._sender.name, True)

    def _note_failure(self, error: NotifyFailed) -> None:
        self._metrics.count_notification(self._sender.name, False)
        log.warning("a message did not get out: %s", error)


def notifier_of(config: NotifyConfig, root: Path, metrics: Metrics) -> HealthNotifier | None:
    """The notifier that a node's configuration asks for, None where it names no way.

    Args:
        root: the data directory, which files are relative to.

    Raises:
        ConfigError: a secret cannot be read, or what is named is no URL.
    """
    senders = senders_of(config, root)
    if not senders:
        return None
    return HealthNotifier(
        HealthChanges(config.after_s, config.quiet_s), senders, metrics, NotifierState(DataPaths(root).sockets)
    )
