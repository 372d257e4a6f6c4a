"""What a coordinator's stages waited in vain, kept a second time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WORTH = 64  # stages that close by their quorum, by which one in vain is forgotten
FREE = 8  # of each kind, which change nothing
MOST = {"newcomers": 9, "members": 20}  # that are remembered


class PatienceModel:
    """For whom stages may wait.

    Args:
        rounds: that each peer was credited for, kept by the caller.
    """

    def __init__(self, rounds: Mapping[str, int]) -> None:
        self._rounds = rounds
        self._missed_at: dict[str, int] = {}  # rounds of a peer when a stage last waited for it in vain
        self._vain = dict.fromkeys(MOST, 0)
        self._steady_min = 0

    def note(self, missing: Sequence[str], timed_out: bool) -> None:
        """A stage closed, before its reports are credited; of those that it waited for these did not report."""
        whom = {"members" if self._rounds.get(peer) else "newcomers" for peer in missing}
        for kind, most in MOST.items():
            if timed_out:
                self._vain[kind] = min(WORTH * most, self._vain[kind] + WORTH * (kind in whom))
            else:
                self._vain[kind] = max(0, self._vain[kind] - 1)
        if timed_out:
            self._missed_at |= {peer: self._rounds.get(peer, 0) for peer in missing}

    def open(self, own: str) -> None:
        """The next stage opens; `own` is the coordinator."""
        steps = math.ceil(self._vain["members"] / WORTH) - FREE
        self._steady_min = min(2**steps - 1, self._rounds.get(own, 0) // 2) if steps > 0 else 0

    def forget(self, peer: str) -> None:
        """It has made room for another."""
        self._missed_at.pop(peer, None)

    def may_wait(self, peer: str) -> bool:
        """Whether a stage may wait for this member."""
        rounds = self._rounds.get(peer, 0)
        if not rounds:
            return self._vain["newcomers"] <= FREE * WORTH
        return rounds - self._missed_at.get(peer, 0) >= self._steady_min
