"""Writing into a legacy network: stored at the peers nearest to the key, and handed to newcomers while it lives.

v0.4 writes once and never looks after it. Here a record goes out again, the same value with the same expiration, to
peers that have come nearer to its key since: it never lives longer than four hours from its writing, as there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import anyio
import msgspec

from swarmd.dht.legacy.guard import LegacyGuard
from swarmd.dht.legacy.records import LIFE_S
from swarmd.dht.legacy.search import Findings, search
from swarmd.dht.legacy.values import encode
from swarmd.dht.p2p.hivemind_api import DHTID, PeerID
from swarmd.dht.p2p.node import DhtNode, NodeRun
from swarmd.errors import NetworkDown, RecordRejected

BEAM = 20
REPLICAS = 5
ATTEMPTS = 3
STEP_S = 0.001  # the least by which an expiration exceeds the one before
SEARCH_S = 4.0
WRITE_S = 15.0
BATCH_BYTES_MAX = 1024 * 1024  # of one store request
AGAIN_S = 600.0  # between two roundings of all live records
COMPANY_S = 5.0  # after a start, for peers to be found
LOOK_S = 0.5
WRITTEN_MAX = 2048  # records looked after, the latest; older ones are left to whoever holds them
WRITTEN_BYTES_MAX = 32 * 1024 * 1024

log = logging.getLogger(__name__)


class OwnLegacyRecord(msgspec.Struct, frozen=True):
    """An own record."""

    name: str
    subkey: str | None  # None: a plain value
    value: bytes
    expiration: float


class LegacyPublisher:
    """Writes this node's records.

    Args:
        node: where to.
        guard: says how long a record may live, here and at every careful node.
        alone: may this node be the network's first, so that its own storage is enough while there is no peer?
    """

    def __init__(self, node: DhtNode, guard: LegacyGuard, alone: bool) -> None:
        self._node = node
        self._guard = guard
        self._alone = alone
        self._written: dict[tuple[str, str | None], OwnLegacyRecord] = {}
        self._lock = anyio.Lock()

    async def write(self, name: str, values: Mapping[str | None, Any]) -> None:
        """Store values under a key, by subkey; the subkey None is for a plain value.

        Raises:
            NetworkDown: no peer has taken them; it may be tried again.
            RecordRejected: they are too large for anybody to keep.
        """
        encoded = {subkey: encode(value) for subkey, value in values.items()}
        async with self._lock:  # an expiration is later than the one before
            written = await self._node.call(lambda life: self._write(life, name, encoded), WRITE_S)
        self._remember(written)

    async def _write(self, life: NodeRun, name: str, encoded: Mapping[str | None, bytes]) -> list[OwnLegacyRecord]:
        for _ in range(ATTEMPTS):
            found = await self._look(life, name)
            records = [
                OwnLegacyRecord(name, subkey, value, self._expiration(name, subkey, found))
                for subkey, value in encoded.items()
            ]
            kept = [_keep_here(life, found.key, record) for record in records]
            if await self._spread(life, found, records) or (all(kept) and await self._is_alone(life, found)):
                return records
        raise NetworkDown(f"no peer has taken {name}")

    async def _look(self, life: NodeRun, name: str) -> Findings[bytes]:
        until = asyncio.get_running_loop().time() + SEARCH_S
        return await search(life, name, BEAM, until, _as_it_is, _never_refused)

    def _expiration(self, name: str, subkey: str | None, found: Findings[bytes]) -> float:
        """Four hours from now, and later than what is there: a later expiration is what wins."""
        held = found.plain if subkey is None else found.entries.get(subkey)
        before = self._written.get((name, subkey))
        now = time.time()
        floor = max(held.expiration if held else 0.0, before.expiration if before else 0.0)
        return min(max(now + LIFE_S, floor + STEP_S), self._guard.latest(now))

    async def _spread(self, life: NodeRun, found: Findings[bytes], records: list[OwnLegacyRecord]) -> bool:
        """Store at the nearest peers that answered. True when one has taken it all."""
        nearest = sorted(found.answered, key=found.key.xor_distance)[:REPLICAS]
        took = await asyncio.gather(*[_store_at(life, found.answered[peer], found.key, records) for peer in nearest])
        return any(took)

    async def _is_alone(self, life: NodeRun, found: Findings[bytes]) -> bool:
        """Is this the network's first node, and up? With a dead p2pd hivemind stores locally and calls it success."""
        if not self._alone or found.answered:
            return False
        await life.p2p._client.identify()
        return True

    def _remember(self, records: list[OwnLegacyRecord]) -> None:
        for record in records:
            self._written.pop((record.name, record.subkey), None)
            self._written[record.name, record.subkey] = record
        now = time.time()
        self._written = {place: record for place, record in self._written.items() if record.expiration > now}
        size_bytes = sum(len(record.value) for record in self._written.values())
        while len(self._written) > WRITTEN_MAX or size_bytes > WRITTEN_BYTES_MAX:
            size_bytes -= len(self._written.pop(next(iter(self._written))).value)

    async def run(self) -> None:
        """Hand the live records to the peers that are nearest now: now and then, and when p2pd was started anew."""
        while True:
            life = await self._node.wait_up()
            with anyio.move_on_after(COMPANY_S):
                while not life.peers:  # noqa: ASYNC110 - hivemind's table tells nobody when it changes
                    await anyio.sleep(LOOK_S)
            await self._hand_on()
            with anyio.move_on_after(AGAIN_S):
                while self._node.life is life:  # noqa: ASYNC110 - for p2pd to be started anew
                    await anyio.sleep(LOOK_S)

    async def _hand_on(self) -> None:
        by_name: dict[str, list[OwnLegacyRecord]] = {}
        for record in self._written.values():
            by_name.setdefault(record.name, []).append(record)
        for records in by_name.values():
            try:
                await self._node.call(partial(self._store_again, records), WRITE_S)
            except NetworkDown as error:
                log.debug("%s was not handed on: %s", records[0].name, error)

    async def _store_again(self, records: list[OwnLegacyRecord], life: NodeRun) -> None:
        """Store records of one key once more, unless they have been replaced or have ended."""
        found = await self._look(life, records[0].name)
        live = [record for record in records if self._is_live(record)]
        for record in live:
            _keep_here(life, found.key, record)
        await self._spread(life, found, live)

    def _is_live(self, record: OwnLegacyRecord) -> bool:
        return self._written.get((record.name, record.subkey)) is record and record.expiration > time.time()


