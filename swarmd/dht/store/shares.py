"""Which of the peers that keep a key is asked for whose records, so that each record comes once. No hivemind in it."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable

from swarmd.dht.wire.find_parts import OWNERS_MAX

TRIES_MAX = 3  # peers that are asked for one owner's record in one look-up; who looks again asks others


class Shares:
    """Owners whose records are looked for, and who was asked for them.

    Args:
        owners: each is asked for at one peer, and at another where that one has nothing of it.
        peers: about so many will be asked, and get equal shares.
        first: of the owners, those who are asked for before all others; any number may have announced what nobody has.
    """

    def __init__(self, owners: Iterable[str], peers: int, first: Collection[str] = ()) -> None:
        self._first = frozenset(first)
        self._open = list(owners)
        random.shuffle(self._open)  # those who look at once ask each peer for different ones
        self._sort()
        self._size = min(OWNERS_MAX, math.ceil(len(self._open) / peers))
        self._asked: defaultdict[str, list[Hashable]] = defaultdict(list)

    def take(self, peer: Hashable) -> tuple[str, ...]:
        """The owners that a peer is asked for now; none where it was asked for all that are left."""
        share = [owner for owner in self._open if peer not in self._asked[owner]][: self._size]
        for owner in share:
            self._asked[owner].append(peer)
        self._open = [owner for owner in self._open if owner not in share]
        return tuple(share)

    def give_back(self, share: Collection[str], shown: Collection[str]) -> None:
        """A peer has answered, or not: others are asked for what it has not shown, a few at most."""
        self._open += [owner for owner in share if owner not in shown and len(self._asked[owner]) < TRIES_MAX]
        self._sort()

    def _sort(self) -> None:
        self._open.sort(key=lambda owner: owner not in self._first)
