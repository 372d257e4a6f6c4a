"""The room for the records of all keys together, whoever writes how many keys.

A key costs nothing: there is one for each round and stage, and for each epoch and number of shards one of memberships.
So of each owner and kind the latest few are kept, and all records share the room by the rank of their owners, as those
of one key do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from swarmd.dht.store.key_capacity import NEWCOMERS_SHARE, KeyCapacity
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

STAGES_MAX = 8  # of one owner's reports, rollouts, or leaderboards; owners renew their latest three
MEMBERSHIPS_MAX = 4  # of one owner: where they lie, lay and will lie, and under the one key of all
RECORD_BYTES = 2048  # what a record costs beside its value: its entries here, in its key, and in hivemind's heaps

Place = tuple[bytes, str]  # (key id, owner)
_KEY_DIGITS = 40


class TotalCapacity:
    """Who has how much of it.

    Args:
        bytes_max: of all records.
    """

    def __init__(self, bytes_max: int) -> None:
        self._newcomers_bytes_max = int(bytes_max * NEWCOMERS_SHARE)
        self._room = KeyCapacity(bytes_max, self._newcomers_bytes_max)
        self._latest: dict[tuple[str, type], dict[bytes, tuple[float, float]]] = {}  # owner, kind → key → how late
        self._kinds: dict[Place, type] = {}

    @property
    def size_bytes(self) -> int:
        """Of all records, with what they cost beside their values."""
        return self._room.size_bytes

    def is_filling(self, key: bytes, signed: SignedRecord, rank: Rank) -> bool:
        """Would some have to go for this one, or it wait? Then what has expired is not to be counted any more."""
        return self._room.find(_name(key, signed.owner), _size(signed), rank) != []

    def find(self, key: bytes, signed: SignedRecord, rank: Rank) -> list[Place]:
        """The records that must go to make room for this one.

        Raises:
            RecordRejected: "full" where it must wait itself.
        """
        older = self._too_old(key, signed)
        gone = self._room.find(_name(older or key, signed.owner), _size(signed), rank)
        if gone is None:
            raise RecordRejected("full", f"this node holds {self.size_bytes} bytes of those who come first")
        return [*([(older, signed.owner)] if older else []), *map(_place, gone)]

    def _too_old(self, key: bytes, signed: SignedRecord) -> bytes | None:
        """The key of the owner's record that gives way to this one. Raises RecordRejected("full")."""
        kind = type(signed.content)
        latest, most = self._latest.get((signed.owner, kind), {}), _most_of(kind)
        if key in latest or len(latest) < most:
            return None
        oldest = min(latest, key=lambda each: latest[each])
        if latest[oldest] > _lateness_of(signed):
            raise RecordRejected("full", f"{most} later ones of {signed.owner} are held")
        return oldest

    def put(self, key: bytes, signed: SignedRecord, rank: Rank) -> None:
        """Note a record in the place of what its owner had under the key."""
        kind = type(signed.content)
        self._room.put(_name(key, signed.owner), _size(signed), rank)
        if kind is not ClockRecord:  # of which there is one key
            self._kinds[key, signed.owner] = kind
            self._latest.setdefault((signed.owner, kind), {})[key] = _lateness_of(signed)

    def drop(self, key: bytes, owner: str) -> None:
        """Forget a record."""
        self._room.drop(_name(key, owner))
        kind = self._kinds.pop((key, owner), None)
        if kind is not None:
            latest = self._latest[owner, kind]
            del latest[key]
            if not latest:
                del self._latest[owner, kind]

    def keep_only(self, held: Iterable[Place]) -> None:
        """Forget what has expired."""
        names = {_name(*place) for place in held}
        for name in self._room.ranks.keys() - names:
            self.drop(*_place(name))

    def rank_anew(self, rounds_of: Callable[[str], int], sizes: Mapping[Place, int]) -> None:
        """Rank all by whom the swarm knows now."""
        for name, rank in self._room.ranks.items():
            place = _place(name)
            rounds = rounds_of(place[1])
            if rounds != rank.rounds and place in sizes:
                self._room.put(name, sizes[place] + RECORD_BYTES, rank._replace(rounds=rounds))


def _name(key: bytes, owner: str) -> str:
    return key.hex() + owner


def _place(name: str) -> Place:
    return bytes.fromhex(name[:_KEY_DIGITS]), name[_KEY_DIGITS:]


def _size(signed: SignedRecord) -> int:
    return len(signed.value) + RECORD_BYTES


def _most_of(kind: type) -> int:
    return MEMBERSHIPS_MAX if kind is Membership else STAGES_MAX


def _lateness_of(signed: SignedRecord) -> tuple[float, float]:
    """Sort key among an owner's records of a kind: round and stage; of memberships those expire last that are renewed,
    and any epoch may be claimed."""
    content = signed.content
    if isinstance(content, ReportRecord | RolloutsRecord):
        return content.round, content.stage
    return (content.round, 0) if isinstance(content, LeaderboardRecord) else (signed.expiration, 0)
