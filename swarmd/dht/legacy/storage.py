"""What this node keeps for a legacy network: plain values and dictionaries, with bounds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from swarmd.dht.limits.answer_size import RECORD_BYTES
from swarmd.dht.p2p.hivemind_api import DHTID, DictionaryDHTValue
from swarmd.dht.store.key_capacity import KEY_BYTES_MAX
from swarmd.dht.store.storage import KEYS_MAX, RECOUNT_S, BoundedStorage
from swarmd.errors import RecordRejected

STORED_BYTES_MAX = 128 * 1024 * 1024
ENTRY_BYTES = 256  # what a record costs besides its value and subkey
FORM_BYTES = 32  # of a record in an answer: its expiration, and the lengths of its parts
HEAP_SLACK = 1024  # left-over entries of hivemind's expiration heap before it is made anew


class Weight(msgspec.Struct):
    """Bytes of an answer with all of one key: never too few, and too many until a count finds what has expired."""

    size_bytes: int = 0
    counted_at: float = -RECOUNT_S  # seconds, monotone


class LegacyStorage(BoundedStorage):
    """hivemind's local storage with v0.4's rule, a later expiration wins, and with bounds."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[DHTID, Weight] = {}
        self._bytes = 0  # an upper bound: what expires is not taken off before the next count
        self._counted_at = -RECOUNT_S

    def held(self, key: DHTID, subkey: str | None) -> tuple[bytes, float] | None:
        """(value, expiration) of an unexpired record; of a plain value where `subkey` is None."""
        item = self.get(key)
        if item is not None and isinstance(item.value, DictionaryDHTValue):
            item = item.value.get(subkey) if subkey is not None else None
        elif subkey is not None:
            return None
        return None if item is None else (item.value, item.expiration_time)

    def would_change(self, key: DHTID, subkey: str | None, expiration: float) -> bool:
        """Is a record with this expiration later than what is held?"""
        before = self.held(key, subkey)
        return before is None or before[1] < expiration

    def keep(self, key: DHTID, subkey: str | None, value: bytes, expiration: float) -> bool:
        """Store a record. False when a later one is held.

        A dictionary is never thrown away for a plain value: no key of v0.4 holds now the one, now the other.

        Raises:
            RecordRejected: "full" at a bound, "malformed" for a plain value in a dictionary's place.
        """
        item = self.get(key)
        in_dictionary = item is not None and isinstance(item.value, DictionaryDHTValue)
        if subkey is None and in_dictionary:
            raise RecordRejected("malformed", "a plain value where peers have records of their own")
        if not self.would_change(key, subkey, expiration):
            return False
        before = self.held(key, subkey)
        more = shown_bytes(subkey, value) - (shown_bytes(subkey, before[0]) if before is not None else 0)
        weight = self._make_room(key, item, more)
        self._bytes += cost_of(subkey, value)
        stored = bool(self.store(key, value, expiration, subkey=subkey))
        weight.size_bytes += more if stored else 0
        _tidy(self)
        if in_dictionary and item is not None:
            _tidy(item.value)
        return stored

    def _make_room(self, key: DHTID, item: Any, more: int) -> Weight:
        weight = self._weight_of(key, item)
        if item is not None and weight.size_bytes + more > KEY_BYTES_MAX:
            _count_again(weight, item)
            if weight.size_bytes + more > KEY_BYTES_MAX:
                raise RecordRejected("full", "the key holds too many bytes already")
        if (item is None and len(self) >= KEYS_MAX) or self._recount_if_full():
            raise RecordRejected("full", "this node can hold no more")
        return weight

    def _recount_if_full(self) -> bool:
        """Count the bytes anew where they seem too many, now and then. Returns whether they are."""
        if self._bytes > STORED_BYTES_MAX and time.monotonic() > self._counted_at + RECOUNT_S:
            self._counted_at = time.monotonic()
            self._bytes = sum(cost_of(*record) for _, item in self.items() for record in records_in(item.value))
        return self._bytes > STORED_BYTES_MAX

    def _weight_of(self, key: DHTID, item: Any) -> Weight:
        """What lies under a key, from a sum that is kept: a key may have thousands of records."""
        if item is None or key not in self._weights:
            self._weights[key] = Weight(0 if item is None else answer_bytes(item.value))
        if len(self._weights) > 2 * KEYS_MAX:
            self._weights = {key: weight for key, weight in self._weights.items() if key in self.data}
        return self._weights.setdefault(key, Weight())


def cost_of(subkey: str | None, value: bytes) -> int:
    """Bytes of memory that a record takes."""
    return len(value) + len((subkey or "").encode()) + ENTRY_BYTES


def shown_bytes(subkey: str | None, value: bytes) -> int:
    """Bytes of a record in an answer, and no fewer than `check_answerable` counts: what is kept can be shown."""
    return len(value) + (0 if subkey is None else max(len(subkey.encode()) + FORM_BYTES, RECORD_BYTES))


def answer_bytes(value: Any) -> int:
    """The same of all records of a key."""
    return sum(shown_bytes(*record) for record in records_in(value))


def records_in(value: Any) -> Iterator[tuple[str | None, bytes]]:
    """(subkey, value) of all records of a key; of a plain value the subkey is None."""
    if not isinstance(value, DictionaryDHTValue):
        return iter([(None, value)])
    return ((subkey, entry.value) for subkey, entry in value.items())


def _count_again(weight: Weight, item: Any) -> None:
    """Take off what has expired, now and then: a key that is full costs its writers no count for each refusal."""
    now = time.monotonic()
    if now > weight.counted_at + RECOUNT_S:
        weight.size_bytes, weight.counted_at = answer_bytes(item.value), now


def _tidy(storage: Any) -> None:
    """hivemind leaves an entry in its heap for every replaced record, for as long as that would have lived."""
    if len(storage.expiration_heap) > 2 * len(storage.key_to_heap) + HEAP_SLACK:
        storage.expiration_heap = sorted(storage.key_to_heap.values())
