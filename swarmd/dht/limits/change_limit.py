"""How often what one peer says of one stage may change, before it is no longer listened to."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Generic, TypeVar

from swarmd.errors import RecordRejected
from swarmd.worker.runtime import TimeSource

T = TypeVar("T", bound=Hashable)


class ChangeLimit(Generic[T]):
    """What was taken of each peer.

    Args:
        changes_max: taken after the first.
        apart_s: the least time between two.
        now: a monotone clock in seconds.
    """

    def __init__(self, changes_max: int, apart_s: float, now: TimeSource = time.monotonic) -> None:
        self._changes_max = changes_max
        self._apart_s = apart_s
        self._now = now
        self._taken: dict[str, tuple[T, int, float]] = {}  # peer → (latest, changes, when)
        self._waiting: dict[str, T] = {}  # seen too early; it is taken when it is still there in time

    def admit(self, peer: str, content: T) -> bool:
        """Record a value and return whether to report it: false if it was reported before or changes too early.

        Raises:
            RecordRejected: "flood" for each change that is not taken, or has been replaced before its time; once.
        """
        now = self._now()
        if peer not in self._taken:
            self._taken[peer] = (content, 0, now)
            return True
        latest, changes, at = self._taken[peer]
        if content == latest:
            return False
        if changes < self._changes_max and now - at >= self._apart_s:
            self._taken[peer] = (content, changes + 1, now)
            self._waiting.pop(peer, None)
            return True
        before = self._waiting.get(peer)
        self._waiting[peer] = content
        if before != content and (before is not None or changes >= self._changes_max):
            raise RecordRejected("flood", f"{peer} changes what it says of one stage too often")
        return False
