"""Answering a peer that asks for a part of a key: some owners' records, or what came since it asked last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swarmd.dht.limits import RequestLimits
from swarmd.dht.p2p.hivemind_api import DHTID, DHTLocalStorage, DictionaryDHTValue, dht_pb2
from swarmd.dht.store.storage import BoundedStorage, size_of
from swarmd.dht.wire.find_parts import FindFilter, Part, Shown, encode_part, read_filter
from swarmd.errors import RecordRejected

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


def part_of(storage: BoundedStorage, key: DHTID, wanted: FindFilter) -> Part:
    """What is held of the records that are wanted, and how far that brings the asker."""
    item = storage.get(key)
    held = item.value if item is not None and isinstance(item.value, DictionaryDHTValue) else DictionaryDHTValue()
    changes = storage.changes
    owners: Iterable[str] = [owner for owner, _ in held.items()]
    if wanted.owners:
        owners = dict.fromkeys(wanted.owners)
    elif changes.knows(wanted.cursor):
        owners = changes.since(key, wanted.cursor)
    entries = [(owner, entry) for owner in owners if (entry := held.get(owner)) is not None]
    records = tuple(Shown(owner, entry.value, entry.expiration_time) for owner, entry in entries)
    return Part(changes.life, changes.last, records)


def make_result(protocol: Any, sender: str, request: Any) -> Any | None:
    """The answer to a `FindRequest` for a part of a key, with the peers nearest to it: a `FindResult`.

    Returns:
        None where the request is for all of its keys, as hivemind's own.

    Raises:
        RecordRejected: it is "malformed", or the asker has had too much, as in `check_answerable`.
    """
    try:
        wanted = read_filter(request)
    except RecordRejected as error:
        raise protocol.p2p.door.refusal(sender, error.reason, error.message) from error
    if wanted is None:
        return None
    key, asker = DHTID.from_bytes(request.keys[0]), DHTID.from_bytes(request.peer.node_id)
    part = part_of(protocol.storage, key, wanted)
    size = sum(len(shown.value) + RECORD_BYTES for shown in part.records)
    protocol.p2p.door.allow_answer(sender, size + NEARBY_BYTES)
    latest = max((shown.expiration for shown in part.records), default=0.0)
    result = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=encode_part(part), expiration_time=latest)
    for node_id, peer in protocol.routing_table.get_nearest_neighbors(key, k=protocol.bucket_size, exclude=asker):
        result.nearest_node_ids.append(node_id.to_bytes())
        result.nearest_peer_ids.append(peer.to_bytes())
    return result
