"""Reading a key from the peers nearest to it and merging what they hold: v0.4's `latest=True`, with an end.

hivemind's own traversal gives nothing before its slowest peer has answered, and lets one malformed value spoil the
rest. Here the latest readable record of each subkey counts, whoever else holds what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from swarmd.dht.background import spawn
from swarmd.dht.p2p.hivemind_api import DHTID, DictionaryDHTValue, PeerID
from swarmd.dht.p2p.node import NodeRun
from swarmd.dht.store.shown_records import YIELD_EVERY
from swarmd.dht.wire import names
from swarmd.errors import RecordRejected

WORKERS = 8  # peers asked at the same time
ASKED_MAX = 64  # beyond the beam: whoever names nearer and nearer peers leads nobody on for ever
PATIENCE_S = 1.0  # for those still silent, counted from the last answer
FOUND_BYTES_MAX = 16 * 1024 * 1024  # of one key's records; peers may show more of them, all invented, than memory holds
ENTRY_BYTES = 256  # what a record costs besides its value and subkey
BAD_MAX = 4096  # unreadable records that are known again

T = TypeVar("T")
Read = Callable[[str | None, bytes], T]  # (subkey, encoded value) → what it means, or RecordRejected
Refused = Callable[[str | None, bytes, RecordRejected], None]


class Latest(msgspec.Struct, Generic[T], frozen=True):
    """The latest readable record of a subkey."""

    value: T
    expiration: float
    size_bytes: int = 0  # as it was shown, with what it costs besides


class Findings(Generic[T]):
    """What a search brought together.

    `plain` is the latest plain value, `entries` the latest of each subkey, the first `FOUND_BYTES_MAX` of them: further
    ones are left out. `answered` are the peers that gave an answer, whether or not they held anything.

    Args:
        life: where the search runs.
        name: the key.
        read: gives a value its meaning.
        refused: told of each record that `read` refuses, once however many peers hold it.
    """

    def __init__(self, life: NodeRun, name: str, read: Read[T], refused: Refused) -> None:
        self.key = DHTID.from_bytes(names.key_id(name))
        self.plain: Latest[T] | None = None
        self.entries: dict[str, Latest[T]] = {}
        self.answered: dict[DHTID, PeerID] = {}
        self.known: dict[DHTID, PeerID] = {}
        self.asked: set[DHTID] = set()
        self._read = read
        self._refused = refused
        self._bad: set[int] = set()  # hashes of records: they themselves are let go of
        self._size_bytes = 0  # of the entries
        self._own_id = life.dht.node_id

    async def begin(self, life: NodeRun) -> None:
        """What this node itself holds, and the peers it knows."""
        bucket = life.dht.protocol.bucket_size
        self._learn(dict(life.table.get_nearest_neighbors(self.key, bucket, exclude=self._own_id)))
        await self.merge(life.dht.protocol.storage.get(self.key))

    def _learn(self, nearby: dict[DHTID, PeerID]) -> None:
        self.known.update(nearby)
        self.known.pop(self._own_id, None)

    def nearest(self, count: int) -> list[tuple[DHTID, PeerID]]:
        """The known peers nearest to the key, except this node."""
        return [(node_id, self.known[node_id]) for node_id in sorted(self.known, key=self.key.xor_distance)[:count]]

    async def note(self, node_id: DHTID, peer: PeerID, answer: Any) -> None:
        """Merge a peer's answer; None for one that gave none."""
        if answer is None:
            self.known.pop(node_id, None)
            return
        held, nearby = answer[self.key]
        self.answered[node_id] = peer
        await self.merge(held)
        self._learn(nearby)

    async def merge(self, held: Any) -> None:
        """Merge what one peer holds, tens of thousands of entries perhaps: all else goes on meanwhile."""
        if held is None:
            return
        if not isinstance(held.value, DictionaryDHTValue):
            self.plain = self._later(self.plain, None, held.value, held.expiration_time)
            return
        for number, (subkey, entry) in enumerate([*held.value.items()]):  # this node's own may change meanwhile
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            before = self.entries.get(subkey)
            latest = self._later(before, subkey, entry.value, entry.expiration_time)
            if latest is not None:
                self._keep(subkey, before, latest)

    def _keep(self, subkey: str, before: Latest[T] | None, latest: Latest[T]) -> None:
        size_bytes = self._size_bytes + latest.size_bytes - (before.size_bytes if before is not None else 0)
        if size_bytes <= FOUND_BYTES_MAX:
            self.entries[subkey], self._size_bytes = latest, size_bytes

    def _later(self, before: Latest[T] | None, subkey: str | None, value: bytes, expiration: float) -> Latest[T] | None:
        if (before is not None and before.expiration >= expiration) or (record := hash((subkey, value))) in self._bad:
            return before
        try:
            return Latest(self._read(subkey, value), expiration, len(value) + len(subkey or "") + ENTRY_BYTES)
        except RecordRejected as error:
            if len(self._bad) < BAD_MAX:
                self._bad.add(record)
            self._refused(subkey, value, error)
            return before


async def search(life: NodeRun, name: str, beam: int, until: float, read: Read[T], refused: Refused) -> Findings[T]:
    """Ask the `beam` nearest peers, following nearer ones that they name, and merge.

    Args:
        beam: peers that are asked, as v0.4's `beam_size`.
        until: when to end at the latest, in the event loop's time; what has been found by then counts.
    """
    found = Findings(life, name, read, refused)
    await found.begin(life)
    loop = asyncio.get_running_loop()
    pending: set[asyncio.Task[None]] = set()
    patience_s = until - loop.time()
    while True:
        pending |= {spawn(_ask(life, found, *peer)) for peer in _next(found, beam, WORKERS - len(pending))}
        timeout_s = min(patience_s, until - loop.time())
        if not pending or timeout_s <= 0:
            return found
        done, pending = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return found
        if found.answered:
            patience_s = PATIENCE_S


def _next(found: Findings[Any], beam: int, room: int) -> list[tuple[DHTID, PeerID]]:
    fresh = [(node_id, peer) for node_id, peer in found.nearest(beam) if node_id not in found.asked]
    fresh = fresh[: min(room, beam + ASKED_MAX - len(found.asked))]
    found.asked.update(node_id for node_id, _ in fresh)
    return fresh


async def _ask(life: NodeRun, found: Findings[Any], node_id: DHTID, peer: PeerID) -> None:
    await found.note(node_id, peer, await life.dht.protocol.call_find(peer, [found.key]))
