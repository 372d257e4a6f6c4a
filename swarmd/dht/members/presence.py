"""Who takes part, as a node tells its daemon: bounded news of comings, returns and leavings. No hivemind in it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from swarmd.core.coordinator.coordination import IDLE_MEMBERS_MAX
from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.dht.store.seniority import Rank, pick
from swarmd.dht.wire.records import PAST_S
from swarmd.worker.runtime import TimeSource

NEWCOMERS_BURST, NEWCOMERS_PER_S = 256.0, 2.0  # peers without credit whose coming or return is told
IDLE_BURST, IDLE_PER_S = 64.0, 0.2  # of those that have not worked
RETURNS_BURST, RETURNS_PER_S = 4.0, 1 / 30  # of one peer: leaving and coming back costs it nothing


class Presence(NamedTuple):
    """What is known of a member."""

    here: bool  # False: it has left
    until: float  # expiration of its latest record: whoever is here writes another before


class Presences:
    """The members that a node knows, by their records.

    Args:
        now: a monotone clock in seconds.
    """

    def __init__(self, now: TimeSource = time.monotonic) -> None:
        self.known: dict[str, Presence] = {}
        self.here = 0  # of them, those that are present
        self._earliest = math.inf  # none of their records expires before
        self._unworked: set[str] = set()  # of them, who had not done the work that every node does when they came
        self._newcomers = TokenBuckets(NEWCOMERS_BURST, NEWCOMERS_PER_S, now)
        self._idle = TokenBuckets(IDLE_BURST, IDLE_PER_S, now)
        self._returns = TokenBuckets(RETURNS_BURST, RETURNS_PER_S, now, MEMBERS_MAX)

    @property
    def workers(self) -> int:
        """Members that are present and have done the work that every node does, or need not: of others there may be any
        number, and nothing is to depend on that."""
        return self.here - sum([self.known[peer].here for peer in self._unworked])

    def choose(self, ranks: Mapping[str, Rank]) -> list[str]:
        """Of peers that are not known yet, those that may come now: who comes first, and no more than so many."""
        return pick(ranks, self._charge_coming)

    def _charge_coming(self, rank: Rank) -> bool:
        """Charge the coming of somebody unknown to the quota of its kind. Returns whether that had any left."""
        return rank.known or (self._newcomers if rank.worked else self._idle).try_charge("")

    def note(self, peer: str, here: bool, until: float, rank: Callable[[], Rank]) -> bool | None:
        """Take note of a member's record.

        Args:
            until: the record's expiration.
            rank: gives the record's rank, which a return is asked for.

        Returns:
            True to be told as a coming, False as a leaving, None not at all: it is known, or comes back too often;
            then it is told when there is time for it and the record is still there.
        """
        before = self.known.get(peer)
        if before is None and not (here and self._make_room(rank())):
            return None
        if before is None and not rank().awaited:
            self._unworked.add(peer)
        returns = here and before is not None and not before.here
        if returns and not (self._returns.try_charge(peer) and self._charge_coming(rank())):
            self._set(peer, Presence(False, until))
            return None
        self._set(peer, Presence(here, until))
        return None if (before is not None and before.here) == here else here

    def _set(self, peer: str, presence: Presence) -> None:
        before = self.known.get(peer)
        self.here += presence.here - (before is not None and before.here)
        self._earliest = min(self._earliest, presence.until)
        self.known[peer] = presence

    def _make_room(self, rank: Rank) -> bool:
        """Let those who have left make room for one more; those that have not worked have few places.

        Returns whether there is room.
        """
        if len(self.known) >= MEMBERS_MAX:
            self.forget([peer for peer, known in self.known.items() if not known.here])
        if not rank.awaited and len(self._unworked) >= IDLE_MEMBERS_MAX:
            self.forget([peer for peer in self._unworked if not self.known[peer].here])
        return len(self.known) < MEMBERS_MAX and (rank.awaited or len(self._unworked) < IDLE_MEMBERS_MAX)

    def forget_gone(self, now: float) -> list[str]:
        """Forget whose record has expired at `now` (POSIX seconds): it would have written another long before.

        Returns:
            Those who were here, which is to be told.
        """
        if self._earliest >= now - PAST_S:
            return []  # asked after each read, of a single member too
        gone = self.forget([peer for peer, known in self.known.items() if known.until < now - PAST_S])
        self._earliest = min((known.until for known in self.known.values()), default=math.inf)
        return gone

    def forget(self, peers: Iterable[str]) -> list[str]:
        """Forget members. Returns those who were here, which is to be told."""
        gone = list(peers)
        self._unworked.difference_update(gone)
        told = [peer for peer in gone if self.known.pop(peer).here]
        self.here -= len(told)
        return told
