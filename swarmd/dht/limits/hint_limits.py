"""How many hints are listened to. No hivemind in it."""

from __future__ import annotations

import time

from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.worker.runtime import TimeSource

HINTS_BURST, HINTS_PER_S = 20.0, 5.0  # one sender's
ALL_BURST, ALL_PER_S = 4096.0, 256.0  # of all senders together
RESERVE = 0.25  # share of the burst of all that only senders with credit may use


class HintBounds:
    """What senders may still say.

    Args:
        now: a monotone clock in seconds.
    """

    def __init__(self, now: TimeSource = time.monotonic) -> None:
        self._senders = TokenBuckets(HINTS_BURST, HINTS_PER_S, now)
        self._all = TokenBuckets(ALL_BURST, ALL_PER_S, now)

    def try_charge_sender(self, sender: str, count: float = 1.0) -> bool:
        """Charge a sender. False when it says too much."""
        return self._senders.try_charge(sender, count)

    def try_charge_all(self, credited: bool, count: float = 1.0) -> bool:
        """Charge all senders together. False when they say too much; those that were credited have a reserve."""
        reserve = 0.0 if credited else ALL_BURST * RESERVE
        return count <= self._all.left("") - reserve and self._all.try_charge("", count)
