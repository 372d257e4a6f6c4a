"""Noticing that somebody set this machine's clock: what peers take of a node goes by it."""

from __future__ import annotations

import time

STEP_S_MIN = 3.0  # a smaller step is left to peers' patience


class ClockWatch:
    """Compares the wall clock with one that nobody can set."""

    def __init__(self) -> None:
        self._offset_s = _offset_s()

    def step_s(self) -> float:
        """Seconds that the clock was set forward since it was asked last, negative for back; 0 for less than a step."""
        step_s = _offset_s() - self._offset_s
        if abs(step_s) < STEP_S_MIN:
            return 0.0
        self._offset_s += step_s
        return step_s


def _offset_s() -> float:
    return time.time() - time.monotonic()
