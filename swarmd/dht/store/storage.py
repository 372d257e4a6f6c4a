"""Records that this node stores for others, with bounds that hivemind's own storage does not have.

- `BoundedStorage` keeps the records of higher rank if not all fit, see `swarmd.dht.store.capacity`.
- `ChangeNumbers` numbers stored records, so that a peer that asks again gets only new ones.
- `RecordForwarding` chooses the records to send to a newly met peer.
"""

import secrets
import time
from collections.abc import Collection, Hashable, Iterator
from typing import Any

from swarmd.bounds import RateLimiter
from swarmd.dht.p2p.hivemind_api import DHTID, DHTLocalStorage, DictionaryDHTValue, TimedStorage
from swarmd.dht.store.capacity import KEY_BYTES_MAX, KeyCapacity, TotalCapacity
from swarmd.dht.store.parts import LIFE_BYTES, Cursor
from swarmd.dht.store.seniority import Rank, Seniority, claimed_work
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.dht.wire.records import SignedRecord, is_too_far_ahead
from swarmd.errors import RecordRejected

CHANGES_GHOSTS_MAX = 64  # numbers of dropped records that may remain, besides as many as there are records

KEYS_MAX = 16384
STORED_BYTES_MAX = 32 * 1024 * 1024  # including the memory that records use besides their values
RECOUNT_S = 5.0  # shortest time between two recounts of all records, while there seem to be too many
ENTRY_BYTES = 32  # bytes of a record in a message besides its value: its expiration, and the lengths of its parts
GHOSTS_MAX = 64  # stale entries in hivemind's heap that may remain, besides as many as there are records

MEETINGS_BURST, MEETINGS_PER_S = 16.0, 0.2  # meetings with new peers; each takes 15 µs of processor time per key
HANDED_BYTES_MAX = 4 * 1024 * 1024  # bytes forwarded to one peer
# Bytes of one forwarded key: a message has room for 4 MiB, and a larger one fails as if the peer were unreachable.
HANDED_KEY_BYTES_MAX = 7 * 512 * 1024


