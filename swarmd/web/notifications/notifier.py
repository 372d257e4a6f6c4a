"""The task that watches a node's status and tells its operator of changes, once each.

- It lives in the process that serves the node's page, so it can tell that the daemon died. What fails here is logged
  and counted, and ends nothing.
- Each way out has a bounded queue of its own: one that is stuck holds up no other.
- What was told is kept in `run/notify.json`. Each run of a daemon has a process of its own beside it; the one that
  holds the lock sends, the next one only watches until it is gone.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import NotifyConfig
from swarmd.errors import NotifyFailed, SwarmdError
from swarmd.files import replace_durably
from swarmd.logger import get_logger
from swarmd.observe.metrics import Metrics
from swarmd.observe.status import Status
from swarmd.paths import NodeDirectory
from swarmd.web.notifications.health_changes import HealthChanges, HealthMessage, NodeState
from swarmd.web.notifications.senders import NotificationSender, senders_of
from swarmd.worker.runtime import TimeSource

LOOK_S = 2.0  # between two looks at the status
FAREWELL_LOOK_S = 0.1
FAREWELL_S = 2.5  # longest telling of the daemon's stop; the daemon waits for this process a little longer
QUEUED_MAX = 64  # messages that wait for one sender; the oldest is dropped at the bound
STATE_BYTES_MAX = 64 * 1024

log = get_logger("swarmd.notify")


class NotifierState:
    """What was told, in a file, and the right to tell.

    Args:
        directory: made if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "notify.json"
        self._lock: int | None = None
        self._kept = b""

    def acquire(self) -> bool:
        """Whether this process is the one that tells now. A directory that cannot be written to, or a file system
        without locks, forbids nobody."""
        if self._lock is None:
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = os.open(self._directory / "notify.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                log.warning("messages may be sent twice, because no lock can be made: %s", error)
                self._lock = -1
                return True
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process tells
                os.close(lock)
                return False
            except OSError as error:
                log.warning("messages may be sent twice, because no lock can be had: %s", error)
            self._lock = lock
        return True

    def load(self) -> NodeState:
        """What was saved last; nothing if it cannot be understood."""
        try:
            with self._file.open("rb") as file:
                return msgspec.json.decode(file.read(STATE_BYTES_MAX), type=NodeState)
        except FileNotFoundError:
            return NodeState()
        except (OSError, *DECODE_ERRORS) as error:
            log.warning("what was told earlier is not known: %s", error)
            return NodeState()

    def save(self, past: NodeState) -> None:
        """Write it down if it changed."""
        encoded = msgspec.json.encode(past)
        if encoded == self._kept:
            return
        try:
            replace_durably(self._file, encoded)
        except OSError as error:
            log.warning("what was told cannot be saved: %s", error)
        self._kept = encoded

    def release(self) -> None:
        """Release the lock, so that another process may send notifications."""
        if self._lock is not None and self._lock >= 0:
            os.close(self._lock)
        self._lock = None


class HealthNotifier:
    """Sends changes of a node's health through every sender, each at its own pace.

    Args:
        changes: decides what is told.
        senders: the ways out.
        metrics: counts what came of each message.
        memory: what was told before; None to start with nothing.
        clock: POSIX seconds.
    """

    def __init__(
        self,
        changes: HealthChanges,
        senders: Sequence[NotificationSender],
        metrics: Metrics,
        memory: NotifierState | None = None,
        clock: TimeSource = time.time,
    ) -> None:
        self._changes = changes
        self._memory = memory
        self._leads = memory is None
        self._clock = clock
        self._outlets = [_Outlet(sender, metrics) for sender in senders]

    async def run(
        self,
        latest: Callable[[], Status | None],
        every_s: float = LOOK_S,
        last: Callable[[], Awaitable[Status]] | None = None,
    ) -> None:
        """Watch until cancelled.

        Args:
            latest: gives the newest status that is known, None while there is none, and does not wait.
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

    async def _say_farewell(self, last: Callable[[], Awaitable[Status]]) -> None:
        try:
            async with asyncio.timeout(FAREWELL_S):
                status = await last()
                while status.process.healthy:  # asked a moment too soon: whoever ends this process is about to stop
                    await asyncio.sleep(FAREWELL_LOOK_S)
                    status = await last()
                self._put(self._changes.farewell(status, self._clock()))
                await asyncio.gather(*(outlet.drain() for outlet in self._outlets))
        except TimeoutError:
            log.warning("the end of the node may not have been told: no time left, it took %g s", FAREWELL_S)
        except SwarmdError as error:
            log.warning("the end of the node may not have been told: %s", error)

    def look(self, status: Status | None) -> list[HealthMessage]:
        """Take a status into account; gives the messages that are on their way now."""
        if status is None or not self._acquire_lead():
            return []
        return self._put(self._changes.look(status, self._clock()))

    def _put(self, notes: list[HealthMessage]) -> list[HealthMessage]:
        if self._memory is not None:
            self._memory.save(self._changes.past)
        for note in notes:
            log.info("told: %s", note.text)
            for outlet in self._outlets:
                outlet.put(note)
        return notes

    def _acquire_lead(self) -> bool:
        """Acquire the lock on this node's notifications; on success, resume from the last process's state."""
        if not self._leads and self._memory is not None and self._memory.acquire():
            self._changes.past = self._memory.load()
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
            self._note_failure(f"{QUEUED_MAX} messages wait for {self._sender.shown}; dropped: {gone.text}")
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
            if self._waiting and self._waiting[0] is note:  # else the queue was full meanwhile, and dropped it
                self._waiting.popleft()

    async def _send(self, note: HealthMessage) -> None:
        try:
            await self._sender.send(note)
        except NotifyFailed as error:
            self._note_failure(str(error))
        except Exception as error:  # a fault of ours: the node's page and the other ways go on
            log.exception("a sender broke")
            self._note_failure(f"{self._sender.shown} broke: {type(error).__name__}")
        else:
            self._metrics.count_notification(self._sender.name, True)

    def _note_failure(self, reason: str) -> None:
        self._metrics.count_notification(self._sender.name, False)
        log.warning("a message did not get out: %s", reason)


def notifier_of(config: NotifyConfig, root: Path, metrics: Metrics) -> HealthNotifier | None:
    """The notifier that a node's configuration asks for, None if it names no way.

    Args:
        root: the data directory, which files are relative to.

    Raises:
        ConfigError: as `senders_of`.
    """
    senders = senders_of(config, root)
    if not senders:
        return None
    changes = HealthChanges(config.after_s, config.quiet_s)
    return HealthNotifier(changes, senders, metrics, NotifierState(NodeDirectory(root).sockets))
