"""Noticing that somebody set this machine's clock: what peers take of a node goes by it."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S_MIN = 3.0  # a smaller step is left to peers' patience


class ClockWatch:
    """Compares the wall clock with one that nobody can set.

    Args:
        told: called with the seconds of each step, negative where the clock was set back.
    """

    def __init__(self, told: Callable[[float], None]) -> None:
        self._told = told
        self._offset_s = _offset_s()

    def was_set(self) -> bool:
        """Whether the clock was set by `STEP_S_MIN` or more since it was asked last; tells it."""
        step_s = _offset_s() - self._offset_s
        if abs(step_s) < STEP_S_MIN:
            return False
        self._offset_s += step_s
        self._told(step_s)
        return True


def _offset_s() -> float:
    return time.time() - time.monotonic()
