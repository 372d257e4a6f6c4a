"""The interfaces of `swarmd.dht.ports`, implemented by hivemind and p2pd."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import anyio
from anyio import to_thread

from swarmd.dht.identity.identity import Identity
from swarmd.dht.p2p.body_streams import fetch_body
from swarmd.dht.p2p.hivemind_api import DHTID, PeerID
from swarmd.dht.p2p.node import DhtNode, NodeRun
from swarmd.dht.ports import Replicas
from swarmd.dht.publisher import INDEPENDENT
from swarmd.dht.record_store import RecordStore
from swarmd.dht.store import lookup
from swarmd.dht.store.validator import Validator
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.bodies import LeaderboardBody, check_body, decode_leaderboard, deflate, inflate
from swarmd.dht.wire.records import Payload, Record, SignedRecord, as_signed, sign
from swarmd.errors import NetworkDown, RecordRejected
from swarmd.eventlog.blobs import BlobStore
from swarmd.logger import get_logger
from swarmd.worker.runtime import ClockStepDetector
from swarmd.worker.tasks import spawn_in_background

SHOW_S = 1.5  # timeout for reading a record back from one peer; short enough to ask others afterwards
LOOK_S = 0.5  # polling interval for the routing table and the clock, which send no notifications

T = TypeVar("T")

PUBLISH_S = 2.0

log = get_logger(__name__)


class HivemindRecordStore(RecordStore):
    def __init__(self, view: SwarmView, node: DhtNode, validator: Validator) -> None:
        super().__init__(view)
        self._node = node
        self._validator = validator

    async def wait_until_up(self) -> None:
        await self._node.wait_until_up()

    async def find_records(self, name: str, wanted: Mapping[str, float] | None = None) -> lookup.KeySearch:
        return await self._node.call(lambda run: lookup.look_up_key(run, name, wanted))

    async def find_records_by_owners(
        self, name: str, owners: Collection[str], wanted: Collection[str] | None = None
    ) -> lookup.KeySearch:
        return await self._node.call(lambda run: lookup.look_up_records_by_owners(run, name, owners, wanted))

    async def find_record_by_owner(self, name: str, owner: str) -> lookup.KeySearch:
        return await self._node.call(lambda run: lookup.look_up_record_by_owner(run, name, owner))

    def store_locally(self, name: str, record: Record) -> None:
        run = self._node.p2pd_run
        if run is not None:
            with suppress(RecordRejected):
                run.dht.protocol.storage.store_record(DHTID.from_bytes(names.key_id(name)), record)

    def check_gossiped_record(self, name: str, record: Record) -> Record:
        signed = as_signed(record)
        return self._validator.verify_record(names.key_id(name), signed.owner, signed.value, signed.expiration)

    async def ping_peer(self, peer: str) -> bool:
        found = await self._node.call(lambda run: run.dht.protocol.call_ping(PeerID.from_base58(peer)))
        return found is not None

    def cpu_time_s(self) -> float:
        return time.thread_time()


class HivemindBodies:
    """Bodies in the blob store and at their owners; large ones are handled in threads."""

    def __init__(self, node: DhtNode, blobs: BlobStore) -> None:
        self._node = node
        self._blobs = blobs

    def has(self, digest: str) -> bool:
        return self._blobs.has(digest)

    async def get(self, digest: str) -> bytes:
        return await to_thread.run_sync(self._blobs.get, digest)

    async def put(self, body: bytes) -> str:
        return await to_thread.run_sync(self._blobs.put, body)

    async def fetch(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        return await fetch_body(self._node, peer, digest, size_bytes, timeout_s)

    async def inflate(self, packed: bytes, size_bytes: int) -> bytes:
        return inflate(packed, size_bytes)

    async def deflate(self, body: bytes, members: int, to_fetch: bool = True) -> bytes:
        return await to_thread.run_sync(deflate, body, members, to_fetch)

    async def check(self, body: bytes, digest: str, size_bytes: int) -> None:
        await to_thread.run_sync(check_body, body, digest, size_bytes)

    def decode_leaderboard(self, body: bytes) -> LeaderboardBody:
        return decode_leaderboard(body)


class HivemindReplicas:
    """Peers that may keep records, during one run of p2pd."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run

    def store_locally(self, name: str, record: Record) -> None:
        self._run.dht.protocol.storage.store_record(lookup.search_locally(self._run, name).key, record)

    def get_local_record(self, name: str, owner: str) -> Record | None:
        return lookup.search_locally(self._run, name).records.get(owner)

    def nearest_peers(self, name: str) -> list[Hashable]:
        return [peer for _, peer in lookup.search_locally(self._run, name).nearest_peers(lookup.REPLICAS)]

    def trusted_peers(self, name: str) -> list[Hashable]:
        return [peer for _, peer in lookup.search_locally(self._run, name).trusted_peers(())]

    async def store_at_peers(self, name: str, record: Record, peers: Sequence[Hashable]) -> list[Hashable]:
        """Store a record at peers concurrently. Returns those that accepted it; does not wait for all of them."""
        signed = as_signed(record)
        pending = {spawn_in_background(self._store_at_peer(cast(PeerID, peer), name, signed)) for peer in peers}
        took: list[Hashable] = []
        while pending and len(took) < INDEPENDENT:
            timeout_s = lookup.PATIENCE_S if took else None
            done, pending = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            took += [peer for peer in (task.result() for task in done) if peer is not None]
        return took

    async def _store_at_peer(self, peer: PeerID, name: str, signed: SignedRecord) -> PeerID | None:
        key = DHTID.from_bytes(names.key_id(name))
        protocol = self._run.dht.protocol
        answer = await protocol.call_store(peer, [key], [signed.value], [signed.expiration], subkeys=[signed.owner])
        return peer if answer and answer[0] else None

    async def read_back(self, peer: Hashable, name: str, record: Record) -> tuple[bool, Record | None]:
        key, answer = DHTID.from_bytes(names.key_id(name)), None
        with anyio.move_on_after(SHOW_S):
            answer = await lookup.ask_peer_for_records(self._run.dht.protocol, cast(PeerID, peer), key, (record.owner,))
        if answer is None or not answer.records:
            return False, None
        (held,) = answer.records
        if held == record:
            return True, None
        return False, held if held.expiration > record.expiration else None

    async def check_network_link(self) -> None:
        await self._run.p2p._client.identify()  # with a dead p2pd hivemind stores locally and calls it success

    def replicate_in_background(self, name: str, record: Record, stored: Collection[Hashable]) -> None:
        spawn_in_background(self._store_at_nearest(name, as_signed(record), stored))

    async def _store_at_nearest(self, name: str, signed: SignedRecord, stored: Collection[Hashable]) -> None:
        try:
            found = await lookup.look_up_key(self._run, name, only=(signed.owner,))  # to find the nearest peers
            further = [peer for _, peer in found.nearest_peers(lookup.REPLICAS) if peer not in stored]
            await self.store_at_peers(name, signed, further)
        except Exception as error:
            log.debug("%s was not stored at further peers: %r", name, error)


