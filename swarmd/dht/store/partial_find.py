"""Asking a peer for a part of a key, and reading what it answers; one that knows no parts shows all it holds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from swarmd.dht.p2p.hivemind_api import DHTID, MSGPackSerializer, PeerID, dht_pb2
from swarmd.dht.store.answer_memory import Progress
from swarmd.dht.store.dictionaries import entries_of
from swarmd.dht.store.key_capacity import KEY_BYTES_MAX
from swarmd.dht.store.shown_records import check_asked_for, keep_genuine
from swarmd.dht.store.validator import GuardedProtocol, ask, nearby
from swarmd.dht.wire.find_parts import FindFilter, add_filter, is_part, read_part
from swarmd.dht.wire.records import SignedRecord


class Answer(NamedTuple):
    """What a peer shows of a key."""

    records: list[SignedRecord]  # that count
    nearby: dict[DHTID, PeerID]


async def find_at(
    protocol: GuardedProtocol, peer: PeerID, key: DHTID, only: Collection[str] = (), since: Progress | None = None
) -> Answer | None:
    """Ask a peer for the records of some owners, or for those that it has not shown before.

    What it has shown before is remembered: `Validator.remembered`.

    Args:
        only: whose records; of all where nobody is named.
        since: what is new, then, since peers had come so far; None for all.

    Returns:
        None where it gives no answer.
    """
    request = dht_pb2.FindRequest(keys=[key.to_bytes()], peer=protocol.node_info)
    asked = None if only else since or Progress()
    add_filter(request, FindFilter(tuple(only)) if asked is None else FindFilter((), asked.cursor(peer)))
    answers = await ask(protocol, peer, request, lambda _, result: _read(protocol, peer, key, result, only, asked))
    return None if answers is None else answers[0]


async def _read(
    protocol: GuardedProtocol, peer: PeerID, key: DHTID, result: Any, only: Collection[str], asked: Progress | None
) -> Answer:
    """Raises RecordRejected."""
    sender = peer.to_base58()
    if not is_part(result.value):
        held, peers = await protocol._open_result(sender, key, result)
        entries = entries_of(held.value) if held is not None else []
        return Answer(await keep_genuine(protocol, sender, key, entries), peers)
    part = read_part(result.value, KEY_BYTES_MAX + KEY_BYTES_MAX // 4)
    check_asked_for(part.records, only)
    entries = [(MSGPackSerializer.dumps(shown.owner), shown.value, shown.expiration) for shown in part.records]
    records = await keep_genuine(protocol, sender, key, entries)
    if asked is not None:
        protocol.record_validator.remembered.note(key, peer, part, records, asked)
    return Answer(records, nearby(result))
