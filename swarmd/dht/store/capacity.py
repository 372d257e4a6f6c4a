"""Capacity for records: per key, and for all keys together.

- Three quarters of the capacity are for credited peers, one quarter for newcomers. Each group may use what the other
  leaves free, and returns it when the other needs it; newcomers may also have a fixed bound.
- Within a group the records of higher rank stay (`swarmd.dht.store.seniority`). But a small record of a credited peer
  comes before all large ones, because thousands of small ones fit: otherwise some sixty peers with more rounds would
  leave no room for a recent member. Under one key a record is named by its owner.
- Peers without proof of work cost nothing and can be any number. They get a small part of their own, however much is
  free: all work on a key (verifying, sending, decoding, ranking) grows with what is stored under it.
- Keys cost nothing: there is one for each round and stage, and one of memberships for each epoch and number of shards.
  So the latest few records of each owner and kind are kept, and all records compete for the total capacity by rank,
  like those under one key.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from swarmd.dht.store.seniority import Rank
from swarmd.dht.wire import records
from swarmd.errors import RecordRejected

KEY_BYTES_MAX = 3 * 1024 * 1024  # of all records under one key: they are read as one message of at most 4 MiB
NEWCOMERS_SHARE = 0.25
IDLE_SHARE = 1 / 16  # largest share of peers without proof of work
IDLE_BYTES_MIN = 1024  # minimum that each of their records counts for, so that there are at most 192 under a key


_Order = tuple[bool, bool, Rank]
_IDLE = "idle"  # newcomers without proof of work

STAGES_MAX = 8  # reports, rollouts, or leaderboards kept of one owner, which renews its latest three
MEMBERSHIPS_MAX = 4  # of one owner: in the current, previous and next shard, and under the unsharded key
RECORD_BYTES = 2048  # memory of a record besides its value: its entries here, in its key, and in hivemind's heaps


def _sort_key_of(rank: Rank) -> _Order:
    """Return a record's sort key: the highest records are kept."""
    return rank.is_credited and rank.small, not rank.no_proof_of_work, rank


K = TypeVar("K", str, tuple[bytes, str])  # the name of a record: its owner, or key id and owner


