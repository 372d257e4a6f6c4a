"""Who answers too late to be waited for. No hivemind in it.

Whoever answers reads, but slowly, would have each of them last as long as this node waits for anybody.
"""

from __future__ import annotations

from cachetools import FIFOCache

LATE_S = 0.4  # an answer after more is late
LATE_MAX = 2  # such answers, one after another, of a peer that others are not kept waiting for any more
PEERS_MAX = 4096  # remembered; the longest untouched is forgotten first


class Promptness:
    """How many answers of each peer were late, since the last that was not."""

    def __init__(self) -> None:
        self._late: FIFOCache[str, int] = FIFOCache(PEERS_MAX)

    def note(self, peer: str, took_s: float, answered: bool) -> None:
        """A peer that was asked has answered, or was given up, after so long."""
        if took_s > LATE_S:
            self._late[peer] = self._late.get(peer, 0) + 1
        elif answered:
            self._late.pop(peer, None)

    def is_late(self, peer: str) -> bool:
        """Were its latest answers late?"""
        return self._late.get(peer, 0) >= LATE_MAX
