"""What a notifier remembers on disk: each life of a daemon has a process of its own beside it, and none may tell twice.

The process of the life before may still be telling of its end; until it is gone, the next one only looks on.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.web.notifications.health_changes import NodeState

BYTES_MAX = 64 * 1024
FILE = "notify.json"
LOCK = "notify.lock"

log = logging.getLogger("swarmd.notify")


class NotifierState:
    """A file of a node's, and who may write to it.

    Args:
        directory: made where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None
        self._kept = b""

    def acquire(self) -> bool:
        """Whether this process is the one that tells now. A directory that cannot be written to, or a file system that
        gives no locks, forbids nobody."""
        if self._lock is None:
            try:
                self._lock = self._locked()
            except BlockingIOError:  # another process tells
                return False
            except OSError as error:
                log.warning("notes may be told twice, for it cannot be kept who tells: %s", error)
                self._lock = -1
        return True

    def _locked(self) -> int:
        """The open lock file. Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        return lock

    def recall(self) -> NodeState:
        """What was kept last; nothing where it cannot be understood."""
        try:
            with (self._directory / FILE).open("rb") as file:
                return msgspec.json.decode(file.read(BYTES_MAX), type=NodeState)
        except FileNotFoundError:
            return NodeState()
        except (OSError, *DECODE_ERRORS) as error:
            log.warning("what was told earlier is not known: %s", error)
            return NodeState()

    def keep(self, past: NodeState) -> None:
        """Write it down where it changed."""
        encoded = msgspec.json.encode(past)
        if encoded == self._kept:
            return
        path = self._directory / FILE
        try:
            aside = path.with_suffix(".new")
            aside.write_bytes(encoded)
            aside.replace(path)
        except OSError as error:
            log.warning("what was told cannot be kept: %s", error)
        self._kept = encoded

    def release(self) -> None:
        """Release the lock, so that another process may send notifications."""
        if self._lock is not None and self._lock >= 0:
            os.close(self._lock)
        self._lock = None