class KeyCapacity(Generic[K]):
    """Sizes and ranks of records by name, and the rule which of them are dropped. `newcomers_bytes_max`: bound on
    newcomers' records, even if more is free; None for no such bound."""

    def __init__(self, bytes_max: int, newcomers_bytes_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._idle_bytes_max = int(bytes_max * IDLE_SHARE)
        self._newcomers_bytes_max = bytes_max if newcomers_bytes_max is None else newcomers_bytes_max
        self._kept: dict[K, tuple[int, Rank]] = {}  # owner → size, rank
        self._sides: dict[bool, list[tuple[_Order, K]]] = {True: [], False: []}  # is credited → records, lowest first
        self._bytes: dict[bool | str, int] = {True: 0, False: 0, _IDLE: 0}

    @property
    def size_bytes(self) -> int:
        return self._bytes[True] + self._bytes[False]

    @property
    def ranks(self) -> dict[K, Rank]:
        return {owner: rank for owner, (_, rank) in self._kept.items()}

    def put(self, owner: K, size: int, rank: Rank) -> None:
        self.drop(owner)
        self._kept[owner] = (size, rank)
        insort(self._sides[rank.is_credited], (_sort_key_of(rank), owner))
        _add_size(self._bytes, size, rank)

    def drop(self, owner: K) -> None:
        size, rank = self._kept.pop(owner, (0, None))
        if rank is None:
            return
        side = self._sides[rank.is_credited]
        del side[bisect_left(side, (_sort_key_of(rank), owner))]
        _add_size(self._bytes, size, rank, -1)

    def try_put(self, owner: K, size: int, rank: Rank) -> list[K] | None:
        """Add a record if there is room. Returns the owners whose records were dropped for it; None if refused."""
        gone = self.find_displaced(owner, size, rank)
        if gone is None:
            return None
        for other in gone:
            self.drop(other)
        self.put(owner, size, rank)
        return gone

    def update_ranks(self, rounds_of: Callable[[K], int]) -> None:
        """Update the number of rounds that each owner was credited for."""
        for owner, (size, rank) in list(self._kept.items()):
            if (rounds := rounds_of(owner)) != rank.rounds:
                self.put(owner, size, rank._replace(rounds=rounds))

    def keep_only(self, owners: Iterable[K]) -> None:
        for owner in self._kept.keys() - set(owners):
            self.drop(owner)

    def find_displaced(self, owner: K, size: int, rank: Rank) -> list[K] | None:
        """Return the owners whose records such a record would displace; None if it is refused itself."""
        own = self._kept.get(owner)
        held = dict(self._bytes)
        if own is not None:
            _add_size(held, *own, -1)
        at, gone = {True: 0, False: 0}, list[K]()
        while (narrow := self._exceeds_newcomers_bound(held, size, rank)) or self._exceeds_bound(held, size):
            other = not rank.is_credited
            side = other if held[other] > self._guaranteed_bytes(other) and not narrow else rank.is_credited
            if at[side] >= len(self._sides[side]):
                return None
            lowest, loser = self._sides[side][at[side]]
            at[side] += 1
            if loser == owner:
                continue
            if side == rank.is_credited and lowest >= _sort_key_of(rank):
                return None
            gone.append(loser)
            _add_size(held, *self._kept[loser], -1)
        return gone

    def _exceeds_bound(self, held: dict[bool | str, int], size: int) -> bool:
        return held[True] + held[False] + size > self._bytes_max

    def _exceeds_newcomers_bound(self, held: dict[bool | str, int], size: int, rank: Rank) -> bool:
        """Return whether a record exceeds the bound for newcomers, or that for newcomers without proof of work."""
        if rank.is_credited:
            return False
        idle_full = rank.no_proof_of_work and held[_IDLE] + max(size, IDLE_BYTES_MIN) > self._idle_bytes_max
        return idle_full or held[False] + size > self._newcomers_bytes_max

    def _guaranteed_bytes(self, known: bool) -> float:
        return self._bytes_max * (1 - NEWCOMERS_SHARE if known else NEWCOMERS_SHARE)


def _add_size(held: dict[bool | str, int], size: int, rank: Rank, sign: int = 1) -> None:
    """Add a record's size to the totals of its group; with `sign=-1`, subtract it."""
    held[rank.is_credited] += sign * size
    if rank.no_proof_of_work:
        held[_IDLE] += sign * max(size, IDLE_BYTES_MIN)


Place = tuple[bytes, str]  # (key id, owner)


class TotalCapacity:
    """Capacity for the records under all keys together."""

    def __init__(self, bytes_max: int) -> None:
        self._room: KeyCapacity[Place] = KeyCapacity(bytes_max, int(bytes_max * NEWCOMERS_SHARE))
        self._latest: dict[tuple[str, type], dict[bytes, tuple[float, float]]] = {}  # (owner, kind) → key → recency
        self._kinds: dict[Place, type] = {}

    @property
    def size_bytes(self) -> int:
        """Size of all records in bytes, including the memory that they use besides their values."""
        return self._room.size_bytes

    def would_displace(self, key: bytes, signed: records.SignedRecord, rank: Rank) -> bool:
        """Return whether this record would displace another; then expired records should be removed first."""
        return self._room.find_displaced((key, signed.owner), _memory_bytes(signed), rank) != []

    def find_displaced(self, key: bytes, signed: records.SignedRecord, rank: Rank) -> list[Place]:
        """Return the records that this one displaces. Raises RecordRejected("full") if it is refused itself."""
        older = self._oldest_key_to_drop(key, signed)
        gone = self._room.find_displaced((older or key, signed.owner), _memory_bytes(signed), rank)
        if gone is None:
            raise RecordRejected("full", f"this node holds {self.size_bytes} bytes of those who come first")
        return [*([(older, signed.owner)] if older else []), *gone]

    def _oldest_key_to_drop(self, key: bytes, signed: records.SignedRecord) -> bytes | None:
        """Return the key of the owner's own record that this one replaces, if any. Raises RecordRejected("full")."""
        kind = type(signed.content)
        latest = self._latest.get((signed.owner, kind), {})
        most = MEMBERSHIPS_MAX if kind is records.Membership else STAGES_MAX
        if key in latest or len(latest) < most:
            return None
        oldest = min(latest, key=lambda each: latest[each])
        if latest[oldest] > _recency_of(signed):
            raise RecordRejected("full", f"{most} later ones of {signed.owner} are held")
        return oldest

    def put(self, key: bytes, signed: records.SignedRecord, rank: Rank) -> None:
        kind = type(signed.content)
        self._room.put((key, signed.owner), _memory_bytes(signed), rank)
        if kind is not records.ClockRecord:  # a clock has only one key
            self._kinds[key, signed.owner] = kind
            self._latest.setdefault((signed.owner, kind), {})[key] = _recency_of(signed)

    def drop(self, key: bytes, owner: str) -> None:
        self._room.drop((key, owner))
        kind = self._kinds.pop((key, owner), None)
        if kind is not None:
            latest = self._latest[owner, kind]
            del latest[key]
            if not latest:
                del self._latest[owner, kind]

    def keep_only(self, held: Iterable[Place]) -> None:
        for place in self._room.ranks.keys() - set(held):
            self.drop(*place)

    def update_ranks(self, rounds_of: Callable[[str], int]) -> None:
        """Update the number of rounds that each owner was credited for."""
        self._room.update_ranks(lambda place: rounds_of(place[1]))


def _memory_bytes(signed: records.SignedRecord) -> int:
    return len(signed.value) + RECORD_BYTES


def _recency_of(signed: records.SignedRecord) -> tuple[float, float]:
    """Return a sort key among an owner's records of one kind: round and stage; for memberships the expiration."""
    content = signed.content
    if isinstance(content, records.ReportRecord | records.RolloutsRecord):
        return content.round, content.stage
    return (content.round, 0) if isinstance(content, records.LeaderboardRecord) else (signed.expiration, 0)
