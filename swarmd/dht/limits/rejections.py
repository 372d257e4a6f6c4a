"""Counts of refused records, handed on in bounded doses: a flood of bad records is not a flood of events."""

from __future__ import annotations

from collections import Counter

from swarmd.core.events import RecordsRejected
from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.logger import get_logger
from swarmd.worker.runtime import TimeSource

COUNTERS_MAX = 256  # distinct (peer, reason); the rest is counted under no peer
REPEAT_S = 60.0  # between two events about the same peer and reason
NAMED_BURST, NAMED_PER_S = 32.0, 0.5  # events that name a peer: ids cost nothing, and the log keeps every event

log = get_logger(__name__)


class Rejections:
    """Tallies rejections per peer and reason.

    Args:
        now: a clock in seconds, monotone.
    """

    def __init__(self, now: TimeSource) -> None:
        self._now = now
        self._counts: Counter[tuple[str, str]] = Counter()
        self._told_at: dict[tuple[str, str], float] = {}
        self._named = TokenBuckets(NAMED_BURST, NAMED_PER_S, now)
        self.total: Counter[str] = Counter()

    @property
    def waiting(self) -> Counter[tuple[str, str]]:
        """What is still to be told, by (peer, reason)."""
        return self._counts

    def count(self, peer: str, reason: str, detail: str = "") -> None:
        """Note one refused record of `peer` (who sent it; empty when unknown)."""
        place = (peer, reason)
        if place not in self._counts and len(self._counts) >= COUNTERS_MAX:
            place = ("", reason)
        self._counts[place] += 1
        self.total[reason] += 1
        log.debug("refused a record from %s: %s: %s", peer or "an unknown peer", reason, detail)

    def due(self) -> list[RecordsRejected]:
        """Events to report now: each (peer, reason) at once when new, then once a minute with what has gathered.

        Where too many peers are refused, the rest is told under no peer.
        """
        now = self._now()
        self._told_at = {place: at for place, at in self._told_at.items() if now - at < REPEAT_S}
        for place in [place for place in self._counts if place[0] and place not in self._told_at]:
            if not self._named.try_charge(""):
                self._counts["", place[1]] += self._counts.pop(place)
        ready = [place for place in self._counts if place not in self._told_at]
        return [self._drain(place, now) for place in ready]

    def _drain(self, place: tuple[str, str], now: float) -> RecordsRejected:
        self._told_at[place] = now
        return RecordsRejected(*place, count=self._counts.pop(place))
