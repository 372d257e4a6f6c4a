"""Room for records, shared: three quarters for peers that the swarm knows, one for newcomers.

Each side may use what the other leaves free, and gives it back when the other wants it, but for newcomers where a bound
of their own is given. Within a side, who comes first stays (`swarmd.dht.store.seniority`); but of peers that the swarm
knows a small record comes before all large ones, for there is room for thousands of small ones: else some sixty with
more rounds than a young member would leave it none. Under one key a record has the name of its owner.

Those who have not even worked cost nothing and could be any number. They have a small part of their own, however much
is free: all that a node does with a key (verifying, sending, decoding, ranking) grows with what lies under it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from swarmd.dht.store.seniority import Rank

KEY_BYTES_MAX = 3 * 1024 * 1024  # of all records under one key: they are read as one message of at most 4 MiB
NEWCOMERS_SHARE = 0.25
IDLE_SHARE = 1 / 16  # what those who have not worked may have at most
IDLE_BYTES_MIN = 1024  # that each of their records counts as in it: so there are 192 of them under a key


_Order = tuple[bool, bool, Rank]
_IDLE = "idle"  # of newcomers those who have not worked


def _order_of(rank: Rank) -> _Order:
    """Sort key of a record: the higher is kept."""
    return rank.known and rank.small, not rank.idle, rank


class KeyCapacity:
    """Sizes and ranks of records by name.

    Args:
        bytes_max: of all of them.
        newcomers_bytes_max: of those of newcomers, also where more is free.
        idle_bytes_max: of those of newcomers who have not worked; `IDLE_SHARE` of all where none is given.
    """

    def __init__(
        self, bytes_max: int, newcomers_bytes_max: int | None = None, idle_bytes_max: int | None = None
    ) -> None:
        self._bytes_max = bytes_max
        self._idle_bytes_max = int(bytes_max * IDLE_SHARE) if idle_bytes_max is None else idle_bytes_max
        self._newcomers_bytes_max = bytes_max if newcomers_bytes_max is None else newcomers_bytes_max
        self._kept: dict[str, tuple[int, Rank]] = {}  # owner → size, rank
        self._sides: dict[bool, list[tuple[_Order, str]]] = {True: [], False: []}  # known → lowest first
        self._bytes: dict[bool | str, int] = {True: 0, False: 0, _IDLE: 0}

    @property
    def size_bytes(self) -> int:
        """Total size of all records in bytes."""
        return self._bytes[True] + self._bytes[False]

    @property
    def ranks(self) -> dict[str, Rank]:
        """Rank of each owner."""
        return {owner: rank for owner, (_, rank) in self._kept.items()}

    def put(self, owner: str, size: int, rank: Rank) -> None:
        """Note a record in the place of what the owner had."""
        self.drop(owner)
        self._kept[owner] = (size, rank)
        insort(self._sides[rank.known], (_order_of(rank), owner))
        _count(self._bytes, size, rank)

    def drop(self, owner: str) -> None:
        """Forget a record."""
        size, rank = self._kept.pop(owner, (0, None))
        if rank is None:
            return
        side = self._sides[rank.known]
        del side[bisect_left(side, (_order_of(rank), owner))]
        _count(self._bytes, size, rank, -1)

    def admit(self, owner: str, size: int, rank: Rank) -> list[str] | None:
        """Note a record where there is room for it. Returns whose records must go for it; None when it must wait."""
        gone = self.find(owner, size, rank)
        if gone is None:
            return None
        for other in gone:
            self.drop(other)
        self.put(owner, size, rank)
        return gone

    def rank_anew(self, rounds_of: Callable[[str], int]) -> None:
        """Take over how many rounds each owner was credited for by now."""
        for owner, (size, rank) in list(self._kept.items()):
            self.put(owner, size, rank._replace(rounds=rounds_of(owner)))

    def keep_only(self, owners: Iterable[str]) -> None:
        """Forget all records but those named."""
        for owner in self._kept.keys() - set(owners):
            self.drop(owner)

    def find(self, owner: str, size: int, rank: Rank) -> list[str] | None:
        """Owners whose records must go to make room for one of this size and rank; None when it must wait itself."""
        own = self._kept.get(owner)
        held = dict(self._bytes)
        if own is not None:
            _count(held, *own, -1)
        at, gone = {True: 0, False: 0}, list[str]()
        while (narrow := self._is_narrow(held, size, rank)) or held[True] + held[False] + size > self._bytes_max:
            other = not rank.known
            side = other if held[other] > self._share(other) and not narrow else rank.known
            if at[side] >= len(self._sides[side]):
                return None
            lowest, loser = self._sides[side][at[side]]
            at[side] += 1
            if loser == owner:
                continue
            if side == rank.known and lowest >= _order_of(rank):
                return None
            gone.append(loser)
            _count(held, *self._kept[loser], -1)
        return gone

    def _is_narrow(self, held: dict[bool | str, int], size: int, rank: Rank) -> bool:
        """Have newcomers, or those of them who have not worked, no room of their own for one more?"""
        if rank.known:
            return False
        idle_full = rank.idle and held[_IDLE] + max(size, IDLE_BYTES_MIN) > self._idle_bytes_max
        return idle_full or held[False] + size > self._newcomers_bytes_max

    def _share(self, known: bool) -> float:
        return self._bytes_max * (1 - NEWCOMERS_SHARE if known else NEWCOMERS_SHARE)


def _count(held: dict[bool | str, int], size: int, rank: Rank, sign: int = 1) -> None:
    """Add a record to what its side holds, or take it away."""
    held[rank.known] += sign * size
    if rank.idle:
        held[_IDLE] += sign * max(size, IDLE_BYTES_MIN)
