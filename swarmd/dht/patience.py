"""For whose rollouts a stage's gathering waits, and for how long. No hivemind in it.

Whoever gave its rollouts the last time is waited for. The others that have worked may be any number, for the work is
little: how long all of them together are waited for goes by what came of it the last times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping

from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.store.seniority import ALWAYS, Rank

UNTRIED_S = 3600.0  # while no stranger has failed: as long as for anybody
FAILED_S = 1.0  # at most, once one has
LEAST_S = 0.1  # the next step down is not to wait


class Patience:
    """What a node knows of who gives what it announces."""

    def __init__(self) -> None:
        self.strangers_s = UNTRIED_S
        self._proven: OrderedDict[str, None] = OrderedDict()

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
        for peer in announced:
            self._proven.pop(peer, None)
            if peer in got:
                self._proven[peer] = None
        while len(self._proven) > MEMBERS_MAX:
            self._proven.popitem(last=False)

    def _is_trusted(self, peer: str, rank: Rank) -> bool:
        return peer in self._proven or rank.rounds >= ALWAYS

    def _strangers(self, announced: Mapping[str, Rank]) -> set[str]:
        return {peer for peer, rank in announced.items() if rank.awaited and not self._is_trusted(peer, rank)}
