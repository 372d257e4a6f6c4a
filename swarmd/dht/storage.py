"""What this node keeps for others, with bounds that hivemind's own storage has not."""

from __future__ import annotations

import time
from typing import Any

from swarmd.dht.hive import DHTID, DHTLocalStorage, DictionaryDHTValue
from swarmd.dht.records import Signed, is_far
from swarmd.errors import RecordRejected

KEY_BYTES_MAX = 3 * 1024 * 1024  # of all records under one key: they are read as one message of at most 4 MiB
KEYS_MAX = 16384
STORED_BYTES_MAX = 128 * 1024 * 1024
RECOUNT_S = 5.0  # between two counts of all that is held, when it seems to be too much


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]
    """hivemind's local storage that refuses what would not fit."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0  # an upper bound: what expires is not taken off before the next count
        self._counted_at = -RECOUNT_S

    def records(self, key: DHTID) -> dict[str, tuple[bytes, float]]:
        """owner → (value, expiration) of all unexpired records under a key."""
        self._drop_far(key)
        item = self.get(key)
        if item is None or not isinstance(item.value, DictionaryDHTValue):
            return {}
        return {owner: (entry.value, entry.expiration_time) for owner, entry in item.value.items()}

    def admit(self, key: DHTID, signed: Signed) -> bool:
        """Store a checked record. True when it is stored or was there already.

        Raises:
            RecordRejected: "stale" when a later one of the owner is held, "full" at a bound.
        """
        held = self.records(key)
        value = signed.value
        before = held.get(signed.owner)
        if before is not None and before[1] >= signed.expiration:
            if before == (value, signed.expiration):
                return True
            raise RecordRejected("stale", "a later record of the owner is held")
        kept = sum(len(other) for owner, (other, _) in held.items() if owner != signed.owner)
        if kept + len(value) > KEY_BYTES_MAX:
            raise RecordRejected("full", f"the key holds {kept} bytes already")
        if not held and (len(self) >= KEYS_MAX or self._is_full()):
            raise RecordRejected("full", "this node can hold no more keys")
        self._bytes += len(value)
        return bool(self.store_subkey(key, signed.owner, value, signed.expiration))

    def _drop_far(self, key: DHTID) -> None:
        """Forget what was stored while this machine's clock was ahead: it would hide what is true now."""
        item, now = self.get(key), time.time()
        if item is None or not isinstance(item.value, DictionaryDHTValue) or not is_far(item.expiration_time, now):
            return
        kept = [(owner, entry) for owner, entry in item.value.items() if not is_far(entry.expiration_time, now)]
        del self[key]
        for owner, entry in kept:
            self.store_subkey(key, owner, entry.value, entry.expiration_time)

    def _is_full(self) -> bool:
        if self._bytes > STORED_BYTES_MAX and time.monotonic() > self._counted_at + RECOUNT_S:
            self._counted_at = time.monotonic()
            self._bytes = self.size_bytes()
        return self._bytes > STORED_BYTES_MAX

    def has_exactly(self, key: DHTID, signed: Signed) -> bool:
        """Is this very record held?"""
        return self.records(key).get(signed.owner) == (signed.value, signed.expiration)

    def has_later(self, key: DHTID, signed: Signed) -> bool:
        """Is a later record of the same owner held?"""
        held = self.records(key).get(signed.owner)
        return held is not None and held[1] > signed.expiration

    def size_bytes(self) -> int:
        """Bytes of all values held."""
        return sum(size_of(item.value) for _, item in self.items())


def size_of(value: Any) -> int:
    """Bytes of a plain value, or of all records of a dictionary."""
    if isinstance(value, DictionaryDHTValue):
        return sum(len(entry.value) for _, entry in value.items())
    return len(value)
