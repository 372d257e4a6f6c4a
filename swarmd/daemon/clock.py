"""Time as the daemon sees it, in one place, so that tests can move it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time; peers agree on deadlines by it."""

    def now(self) -> float:
        """POSIX seconds, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """POSIX seconds, UTC."""
        return time.time()
