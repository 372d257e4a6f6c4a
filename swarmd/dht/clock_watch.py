"""Noticing that somebody set this machine's clock: what peers take of a node goes by it."""

from __future__ import annotations

import logging
import time

from swarmd.dht.records import PAST_S, TTL_MAX_S

STEP_S_MIN = 3.0  # a smaller step is left to peers' patience

log = logging.getLogger(__name__)


class ClockWatch:
    """Compares the wall clock with one that nobody can set."""

    def __init__(self) -> None:
        self._offset_s = _offset_s()

    def was_set(self) -> bool:
        """Whether the clock was set by `STEP_S_MIN` or more since it was asked last; says so in the log."""
        step_s = _offset_s() - self._offset_s
        if abs(step_s) < STEP_S_MIN:
            return False
        self._offset_s += step_s
        way = "forward" if step_s > 0 else "back"
        log.warning(
            "this machine's clock was set %s by %.0f s; peers refuse records of a clock that is %.0f s behind theirs, "
            "or that make them expire more than %.0f s from now. Own records are published anew; "
            "`swarmd doctor` compares the clock with peers'",
            way, abs(step_s), PAST_S, TTL_MAX_S + PAST_S,
        )  # fmt: skip
        return True


def _offset_s() -> float:
    return time.time() - time.monotonic()