class ChangeNumbers:
    """Numbers every stored record, from 1 on; a record that replaces another gets a new number."""

    def __init__(self) -> None:
        self.life = secrets.token_bytes(LIFE_BYTES)  # identifies these numbers
        self.last = 0
        self._numbers: dict[Hashable, dict[str, int]] = {}  # key → owner → number, in ascending order

    def number_change(self, key: Hashable, owner: str, held: Collection[str]) -> None:
        """Number a record that was stored."""
        self.last += 1
        numbers = self._numbers.setdefault(key, {})
        numbers.pop(owner, None)
        numbers[owner] = self.last
        if len(numbers) > 2 * len(held) + CHANGES_GHOSTS_MAX:
            self._numbers[key] = {each: number for each, number in numbers.items() if each in held}

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Drop all keys but these, once most numbered keys are not among them."""
        if len(self._numbers) > 2 * len(keys) + CHANGES_GHOSTS_MAX:
            self._numbers = {key: numbers for key, numbers in self._numbers.items() if key in keys}

    def is_known_cursor(self, cursor: Cursor) -> bool:
        return cursor.life == self.life and cursor.last <= self.last

    def owners_changed_since(self, key: Hashable, cursor: Cursor) -> Iterator[str]:
        """Yield owners whose records were stored after a known cursor, the latest first."""
        for owner, number in reversed(self._numbers.get(key, {}).items()):
            if number <= cursor.last:
                return
            yield owner


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]
    """hivemind's local storage, with bounds."""

    def __init__(self, seniority: Seniority | None = None) -> None:
        super().__init__()
        self.changes = ChangeNumbers()
        self._seniority = seniority or Seniority()
        self._rooms: dict[DHTID, KeyCapacity[str]] = {}
        self._counted: dict[DHTID, tuple[int, float]] = {}  # key → version of the seniority, time of the count
        self._whole = TotalCapacity(STORED_BYTES_MAX)
        self._whole_counted = (0, -RECOUNT_S)  # version of the seniority, time of the count

    def records(self, key: DHTID) -> dict[str, tuple[bytes, float]]:
        """Return owner → (value, expiration) of all unexpired records under a key."""
        self._drop_far_future_records(key)
        held = self.dictionary(key)
        return {} if held is None else {owner: (entry.value, entry.expiration_time) for owner, entry in held.items()}

    def held_entry(self, key: DHTID, owner: str) -> tuple[bytes, float] | None:
        """Return (value, expiration) of an owner's unexpired record."""
        self._drop_far_future_records(key)
        held = self.dictionary(key)
        entry = None if held is None else held.get(owner)
        return None if entry is None else (entry.value, entry.expiration_time)

    def dictionary(self, key: DHTID) -> DictionaryDHTValue | None:
        """Return hivemind's dictionary of the records under a key."""
        item = self.get(key)
        return item.value if item is not None and isinstance(item.value, DictionaryDHTValue) else None

    def store_record(self, key: DHTID, signed: SignedRecord) -> bool:
        """Store a verified record. Returns True if it is stored or was there already. Raises RecordRejected: "stale" if
        a later one of the owner is held, "full" at a bound."""
        value = signed.value
        before = self.held_entry(key, signed.owner)
        if before is not None and before[1] >= signed.expiration:
            if before == (value, signed.expiration):
                return True
            raise RecordRejected("stale", "a later record of the owner is held")
        fresh = self.get(key) is None
        if fresh and len(self) >= KEYS_MAX:
            raise RecordRejected("full", "this node can hold no more keys")
        self._make_room_for(key, signed, fresh)
        stored = bool(self.store_subkey(key, signed.owner, value, signed.expiration))
        if stored:
            self.changes.number_change(key, signed.owner, self.data[key].value.data)
        self._clean_expiration_heaps(key)
        return stored

    def _make_room_for(self, key: DHTID, signed: SignedRecord, fresh: bool) -> None:
        """Add a record to the capacities, and drop those that it displaces. Raises RecordRejected("full")."""
        if fresh or key not in self._rooms:
            self._drop_expired_capacities()
            self._rooms[key] = KeyCapacity(KEY_BYTES_MAX)
            self._count_key(key)
        rank = self._seniority.rank_of(signed, key.to_bytes())
        gone, gone_elsewhere = (
            self._find_displaced_under_key(key, signed, rank),
            self._find_displaced_overall(key, signed, rank),
        )
        for owner in gone:
            self._drop_record(key, owner)
        for other, owner in gone_elsewhere:
            self._drop_record(DHTID.from_bytes(other), owner)
        self._rooms[key].put(signed.owner, len(signed.value), rank)
        self._whole.put(key.to_bytes(), signed, rank)

    def check_capacity(self, key: DHTID, signed: SignedRecord) -> None:
        """Raise RecordRejected("full") if there is no room for a record. Costs a tenth of verifying it."""
        try:
            rank = self._seniority.make_rank(signed.owner, key.to_bytes(), claimed_work(signed), signed.size_bytes)
        except DECODE_ERRORS:
            return  # it cannot be decoded, and will be refused
        if key in self._rooms and self.get(key) is not None:
            self._find_displaced_under_key(key, signed, rank)
        self._find_displaced_overall(key, signed, rank)

    def _find_displaced_under_key(self, key: DHTID, signed: SignedRecord, rank: Rank) -> list[str]:
        """Return the owners whose records under this key it displaces. Raises RecordRejected("full")."""
        room, size = self._rooms[key], len(signed.value)
        gone = room.find_displaced(signed.owner, size, rank)
        if gone != []:
            room = self._recount_key(key)
            gone = room.find_displaced(signed.owner, size, rank)
        if gone is None:
            raise RecordRejected("full", f"the key holds {room.size_bytes} bytes of those who come first")
        return gone

    def _find_displaced_overall(self, key: DHTID, signed: SignedRecord, rank: Rank) -> list[tuple[bytes, str]]:
        """Return (key, owner) of the records under all keys to drop for this one. Raises RecordRejected("full")."""
        if self._whole.would_displace(key.to_bytes(), signed, rank):
            self._recount_total()
        return self._whole.find_displaced(key.to_bytes(), signed, rank)

    def _drop_record(self, key: DHTID, owner: str) -> None:
        self._whole.drop(key.to_bytes(), owner)
        if key in self._rooms:
            self._rooms[key].drop(owner)
        item = self.data.get(key)
        if item is not None and isinstance(item.value, DictionaryDHTValue):
            del item.value[owner]
            if not item.value.data:
                del self[key]

    def _recount_total(self) -> None:
        """Drop expired records and rank the others by current credit, at most every `RECOUNT_S`."""
        version, at = self._whole_counted
        now = time.monotonic()
        if now <= at + RECOUNT_S:
            return
        self._whole_counted = (self._seniority.version, now)
        held = {
            (key.to_bytes(), owner)
            for key, item in self.items()
            if isinstance(item.value, DictionaryDHTValue)
            for owner, _ in item.value.items()
        }
        self._whole.keep_only(held)
        if version != self._seniority.version:
            self._whole.update_ranks(self._seniority.rounds_of)

    def _recount_key(self, key: DHTID) -> KeyCapacity[str]:
        """Return a key's capacity by current credit, without expired records; at most `RECOUNT_S` old."""
        version, at = self._counted.get(key, (-1, 0.0))
        if version != self._seniority.version or time.monotonic() > at + RECOUNT_S:
            self._count_key(key)
        return self._rooms[key]

    def _count_key(self, key: DHTID) -> None:
        self._counted[key] = (self._seniority.version, time.monotonic())
        room, held = self._rooms[key], self.records(key)
        room.keep_only(held)
        room.update_ranks(self._seniority.rounds_of)

    def _clean_expiration_heaps(self, key: DHTID) -> None:
        """Remove stale entries from hivemind's heaps, which keep one for each replaced record until its expiration."""
        item = self.get(key)
        for kept in (self, item.value if item is not None else None):
            if isinstance(kept, TimedStorage) and len(kept.expiration_heap) > 2 * len(kept.data) + GHOSTS_MAX:
                kept.expiration_heap[:] = sorted(kept.key_to_heap.values())

    def _drop_far_future_records(self, key: DHTID) -> None:
        """Drop records stored while this machine's clock was ahead: they would hide current records."""
        item, now = self.get(key), time.time()
        if (
            item is None
            or not isinstance(item.value, DictionaryDHTValue)
            or not is_too_far_ahead(item.expiration_time, now)
        ):
            return
        kept = [
            (owner, entry) for owner, entry in item.value.items() if not is_too_far_ahead(entry.expiration_time, now)
        ]
        del self[key]
        for owner, entry in kept:
            self.store_subkey(key, owner, entry.value, entry.expiration_time)
        self._counted[key] = (-1, 0.0)

    def _drop_expired_capacities(self) -> None:
        """Drop the capacities of expired keys once they outnumber the present ones."""
        if len(self._rooms) > 2 * len(self) + GHOSTS_MAX:
            for key in self._rooms.keys() - self.data.keys():
                del self._rooms[key], self._counted[key]
        self.changes.keep_only(self.data)


