"""What a coordinator's stages waited in vain, kept a second time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

SHARE = 1 / 64  # of the time of stages that closed by their quorum, by which what was waited in vain is forgotten
FREE = 3  # stages of each kind, which change nothing
MOST = {"newcomers": 4, "members": 15}  # that are remembered


class PatienceModel:
    """For whom stages may wait.

    Args:
        rounds: that each peer was credited for, kept by the caller.
        stage_s: longest time of a stage.
    """

    def __init__(self, rounds: Mapping[str, int], stage_s: float) -> None:
        self._rounds = rounds
        self._stage_s = stage_s
        self._missed_at: dict[str, int] = {}  # rounds of a peer when a stage last waited for it in vain
        self._vain_s = dict.fromkeys(MOST, 0.0)
        self._steady_min = 0
        self._all_in_s = 0.0  # `stage_s` less a share of other stages' time: at 0 all members are waited for

    def note(self, missing: Sequence[str], lasted_s: float, timed_out: bool) -> None:
        """A stage closed, before its reports are credited; of those that it waited for these did not report."""
        whom = {"members" if self._rounds.get(peer) else "newcomers" for peer in missing}
        forgotten_s = SHARE * min(max(lasted_s, 0.0), self._stage_s)
        for kind, most in MOST.items():
            if timed_out:
                counts = kind in whom and not (kind == "members" and self._awaits_all)
                added_s = self._stage_s * counts
                self._vain_s[kind] = min(self._stage_s * most, self._vain_s[kind] + added_s)
            else:
                self._vain_s[kind] = max(0.0, self._vain_s[kind] - forgotten_s)
        if timed_out:
            self._missed_at |= {peer: self._rounds.get(peer, 0) for peer in missing}
            if self._awaits_all and "members" in whom:
                self._all_in_s = self._stage_s
        else:
            self._all_in_s = max(0.0, self._all_in_s - forgotten_s)

    def open(self, own: str) -> None:
        """The next stage opens; `own` is the coordinator."""
        steps = math.ceil(self._stages("members")) - FREE
        self._steady_min = min(2**steps - 1, self._rounds.get(own, 0) // 2) if steps > 0 else 0
        if not self._steady_min:
            self._all_in_s = self._stage_s
        elif self._awaits_all:
            self._steady_min = 0

    def forget(self, peer: str) -> None:
        """It has made room for another."""
        self._missed_at.pop(peer, None)

    def may_wait(self, peer: str) -> bool:
        """Whether a stage may wait for this member."""
        rounds = self._rounds.get(peer, 0)
        if not rounds:
            return self._stages("newcomers") <= FREE
        return rounds - self._missed_at.get(peer, 0) >= self._steady_min

    @property
    def _awaits_all(self) -> bool:
        return round(self._all_in_s / self._stage_s, 6) <= 0

    def _stages(self, kind: str) -> float:
        return round(self._vain_s[kind] / self._stage_s, 6)
