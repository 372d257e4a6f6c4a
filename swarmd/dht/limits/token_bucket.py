"""Token buckets: what one sender may ask of this node."""

from __future__ import annotations

from collections import OrderedDict

from swarmd.worker.runtime import TimeSource

SENDERS_MAX = 1024  # remembered; the longest silent is forgotten first


class TokenBuckets:
    """One bucket for each sender.

    Args:
        burst: what may come at once.
        per_s: what comes back each second.
        now: a monotone clock in seconds.
        senders_max: remembered; who is forgotten has a full bucket again, so where nothing bounds all senders together
            they must be as many as there can be.
    """

    def __init__(self, burst: float, per_s: float, now: TimeSource, senders_max: int = SENDERS_MAX) -> None:
        self.burst = burst
        self._per_s = per_s
        self._now = now
        self._senders_max = senders_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def try_charge(self, sender: str, amount: float = 1.0) -> bool:
        """Charge a sender. False when it has not so much left; nothing is charged then."""
        granted = amount <= self.left(sender)
        self.charge(sender, amount if granted else 0.0)
        return granted

    def left(self, sender: str) -> float:
        """What a sender may still ask for now; below zero when it was charged for more."""
        now = self._now()
        left, at = self._buckets.get(sender, (self.burst, now))
        return min(self.burst, left + (now - at) * self._per_s)

    def charge(self, sender: str, amount: float) -> None:
        """Charge a sender for what it has had already, though it had not so much left."""
        left = self.left(sender)
        self._buckets.pop(sender, None)
        self._buckets[sender] = (left - amount, self._now())
        while len(self._buckets) > self._senders_max:
            self._buckets.popitem(last=False)
