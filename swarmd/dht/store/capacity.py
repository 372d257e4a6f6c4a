"""Room for records: under one key, and under all keys together.

- Room is shared: three quarters for peers that the swarm knows, one for newcomers. Each side may use what the other
  leaves free, and gives it back when the other wants it, but for newcomers if a bound of their own is given.
- Within a side, who comes first stays (`swarmd.dht.store.seniority`); but of peers that the swarm knows a small record
  comes before all large ones, for there is room for thousands of small ones: else some sixty with more rounds than a
  young member would leave it none. Under one key a record has the name of its owner.
- Those who have not even worked cost nothing and could be any number. They have a small part of their own, however much
  is free: all that a node does with a key (verifying, sending, decoding, ranking) grows with what lies under it.
- A key costs nothing: there is one for each round and stage, and for each epoch and number of shards one of
  memberships. So of each owner and kind the latest few are kept, and all records share the room by the rank of their
  owners, as those of one key do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from swarmd.dht.store.seniority import Rank
from swarmd.dht.wire.records import (
    ClockRecord,
    LeaderboardRecord,
    Membership,
    ReportRecord,
    RolloutsRecord,
    SignedRecord,
)
from swarmd.errors import RecordRejected

KEY_BYTES_MAX = 3 * 1024 * 1024  # of all records under one key: they are read as one message of at most 4 MiB
NEWCOMERS_SHARE = 0.25
IDLE_SHARE = 1 / 16  # what those who have not worked may have at most
IDLE_BYTES_MIN = 1024  # that each of their records counts as in it: so there are 192 of them under a key


_Order = tuple[bool, bool, Rank]
_IDLE = "idle"  # of newcomers those who have not worked

STAGES_MAX = 8  # of one owner's reports, rollouts, or leaderboards; owners renew their latest three
MEMBERSHIPS_MAX = 4  # of one owner: where they lie, lay and will lie, and under the one key of all
RECORD_BYTES = 2048  # what a record costs beside its value: its entries here, in its key, and in hivemind's heaps


def _order_of(rank: Rank) -> _Order:
    """Sort key of a record: the higher is kept."""
    return rank.is_credited and rank.small, not rank.no_proof_of_work, rank


K = TypeVar("K", str, tuple[bytes, str])  # the name of a record: its owner, or key id and owner


class KeyCapacity(Generic[K]):
    """Sizes and ranks of records by name.

    Args:
        bytes_max: of all of them.
        newcomers_bytes_max: of those of newcomers, also where more is free.
    """

    def __init__(self, bytes_max: int, newcomers_bytes_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._idle_bytes_max = int(bytes_max * IDLE_SHARE)
        self._newcomers_bytes_max = bytes_max if newcomers_bytes_max is None else newcomers_bytes_max
        self._kept: dict[K, tuple[int, Rank]] = {}  # owner → size, rank
        self._sides: dict[bool, list[tuple[_Order, K]]] = {True: [], False: []}  # known → lowest first
        self._bytes: dict[bool | str, int] = {True: 0, False: 0, _IDLE: 0}

    @property
    def size_bytes(self) -> int:
        """Total size of all records in bytes."""
        return self._bytes[True] + self._bytes[False]

    @property
    def ranks(self) -> dict[K, Rank]:
        """Rank of each owner."""
        return {owner: rank for owner, (_, rank) in self._kept.items()}

    def put(self, owner: K, size: int, rank: Rank) -> None:
        """Note a record in the place of what the owner had."""
        self.drop(owner)
        self._kept[owner] = (size, rank)
        insort(self._sides[rank.is_credited], (_order_of(rank), owner))
        _count(self._bytes, size, rank)

    def drop(self, owner: K) -> None:
        """Forget a record."""
        size, rank = self._kept.pop(owner, (0, None))
        if rank is None:
            return
        side = self._sides[rank.is_credited]
        del side[bisect_left(side, (_order_of(rank), owner))]
        _count(self._bytes, size, rank, -1)

    def admit(self, owner: K, size: int, rank: Rank) -> list[K] | None:
        """Note a record where there is room for it. Returns whose records must go for it; None when it must wait."""
        gone = self.find(owner, size, rank)
        if gone is None:
            return None
        for other in gone:
            self.drop(other)
        self.put(owner, size, rank)
        return gone

    def rank_anew(self, rounds_of: Callable[[K], int]) -> None:
        """Take over how many rounds each owner was credited for by now."""
        for owner, (size, rank) in list(self._kept.items()):
            if (rounds := rounds_of(owner)) != rank.rounds:
                self.put(owner, size, rank._replace(rounds=rounds))

    def keep_only(self, owners: Iterable[K]) -> None:
        """Forget all records but those named."""
        for owner in self._kept.keys() - set(owners):
            self.drop(owner)

    def find(self, owner: K, size: int, rank: Rank) -> list[K] | None:
        """Owners whose records must go to make room for one of this size and rank; None when it must wait itself."""
        own = self._kept.get(owner)
        held = dict(self._bytes)
        if own is not None:
            _count(held, *own, -1)
        at, gone = {True: 0, False: 0}, list[K]()
        while (narrow := self._is_narrow(held, size, rank)) or held[True] + held[False] + size > self._bytes_max:
            other = not rank.is_credited
            side = other if held[other] > self._share(other) and not narrow else rank.is_credited
            if at[side] >= len(self._sides[side]):
                return None
            lowest, loser = self._sides[side][at[side]]
            at[side] += 1
            if loser == owner:
                continue
            if side == rank.is_credited and lowest >= _order_of(rank):
                return None
            gone.append(loser)
            _count(held, *self._kept[loser], -1)
        return gone

    def _is_narrow(self, held: dict[bool | str, int], size: int, rank: Rank) -> bool:
        """Have newcomers, or those of them who have not worked, no room of their own for one more?"""
        if rank.is_credited:
            return False
        idle_full = rank.no_proof_of_work and held[_IDLE] + max(size, IDLE_BYTES_MIN) > self._idle_bytes_max
        return idle_full or held[False] + size > self._newcomers_bytes_max

    def _share(self, known: bool) -> float:
        return self._bytes_max * (1 - NEWCOMERS_SHARE if known else NEWCOMERS_SHARE)


def _count(held: dict[bool | str, int], size: int, rank: Rank, sign: int = 1) -> None:
    """Add a record to what its side holds, or take it away."""
    held[rank.is_credited] += sign * size
    if rank.no_proof_of_work:
        held[_IDLE] += sign * max(size, IDLE_BYTES_MIN)


Place = tuple[bytes, str]  # (key id, owner)


class TotalCapacity:
    """Who has how much of it."""

    def __init__(self, bytes_max: int) -> None:
        self._room: KeyCapacity[Place] = KeyCapacity(bytes_max, int(bytes_max * NEWCOMERS_SHARE))
        self._latest: dict[tuple[str, type], dict[bytes, tuple[float, float]]] = {}  # owner, kind → key → how late
        self._kinds: dict[Place, type] = {}

    @property
    def size_bytes(self) -> int:
        """Of all records, with what they cost beside their values."""
        return self._room.size_bytes

    def is_filling(self, key: bytes, signed: SignedRecord, rank: Rank) -> bool:
        """Would some have to go for this one, or it wait? Then what has expired is not to be counted any more."""
        return self._room.find((key, signed.owner), _size(signed), rank) != []

    def find(self, key: bytes, signed: SignedRecord, rank: Rank) -> list[Place]:
        """The records that must go to make room for this one.

        Raises:
            RecordRejected: "full" where it must wait itself.
        """
        older = self._too_old(key, signed)
        gone = self._room.find((older or key, signed.owner), _size(signed), rank)
        if gone is None:
            raise RecordRejected("full", f"this node holds {self.size_bytes} bytes of those who come first")
        return [*([(older, signed.owner)] if older else []), *gone]

    def _too_old(self, key: bytes, signed: SignedRecord) -> bytes | None:
        """The key of the owner's record that gives way to this one. Raises RecordRejected("full")."""
        kind = type(signed.content)
        latest, most = self._latest.get((signed.owner, kind), {}), MEMBERSHIPS_MAX if kind is Membership else STAGES_MAX
        if key in latest or len(latest) < most:
            return None
        oldest = min(latest, key=lambda each: latest[each])
        if latest[oldest] > _lateness_of(signed):
            raise RecordRejected("full", f"{most} later ones of {signed.owner} are held")
        return oldest

    def put(self, key: bytes, signed: SignedRecord, rank: Rank) -> None:
        """Note a record in the place of what its owner had under the key."""
        kind = type(signed.content)
        self._room.put((key, signed.owner), _size(signed), rank)
        if kind is not ClockRecord:  # of which there is one key
            self._kinds[key, signed.owner] = kind
            self._latest.setdefault((signed.owner, kind), {})[key] = _lateness_of(signed)

    def drop(self, key: bytes, owner: str) -> None:
        """Forget a record."""
        self._room.drop((key, owner))
        kind = self._kinds.pop((key, owner), None)
        if kind is not None:
            latest = self._latest[owner, kind]
            del latest[key]
            if not latest:
                del self._latest[owner, kind]

    def keep_only(self, held: Iterable[Place]) -> None:
        """Forget what has expired."""
        for place in self._room.ranks.keys() - set(held):
            self.drop(*place)

    def rank_anew(self, rounds_of: Callable[[str], int]) -> None:
        """Rank all by whom the swarm knows now."""
        self._room.rank_anew(lambda place: rounds_of(place[1]))


def _size(signed: SignedRecord) -> int:
    return len(signed.value) + RECORD_BYTES


def _lateness_of(signed: SignedRecord) -> tuple[float, float]:
    """Sort key among an owner's records of a kind: round and stage; of memberships those expire last that are renewed,
    and any epoch may be claimed."""
    content = signed.content
    if isinstance(content, ReportRecord | RolloutsRecord):
        return content.round, content.stage
    return (content.round, 0) if isinstance(content, LeaderboardRecord) else (signed.expiration, 0)
