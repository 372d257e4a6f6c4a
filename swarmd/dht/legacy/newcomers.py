"""Who is new in a legacy network. Pure.

Rewards there are unsigned, so anybody may have one for any number of invented peers: those that were seen longest ago
are forgotten, and what is told of new ones, each of which is an event in the log, has a rate.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable

from swarmd.core.state import ONCHAIN_PEERS_MAX
from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.worker.runtime import TimeSource

MEMBERS_KEPT = ONCHAIN_PEERS_MAX
NEW_BURST, NEW_PER_S = float(MEMBERS_KEPT), 0.1  # a swarm of any size at first, then 8,640 a day


class Newcomers:
    """Remembers the peers that were seen latest.

    Args:
        now: a monotone clock in seconds.
    """

    def __init__(self, now: TimeSource = time.monotonic) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()  # the latest last
        self._told = TokenBuckets(NEW_BURST, NEW_PER_S, now)

    def among(self, peers: Iterable[str]) -> list[str]:
        """Those of these peers that are to be told of; whoever is one too many is new again the next time."""
        new = []
        for peer in peers:
            if peer in self._seen:
                self._seen.move_to_end(peer)
            elif self._told.try_charge(""):
                self._seen[peer] = None
                new.append(peer)
        while len(self._seen) > MEMBERS_KEPT:
            self._seen.popitem(last=False)
        return new