def message_size_bound(value: Any) -> int:
    """Return an upper bound of a value's size in a message, in bytes; for a dictionary including its owners."""
    if isinstance(value, DictionaryDHTValue):
        return sum(len(owner.encode()) + len(entry.value) + ENTRY_BYTES for owner, entry in value.items()) + ENTRY_BYTES
    return len(value) + ENTRY_BYTES


Entry = tuple[Any, Any, float]  # key, value, expiration


class RecordForwarding:
    """Chooses the records to forward to a new peer."""

    def __init__(self) -> None:
        self._meetings = RateLimiter(MEETINGS_BURST, MEETINGS_PER_S)

    def records_to_forward(self, protocol: Any, node_id: Any) -> list[Entry]:
        """Return the records that a peer should hold that is not in the routing table yet. As in hivemind, they are
        those of keys that this node is nearest to among the nodes that it knows, and that the peer would be a replica
        of."""
        if not len(protocol.storage) or not self._meetings.try_charge():
            return []
        found: list[Entry] = []
        left_bytes = HANDED_BYTES_MAX
        for key, item in list(protocol.storage.items()):
            if _should_forward(protocol, key, node_id):
                key_bytes = message_size_bound(item.value)
                if key_bytes > HANDED_KEY_BYTES_MAX:
                    continue
                left_bytes -= key_bytes
                if left_bytes < 0:
                    break
                found.append((key, item.value, item.expiration_time))
        return found


def _should_forward(protocol: Any, key: Any, node_id: Any) -> bool:
    """Return whether this node must forward a key to the peer."""
    near = protocol.routing_table.get_nearest_neighbors(key, protocol.num_replicas, exclude=protocol.node_id)
    distances = [other.xor_distance(key) for other, _ in near]
    own, peers = protocol.node_id.xor_distance(key), node_id.xor_distance(key)
    return not distances or (own < distances[0] and peers < distances[-1])
