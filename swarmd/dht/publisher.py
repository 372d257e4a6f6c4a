"""Publishes own records: stores them at peers, reads them back, announces them, and renews them while they count.

- A record counts as published once a trusted peer, or two others, have returned it: a single untrusted peer might
  return it to its writer only.
- Each expiration is later than all earlier ones under the same key, across restarts, too.
"""

import contextlib
from collections.abc import Hashable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec

from swarmd.dht.gossip import Gossip
from swarmd.dht.ports import Network, RecordSink, Replicas
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.dht.wire.records import (
    ClockRecord,
    LeaderboardRecord,
    Membership,
    Payload,
    Record,
    ReportRecord,
    RolloutsRecord,
    decode_payload,
    is_too_far_ahead,
)
from swarmd.errors import NetworkDown, RecordRejected
from swarmd.files import replace_durably
from swarmd.logger import get_logger
from swarmd.worker.tasks import ConcurrencyLimiter

KEPT = {Membership: 1, ClockRecord: 1, ReportRecord: 3, RolloutsRecord: 3, LeaderboardRecord: 3}  # latest of each kind

ATTEMPTS = 3
INDEPENDENT = 2  # untrusted peers that must return a record, if no trusted one does
STEP_S = 0.001  # smallest step between two expirations under one key
RENEWALS = 3  # renewals during a record's lifetime
FAILED_S = 60.0  # delay before the next renewal if some records were not renewed
COMPANY_S = 5.0  # time to find peers after a start, before records are published again

log = get_logger(__name__)


class KeptRecord(NamedTuple):
    """One own record. `expiration`: its latest one, POSIX seconds. `before`: the latest used earlier under its key,
    which is later than `expiration` if the clock was ahead then."""

    content: Payload
    expiration: float
    before: float = 0.0


class OwnRecords:
    """This node's own records of `swarm` by key, the latest few of each kind; in memory only, see `OwnRecordFile`."""

    def __init__(self, swarm: str, kept: Iterable[KeptRecord] = ()) -> None:
        self._kept = {each.content.key: each for each in kept if each.content.swarm == swarm}

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def used_expirations(self, key: str) -> tuple[float, float]:
        """Return the last expiration used under a key, and the latest of those before; 0 for none."""
        kept = self._kept.get(key)
        return (kept.expiration, kept.before) if kept else (0.0, 0.0)

    @property
    def all_records(self) -> list[KeptRecord]:
        """All records, oldest first."""
        return list(self._kept.values())

    def keep_record(self, content: Payload, expiration: float) -> None:
        """Replace the record under the same key; `save` makes that durable."""
        before = max(self.used_expirations(content.key))
        self._kept.pop(content.key, None)
        self._kept[content.key] = KeptRecord(content, expiration, before)
        same = [key for key, kept in self._kept.items() if isinstance(kept.content, type(content))]
        for key in same[: -KEPT[type(content)]]:
            del self._kept[key]

    async def save(self) -> None:
        """Write all records durably, if the subclass can."""


class OwnRecordEntry(msgspec.Struct, array_like=True):
    """One own record in the file: its payload, its latest expiration, and the latest one used earlier."""

    payload: bytes
    expiration: float
    before: float = 0.0


class OwnRecordFile(OwnRecords):
    """Own records in the file `path`. A damaged file is renamed and replaced: its records can be created again."""

    def __init__(self, path: Path, swarm: str) -> None:
        super().__init__(swarm, _read_own_records(path))
        self._path = path
        self._saving = anyio.Lock()

    async def save(self) -> None:
        """Write the file. If that fails (a full disk), records do not survive a restart, but the network continues."""
        entries = [
            OwnRecordEntry(msgspec.msgpack.encode(each.content), each.expiration, each.before)
            for each in self.all_records
        ]
        async with self._saving:
            try:
                write = partial(replace_durably, self._path, msgspec.msgpack.encode(entries), mode=0o600)
                await anyio.to_thread.run_sync(write)
            except OSError as error:
                log.warning("own records cannot be written to %s: %s", self._path, error)


def _read_own_records(path: Path) -> list[KeptRecord]:
    try:
        entries = msgspec.msgpack.decode(path.read_bytes(), type=list[OwnRecordEntry])
        return [KeptRecord(decode_payload(entry.payload), entry.expiration, entry.before) for entry in entries]
    except FileNotFoundError:
        return []
    except (OSError, *DECODE_ERRORS, RecordRejected) as error:
        log.warning("own records in %s cannot be read and are put aside: %s", path, error)
        with contextlib.suppress(OSError):  # if this fails, the next save reports it
            path.replace(path.with_suffix(".damaged"))
        return []


