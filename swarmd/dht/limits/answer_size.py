"""An answer is bounded before it is made: what it would hold is added up, not encoded."""

from __future__ import annotations

from typing import Any

from swarmd.dht.limits.door import RequestLimits
from swarmd.dht.p2p.hivemind_api import DHTID, DHTLocalStorage, DictionaryDHTValue
from swarmd.dht.store.storage import size_of

RECORD_BYTES = 80  # of a record's owner and expiration, beside its value
NEARBY_BYTES = 2048  # of the peers that are named for each key


def check_answerable(door: RequestLimits, sender: str, keys: list[bytes], *storages: DHTLocalStorage) -> None:
    """May this peer have what is held under these keys?

    Raises:
        RecordRejected: "doubled" when a key is named twice, "oversized" above p2pd's frame, "bytes-out" when the peer
            has had too much already.
    """
    if len(set(keys)) < len(keys):
        raise door.refusal(sender, "doubled", "a key is named twice in one call")
    door.allow_answer(sender, sum(max(_size(storage, key) for storage in storages) + NEARBY_BYTES for key in keys))


def _size(storage: DHTLocalStorage, key: bytes) -> int:
    item: Any = storage.get(DHTID.from_bytes(key))
    if item is None:
        return 0
    records = len(item.value) if isinstance(item.value, DictionaryDHTValue) else 1
    return size_of(item.value) + records * RECORD_BYTES
