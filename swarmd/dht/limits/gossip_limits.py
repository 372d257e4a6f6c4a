"""How many messages of a gossip topic are judged, each of which costs signatures' checks. No hivemind in it."""

from __future__ import annotations

from typing import NamedTuple

from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.errors import RecordRejected
from swarmd.worker.runtime import TimeSource

RESERVE = 0.25  # share of the burst of all that only peers may use which the swarm knows


class Rate(NamedTuple):
    """What a bucket holds, and what comes back."""

    burst: float
    per_s: float


class GossipLimits:
    """What senders may still say on a topic.

    Args:
        sender: one sender's.
        everybody: of all senders together.
        now: a monotone clock in seconds.
    """

    def __init__(self, sender: Rate, everybody: Rate, now: TimeSource) -> None:
        self._senders = TokenBuckets(*sender, now)
        self._all = TokenBuckets(*everybody, now)

    def charge(self, sender: str, known: bool) -> None:
        """Charge a message to its sender and to all together.

        A crowd leaves a reserve to those that the swarm knows: else it would only have to talk, and nobody heard them.

        Raises:
            RecordRejected: "quota" where the sender, or all together, say too much.
        """
        if not self._senders.try_charge(sender):
            raise RecordRejected("quota", "too many messages of one peer")
        reserve = 0.0 if known else self._all.burst * RESERVE
        if self._all.left("") - reserve < 1.0:
            raise RecordRejected("quota", "too many messages of all peers together")
        self._all.charge("", 1.0)