class Publisher:
    """Publishes this node's records."""

    def __init__(self, view: SwarmView, network: Network, own_records: OwnRecords, gossip: Gossip) -> None:
        self._network = network
        self._own_records = own_records
        self._runtime = view.runtime
        self._ttl_s = view.config.dht.record_s
        self._alone = view.coordinating  # a lone coordinator's own storage is enough
        self._gossip = gossip
        self._floors: dict[str, float] = {}
        self._locks: dict[str, ConcurrencyLimiter] = {}
        self._live: dict[str, Payload] = {
            kept.content.key: kept.content
            for kept in own_records.all_records
            if not isinstance(kept.content, Membership)
        }

    def has_published(self, kind: type[Payload]) -> bool:
        """Return whether this data directory holds a recently published record of this kind."""
        return any(isinstance(content, kind) for content in self._live.values())

    async def publish(self, content: Payload) -> Record:
        """Publish a record and verify that peers have it. Raises NetworkDown: the network is down, or too few peers
        could return the record, which may be published again; RecordRejected: the record itself is invalid."""
        async with self._lock_for_key(content.key):
            return await self._publish_until_proven(content, self._gossip.announce_stored)

    def _lock_for_key(self, key: str) -> ConcurrencyLimiter:
        """Return the lock for publishing under a key: a renewal must not overtake the record that replaces it."""
        if key not in self._locks:
            self._locks = {other: lock for other, lock in self._locks.items() if other in self._live or lock.is_used}
            self._locks[key] = ConcurrencyLimiter(self._runtime, 1)
        return self._locks[key]

    async def _publish_until_proven(self, content: Payload, told: RecordSink) -> Record:
        for _ in range(ATTEMPTS):
            record = self._network.sign(content, self._next_expiration(content.key))
            await self._remember_record(content, record)  # first: a peer may keep it even if none returns it in time
            later = await self._network.call(partial(self._store_and_prove, content.key, record, told))
            if later is None:
                return record
            self._floors[content.key] = later.expiration
        raise NetworkDown(f"{content.key} keeps being overwritten under this node's own identity")

    def _next_expiration(self, key: str) -> float:
        """Return an expiration later than all used under this key, ignoring those of a clock that was far ahead."""
        now = self._runtime.time()
        before = (self._floors.get(key, 0.0), *self._own_records.used_expirations(key))
        return max(
            now + self._ttl_s, *(floor + STEP_S for floor in before if not is_too_far_ahead(floor + STEP_S, now))
        )

    async def _remember_record(self, content: Payload, record: Record) -> None:
        """Renew this record instead of earlier ones under its key from now on, after a restart, too."""
        self._floors.pop(content.key, None)
        self._live.pop(content.key, None)
        self._live[content.key] = content
        self._own_records.keep_record(content, record.expiration)
        self._live = {key: content for key, content in self._live.items() if key in self._own_records}
        await self._own_records.save()

    async def _store_and_prove(self, key: str, record: Record, told: RecordSink, replicas: Replicas) -> Record | None:
        """Store a record and read it back. Returns the later own record that a replica holds instead, if any."""
        try:
            replicas.store_locally(key, record)
        except RecordRejected:
            held = replicas.get_local_record(key, record.owner)
            if held is not None:
                return held
            raise
        near = replicas.nearest_peers(key)
        if not near:
            if not self._alone:
                raise NetworkDown("there is no peer to keep a record")
            await replicas.check_network_link()
            told(record)  # nodes in client mode are in no routing table, and rely on gossip
            return None
        trusted = replicas.trusted_peers(key)
        peers = list(dict.fromkeys((*near, *trusted)))
        took = await replicas.store_at_peers(key, record, peers)
        if took:
            told(record)
        others = [peer for peer in peers if peer not in took]
        asked = [peer for part in (took, others) for peer in sorted(part, key=lambda peer: peer not in trusted)]
        later = await self._prove_stored(replicas, key, record, asked, trusted, alone=len(took or peers) == 1)
        if later is None:
            replicas.replicate_in_background(key, record, peers)
        return later

    async def _prove_stored(
        self, replicas: Replicas, key: str, record: Record, peers: list[Hashable], trusted: list[Hashable], alone: bool
    ) -> Record | None:
        """Read the record back from a trusted peer, or from two others.

        A peer that said first that it stored the record may not return it; then the others are asked. `peers` are asked
        in order; with `alone`, only the first one. Returns a later record of this node's own that a peer has instead,
        if there is one. Raises NetworkDown: too few peers return it.
        """
        shown = 0
        for peer in peers:
            seen, later = await replicas.read_back(peer, key, record)
            if later is not None:
                return later
            shown += seen
            if shown >= INDEPENDENT or (seen and (peer in trusted or (alone and peer == peers[0]))):
                return None
        who = f"only one of {len(peers)} peers" if shown else "no peer"
        raise NetworkDown(f"{who} could show {key} after it was stored")

    async def run(self) -> None:
        """Renew every record three times before it expires. Renew earlier if p2pd was restarted, if peers are back
        after there were none, or if this machine's clock was set."""
        told = self._gossip.announce_stored
        while True:
            await self._network.wait_until_up()
            await self._network.wait_for_disturbance(COMPANY_S, lonely=True)
            whole = await self._renew_all(told)
            pause_s, began = self._ttl_s / RENEWALS if whole else FAILED_S, self._runtime.now()
            await self._network.wait_for_disturbance(pause_s, lonely=False)
            is_quiet = whole and self._runtime.now() >= began + pause_s
            told = self._gossip.announce_renewed if is_quiet else self._gossip.announce_stored

    async def _renew_all(self, told: RecordSink) -> bool:
        """Renew all records. Returns whether all that are still valid were renewed."""
        whole = True
        for content in list(self._live.values()):
            try:
                async with self._lock_for_key(content.key):
                    if self._live.get(content.key) is content:  # it may have been replaced meanwhile
                        await self._publish_until_proven(content, told)
            except (NetworkDown, RecordRejected) as error:
                whole = whole and not isinstance(error, NetworkDown)  # an invalid record stays invalid
                log.info("%s was not renewed: %s", content.key, error)
        return whole
