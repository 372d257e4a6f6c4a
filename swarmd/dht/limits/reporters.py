"""Whose reports of one stage count, and how often each may change. No hivemind in it."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.limits.change_limit import ChangeLimit
from swarmd.dht.store.seniority import Places, Rank, pick
from swarmd.worker.runtime import TimeSource

NEWCOMERS_MAX = 256  # peers without any credit whose reports count in a stage: those that worked most, then by lot
IDLE_MAX = 16  # of those that have not worked
CHANGES_MAX = 4  # of one peer's report of one stage; an honest one never changes, see `swarmd.dht.wire.evidence`
CHANGES_APART_S = 10.0

T = TypeVar("T", bound=Hashable)


class Reporters(Generic[T]):
    """The peers whose reports of one stage are taken.

    Args:
        now: a monotone clock in seconds.
    """

    def __init__(self, now: TimeSource = time.monotonic) -> None:
        self.peers: set[str] = set()
        self._awaited: set[str] = set()
        self._places = Places(MEMBERS_MAX, NEWCOMERS_MAX, IDLE_MAX)
        self._changes: ChangeLimit[T] = ChangeLimit(CHANGES_MAX, CHANGES_APART_S, now)

    def choose(self, ranks: Mapping[str, Rank]) -> None:
        """Of peers not yet among them, take those whom the swarm knows, and a bounded number of newcomers."""
        chosen = pick(ranks, self._places.try_occupy)
        self.peers.update(chosen)
        self._awaited.update(peer for peer in chosen if ranks[peer].awaited)

    def is_awaited(self, peer: str) -> bool:
        """Whether a stage may wait for this peer's report."""
        return peer in self._awaited

    def admit(self, peer: str, content: T) -> bool:
        """Record a report and return whether it is new. Raises RecordRejected("flood") where it changes too often."""
        return self._changes.admit(peer, content)
