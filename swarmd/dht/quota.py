"""Token buckets: what one sender may ask of this node."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

SENDERS_MAX = 1024  # remembered; the longest silent is forgotten first


class Quota:
    """One bucket for each sender.

    Args:
        burst: what may come at once.
        per_s: what comes back each second.
        now: a monotone clock in seconds.
    """

    def __init__(self, burst: float, per_s: float, now: Callable[[], float]) -> None:
        self._burst = burst
        self._per_s = per_s
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, sender: str, amount: float = 1.0) -> bool:
        """Charge a sender. False when it has not so much left; nothing is charged then."""
        now = self._now()
        left, at = self._buckets.pop(sender, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        granted = amount <= left
        self._buckets[sender] = (left - amount if granted else left, now)
        while len(self._buckets) > SENDERS_MAX:
            self._buckets.popitem(last=False)
        return granted