class HivemindNetwork:
    """Publishes an identity's signed records through hivemind."""

    def __init__(self, node: DhtNode, identity: Identity) -> None:
        self._node = node
        self._identity = identity
        self._clock = ClockStepDetector()
        self._run: NodeRun | None = None  # the latest run of p2pd

    async def call(self, operation: Callable[[Replicas], Coroutine[Any, Any, T]]) -> T:
        return await self._node.call(lambda run: operation(HivemindReplicas(run)))

    async def wait_until_up(self) -> None:
        self._run = await self._node.wait_until_up()

    async def wait_for_disturbance(self, within_s: float, lonely: bool) -> None:
        """Return when p2pd ends (at once), or when peers appear or the system clock is set (within `LOOK_S`)."""
        run = self._run
        with anyio.move_on_after(within_s):
            while run is not None and self._node.p2pd_run is run:
                if (lonely and run.peer_count) or self._clock.take_clock_step_s():
                    return
                lonely = lonely or not run.peer_count
                await asyncio.wait({run.gone}, timeout=LOOK_S)
                if run.gone.done():
                    return

    def sign(self, content: Payload, expiration: float) -> SignedRecord:
        return sign(self._identity, content, expiration)


class HivemindTopic:
    """One gossip topic; received messages are read in order."""

    def __init__(self, node: DhtNode, name: str) -> None:
        self._node = node
        self._name = name

    def listen(self, take: Callable[[str, bytes], None]) -> None:
        async def receive_messages(run: NodeRun) -> None:
            async for sender, message in run.p2p.subscribe(self._name):
                take(sender, message)

        self._node.attendants.append(receive_messages)

    def publish(self, message: bytes) -> None:
        spawn_in_background(self._send(message))

    async def _send(self, message: bytes) -> None:
        try:
            await self._node.call(lambda run: run.p2p.publish(self._name, message), PUBLISH_S)
        except NetworkDown as error:
            log.debug("nothing was sent on %s: %s", self._name, error)
