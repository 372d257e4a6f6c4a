"""For whose rollouts a stage's gathering waits, and for how long. No hivemind in it.

Whoever gave its rollouts the last time is waited for. The others that have worked may be any number, for the work is
little: how long all of them together are waited for goes by what came of it the last times.

Two peers that give by turns would have every gathering last to its end. So gatherings that waited in vain for somebody
who gave the last time are remembered, and while there are several, only those are waited for that gave the last 2, 4,
8 ... times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from cachetools import FIFOCache

from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.store.seniority import ALWAYS, Rank

UNTRIED_S = 3600.0  # while no stranger has failed: as long as for anybody
FAILED_S = 1.0  # at most, once one has
LEAST_S = 0.1  # the next step down is not to wait
VAIN_ALLOWED = 1  # gatherings in vain that change nothing
VAIN_MAX = 12.0
FORGOTTEN_AFTER = 64  # gatherings that waited for nobody in vain, until one that did is forgotten


class Patience:
    """What a node knows of who gives what it announces."""

    def __init__(self) -> None:
        self.strangers_s = UNTRIED_S
        self._rows: FIFOCache[str, int] = FIFOCache(MEMBERS_MAX)  # peer → latest gatherings in a row that it gave to
        self._gatherings = 0
        self._vain = 0.0  # of them, those that waited in vain and are not forgotten

    def awaited(self, announced: Mapping[str, Rank], waited_s: float) -> set[str]:
        """Of peers that have announced rollouts, those worth waiting for after so long."""
        strangers = self._strangers(announced) if waited_s < self.strangers_s else set()
        return strangers | {peer for peer, rank in announced.items() if self._is_trusted(peer, rank)}

    def judge(self, announced: Mapping[str, Rank], got: Collection[str], refused: Collection[str]) -> None:
        """A gathering is over: whose rollouts came, of those that had announced some; and whose were no rollouts."""
        strangers = self._strangers(announced)
        if strangers.difference(got, refused):
            self.strangers_s = min(self.strangers_s / 2, FAILED_S) if self.strangers_s > LEAST_S else 0.0
        elif strangers.intersection(got):
            self.strangers_s = max(self.strangers_s, min(max(2 * self.strangers_s, LEAST_S), FAILED_S))
        proven = {peer for peer, rank in announced.items() if rank.rounds < ALWAYS and self._is_proven(peer)}
        if proven.difference(got, refused):
            self._vain = min(self._vain + 1, VAIN_MAX)
        else:
            self._vain = max(self._vain - 1 / FORGOTTEN_AFTER, 0.0)
        self._gatherings += 1
        given = {peer: self._rows.pop(peer, 0) for peer in announced}
        self._rows.update({peer: rows + 1 for peer, rows in given.items() if peer in got})

    def _is_trusted(self, peer: str, rank: Rank) -> bool:
        return rank.rounds >= ALWAYS or self._is_proven(peer)

    def _is_proven(self, peer: str) -> bool:
        return self._rows.get(peer, 0) >= self._row_min

    @property
    def _row_min(self) -> int:
        """Gatherings in a row that who is waited for has given to; who gave to all that there were always is."""
        doublings = max(math.ceil(self._vain) - VAIN_ALLOWED, 0)
        return max(1, min(1 << doublings, self._gatherings))

    def _strangers(self, announced: Mapping[str, Rank]) -> set[str]:
        return {peer for peer, rank in announced.items() if rank.awaited and not self._is_trusted(peer, rank)}
