"""Peers that were called in vain: they are left alone for a while, each time for longer.

A name costs nothing, and p2pd looks among all its peers for one that it is not connected to, for as long as the caller
waits. So whoever has strangers' names called again and again would have a node and its neighbours search for nobody.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

from swarmd.worker.runtime import TimeSource

REST = 10.0  # times what a call in vain took; whoever calls often spends a tenth of its time on one that is not there
REST_MIN_S, REST_MAX_S = 5.0, 300.0
PEERS_MAX = 4096  # remembered; the longest untouched is forgotten first


class _Rest(NamedTuple):
    long_s: float
    until: float


class Unreached:
    """Who rests.

    Args:
        now: a monotone clock in seconds.
    """

    def __init__(self, now: TimeSource = time.monotonic) -> None:
        self._now = now
        self._rests: OrderedDict[str, _Rest] = OrderedDict()

    def rests(self, peer: str) -> bool:
        """Is this peer not to be called now?"""
        rest = self._rests.get(peer)
        return rest is not None and self._now() < rest.until

    def miss(self, peer: str, took_s: float) -> None:
        """A call was in vain, after so many seconds."""
        now, before = self._now(), self._rests.pop(peer, None)
        if before is not None and now < before.until:  # calls that went out together are one
            self._rests[peer] = before
            return
        long_s = max(REST * took_s, REST_MIN_S, 2 * before.long_s if before else 0.0)
        self._rests[peer] = _Rest(min(long_s, REST_MAX_S), now + min(long_s, REST_MAX_S))
        while len(self._rests) > PEERS_MAX:
            self._rests.popitem(last=False)

    def hear(self, peer: str) -> None:
        """This peer calls, or answers: it is there."""
        self._rests.pop(peer, None)
