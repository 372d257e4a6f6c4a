"""Publishing own records: store them at peers, read them back, announce them, and renew them while they count.

- A record counts as published once a trusted peer, or two others, have shown it: a single untrusted peer might show it
  to its writer only.
- An expiration is later than all that were used under the same key before, also before a restart.
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
INDEPENDENT = 2  # peers that must show a record, where none is trusted
STEP_S = 0.001  # the least by which an expiration exceeds the one before
RENEWALS = 3  # within a record's life
FAILED_S = 60.0  # after a renewal that failed for some records, until all are renewed once more
COMPANY_S = 5.0  # after a start, for peers to be found before records are published again

log = get_logger(__name__)


class KeptRecord(NamedTuple):
    """One own record. `expiration`: that it was published with last, POSIX seconds. `before`: the latest that was used
    under its key before, which may lie further ahead: a clock was ahead then."""

    content: Payload
    expiration: float
    before: float = 0.0


class OwnRecords:
    """This node's own records of `swarm` by key, the latest few of each kind; in memory, see `OwnRecordFile`."""

    def __init__(self, swarm: str, kept: Iterable[KeptRecord] = ()) -> None:
        self._kept = {each.content.key: each for each in kept if each.content.swarm == swarm}

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def used_expirations(self, key: str) -> tuple[float, float]:
        """Expirations used under a key so far, 0 for none: the last, and the latest of those before."""
        kept = self._kept.get(key)
        return (kept.expiration, kept.before) if kept else (0.0, 0.0)

    @property
    def all_records(self) -> list[KeptRecord]:
        """All records, oldest first."""
        return list(self._kept.values())

    def keep_record(self, content: Payload, expiration: float) -> None:
        """Keep a record in place of the one under the same key; `save` makes it durable."""
        before = max(self.used_expirations(content.key))
        self._kept.pop(content.key, None)
        self._kept[content.key] = KeptRecord(content, expiration, before)
        same = [key for key, kept in self._kept.items() if isinstance(kept.content, type(content))]
        for key in same[: -KEPT[type(content)]]:
            del self._kept[key]

    async def save(self) -> None:
        """Make all of it durable, as far as the store can."""


class OwnRecordEntry(msgspec.Struct, array_like=True):
    """One own record in the file: its payload, the expiration it was published with last, and the latest before."""

    payload: bytes
    expiration: float
    before: float = 0.0


class OwnRecordFile(OwnRecords):
    """Own records in the file `path`; a damaged one is put aside and begun anew: its records can be made again."""

    def __init__(self, path: Path, swarm: str) -> None:
        super().__init__(swarm, _read_own_records(path))
        self._path = path
        self._saving = anyio.Lock()

    async def save(self) -> None:
        """Write the file. If the disk is full, records do not survive a restart; the network goes on."""
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
        with contextlib.suppress(OSError):  # if something else is in the way, the next save says so
            path.replace(path.with_suffix(".damaged"))
        return []


class Publisher:
    """Publishes this node's records."""

    def __init__(self, view: SwarmView, network: Network, own_records: OwnRecords, gossip: Gossip) -> None:
        self._network = network
        self._own_records = own_records
        self._runtime = view.runtime
        self._ttl_s = view.config.dht.record_s
        self._alone = view.coordinating  # the swarm's first node: its own storage is enough while there is no peer
        self._gossip = gossip
        self._floors: dict[str, float] = {}
        self._locks: dict[str, ConcurrencyLimiter] = {}
        self._live: dict[str, Payload] = {
            kept.content.key: kept.content
            for kept in own_records.all_records
            if not isinstance(kept.content, Membership)
        }

    def has_published(self, kind: type[Payload]) -> bool:
        """Whether this data directory holds a record of this kind that was published lately."""
        return any(isinstance(content, kind) for content in self._live.values())

    async def publish(self, content: Payload) -> Record:
        """Publish a record and prove that peers have it. Raises NetworkDown: the network is down, or too few peers
        could show the record; it may be published again; RecordRejected: the record itself does not count."""
        async with self._lock_for_key(content.key):
            return await self._publish_until_proven(content, self._gossip.announce_stored)

    def _lock_for_key(self, key: str) -> ConcurrencyLimiter:
        """Publish one record of a key at a time: a renewal must not overtake the record that replaces it."""
        if key not in self._locks:
            self._locks = {other: lock for other, lock in self._locks.items() if other in self._live or lock.is_used}
            self._locks[key] = ConcurrencyLimiter(self._runtime, 1)
        return self._locks[key]

    async def _publish_until_proven(self, content: Payload, told: RecordSink) -> Record:
        for _ in range(ATTEMPTS):
            record = self._network.sign(content, self._next_expiration(content.key))
            await self._remember_record(content, record)  # first: some peer may have it, though none shows it in time
            later = await self._network.call(partial(self._store_and_prove, content.key, record, told))
            if later is None:
                return record
            self._floors[content.key] = later.expiration
        raise NetworkDown(f"{content.key} keeps being overwritten under this node's own identity")

    def _next_expiration(self, key: str) -> float:
        """An expiration later than all before under this key, but for those of a clock that was far ahead."""
        now = self._runtime.time()
        before = (self._floors.get(key, 0.0), *self._own_records.used_expirations(key))
        return max(
            now + self._ttl_s, *(floor + STEP_S for floor in before if not is_too_far_ahead(floor + STEP_S, now))
        )

    async def _remember_record(self, content: Payload, record: Record) -> None:
        """Have this record renewed from now on, after a restart too, and nothing older under its key."""
        self._floors.pop(content.key, None)
        self._live.pop(content.key, None)
        self._live[content.key] = content
        self._own_records.keep_record(content, record.expiration)
        self._live = {key: content for key, content in self._live.items() if key in self._own_records}
        await self._own_records.save()

    async def _store_and_prove(self, key: str, record: Record, told: RecordSink, replicas: Replicas) -> Record | None:
        """Store and read back. Returns a later record of this node's own that is in the way, if there is one."""
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
            told(record)  # nodes in client mode are in no routing table, and listen to gossip
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

        A peer that was the first to say that it has stored the record may not show it; then the others are asked.

        Args:
            peers: in the order in which they are asked.
            alone: whether the first of them is the only one to ask.

        Returns:
            A later record of this node's own that a peer has instead, if there is one.

        Raises:
            NetworkDown: too few show it.
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
        """Renew every record three times before it expires, and when p2pd was restarted, when peers are back after
        there were none, and when this machine's clock was set."""
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
        """Renew all records. Returns whether all that still count were renewed."""
        whole = True
        for content in list(self._live.values()):
            try:
                async with self._lock_for_key(content.key):
                    if self._live.get(content.key) is content:  # it may have been replaced meanwhile
                        await self._publish_until_proven(content, told)
            except (NetworkDown, RecordRejected) as error:
                whole = whole and not isinstance(error, NetworkDown)  # what cannot count does not count later either
                log.info("%s was not renewed: %s", content.key, error)
        return whole
