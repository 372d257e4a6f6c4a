"""Which rewards of a stage become events: nobody signs them, so whoever writes them again and again fills no log.

As long as a peer has tellings left, its changes are waited out and not refused: an honest reward grows until its peer
has finished the stage, and the latest is told when its turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from swarmd.core.state import ONCHAIN_PEERS_MAX
from swarmd.dht.legacy.values import encode
from swarmd.errors import RecordRejected

PEERS_TOLD_MAX = ONCHAIN_PEERS_MAX  # of a stage; the core counts no more
TELLINGS_MAX = 4  # of one peer's reward of a stage: the first, which counts, and what it grew to
TELL_AGAIN_S = 30.0  # between two of them

Refused = tuple[str, bytes, RecordRejected]  # peer, encoded reward, why


class ReportedReward(msgspec.Struct, frozen=True):
    """What was told of a peer last."""

    reward: float
    at: float
    count: int


class RewardReporter:
    """The rewards of one stage.

    At the bounds a reward is dropped: "full" for a peer beyond `PEERS_TOLD_MAX`, "quota" for a change after
    `TELLINGS_MAX`.
    """

    def __init__(self) -> None:
        self._told: dict[str, ReportedReward] = {}

    def take(self, rewards: Mapping[str, float], now: float) -> tuple[dict[str, float], list[Refused]]:
        """(what is to be told now, what is dropped).

        Args:
            rewards: all that stand there, by peer.
            now: a monotone clock in seconds.
        """
        due: dict[str, float] = {}
        dropped: list[Refused] = []
        for peer, reward in rewards.items():
            try:
                if self._note(peer, reward, now):
                    due[peer] = reward
            except RecordRejected as error:
                dropped.append((peer, encode(reward), error))
        return due, dropped

    def _note(self, peer: str, reward: float, now: float) -> bool:
        """Note the reward where it is to be told now. Returns whether it is.

        Raises:
            RecordRejected: `full` or `quota`.
        """
        last = self._told.get(peer)
        if last is None:
            if len(self._told) >= PEERS_TOLD_MAX:
                raise RecordRejected("full", f"more than {PEERS_TOLD_MAX} peers have a reward of this stage")
            self._told[peer] = ReportedReward(reward, now, 1)
            return True
        if last.reward == reward:
            return False
        if last.count >= TELLINGS_MAX:
            raise RecordRejected("quota", f"the reward of {peer} has changed {TELLINGS_MAX} times in this stage")
        if now < last.at + TELL_AGAIN_S:
            return False
        self._told[peer] = ReportedReward(reward, now, last.count + 1)
        return True
