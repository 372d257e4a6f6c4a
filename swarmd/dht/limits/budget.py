"""What comes in at the door is bounded for each peer, for each address prefix, and in all.

A peer id costs nothing, an address costs a little, the node has what it has. So each bound has three levels; one prefix
gets half of all at most, and a quarter of all is kept for peers that this node knows.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.worker.runtime import TimeSource

RESERVE = 0.25  # share of all that only known peers may use
ALL = ""


class RemotePeer(NamedTuple):
    """Who wants something: its peer id, where it connects from, and whether it is one of the swarm."""

    peer: str
    prefix: str = ALL
    known: bool = False


class PeerBounds(NamedTuple):
    """Of one thing: for a peer, for an address prefix, in all."""

    peer: float
    prefix: float
    all: float

    def times(self, factor: float) -> PeerBounds:
        """All bounds multiplied by a factor."""
        return PeerBounds(self.peer * factor, self.prefix * factor, self.all * factor)

    def reach(self, caller: RemotePeer) -> tuple[float, float, float]:
        """What this caller may reach of each."""
        return (self.peer, self.prefix, self.all if caller.known else self.all * (1 - RESERVE))


class ConcurrencyBudget:
    """Something of which a bounded amount may be held at once: open streams, running calls, bytes in memory.

    Args:
        bounds: how much.
    """

    def __init__(self, bounds: PeerBounds) -> None:
        self.bounds = bounds
        self._peers: Counter[str] = Counter()
        self._prefixes: Counter[str] = Counter()
        self.total = 0

    def try_acquire(self, caller: RemotePeer, amount: int = 1) -> bool:
        """Hold so much for a caller. False, and nothing held, where that is too much."""
        peer, prefix, everything = self.bounds.reach(caller)
        if (
            self._peers[caller.peer] + amount > peer
            or self._prefixes[caller.prefix] + amount > prefix
            or self.total + amount > everything
        ):
            self._forget(caller)
            return False
        self._add(caller, amount)
        return True

    def give_back(self, caller: RemotePeer, amount: int = 1) -> None:
        """Let go of what `take` has held."""
        self._add(caller, -amount)
        self._forget(caller)

    def _add(self, caller: RemotePeer, amount: int) -> None:
        self._peers[caller.peer] += amount
        self._prefixes[caller.prefix] += amount
        self.total += amount

    def _forget(self, caller: RemotePeer) -> None:
        if not self._peers[caller.peer]:
            del self._peers[caller.peer]
        if not self._prefixes[caller.prefix]:
            del self._prefixes[caller.prefix]


class Flow:
    """Something that comes back with time: calls, bytes, seconds of processor time.

    Args:
        per_s: how much each second.
        burst_s: so many seconds' worth may come at once.
        now: a monotone clock in seconds.
    """

    def __init__(self, per_s: PeerBounds, burst_s: float, now: TimeSource = time.monotonic) -> None:
        self._burst = per_s.times(burst_s)
        bursts = zip(self._burst, per_s, strict=True)
        self._peers, self._prefixes, self._all = (TokenBuckets(burst, rate, now) for burst, rate in bursts)

    def try_charge(self, caller: RemotePeer, amount: float = 1.0) -> bool:
        """Charge a caller. False, and nothing charged, where it has not so much left."""
        if not self.has(caller, amount):
            return False
        self.charge(caller, amount)
        return True

    def has(self, caller: RemotePeer, amount: float = 0.0) -> bool:
        """Has a caller so much left?"""
        reserve = 0.0 if caller.known else self._burst.all * RESERVE
        return (
            amount <= self._peers.left(caller.peer)
            and amount <= self._prefixes.left(caller.prefix)
            and amount <= self._all.left(ALL) - reserve
        )

    def charge(self, caller: RemotePeer, amount: float) -> None:
        """Charge a caller for what it has had, though that be more than it had left."""
        self._peers.charge(caller.peer, amount)
        self._prefixes.charge(caller.prefix, amount)
        self._all.charge(ALL, amount)