def _keep_here(life: NodeRun, key: DHTID, record: OwnLegacyRecord) -> bool:
    """Keep a record in this node's own storage, whether or not it is among the nearest. False when it does not fit."""
    try:
        return bool(life.dht.protocol.storage.keep(key, record.subkey, record.value, record.expiration))
    except RecordRejected as error:
        log.info("%s is left to other peers: %s", record.name, error)
        return False


async def _store_at(life: NodeRun, peer: PeerID, key: DHTID, records: list[OwnLegacyRecord]) -> bool:
    """Store at one peer. True when it has taken all."""
    took = True
    for batch in _batches(records):
        answer = await life.dht.protocol.call_store(
            peer,
            [key] * len(batch),
            [record.value for record in batch],
            [record.expiration for record in batch],
            subkeys=[record.subkey for record in batch],
        )
        took = took and answer is not None and all(answer)
    return took


def _batches(records: list[OwnLegacyRecord]) -> Iterator[list[OwnLegacyRecord]]:
    """Groups that fit in a request."""
    batch: list[OwnLegacyRecord] = []
    size_bytes = 0
    for record in records:
        if batch and size_bytes + len(record.value) > BATCH_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += len(record.value)
    if batch:
        yield batch


def _as_it_is(subkey: str | None, value: bytes) -> bytes:
    return value


def _never_refused(subkey: str | None, value: bytes, error: RecordRejected) -> None:
    raise AssertionError("what is not read is not refused") from error
