"""The network as a simulated worker reaches it: the ports of the shipped decisions, over the simulated DHT.

Whatever goes wrong on the way is drawn here: requests without an answer, peers that take a record and lose it, values
of before, hints that are lost or come twice.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zlib import crc32

from swarmd.dht.evidence import RecordComparison, SeenRecord
from swarmd.dht.p2p.limits import PeerCheck
from swarmd.dht.ports import EvidenceSink, Keepers, RecordsSink
from swarmd.dht.publisher import OwnRecords
from swarmd.dht.record_store import KeyWatch, RecordStore
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire.bodies import LeaderboardBody
from swarmd.dht.wire.evidence import Charge, Evidence, check_evidence
from swarmd.dht.wire.records import (
    ClockRecord,
    LeaderboardRecord,
    Payload,
    Record,
    RecordPolicy,
    ReportRecord,
    check_expiration,
    is_far,
    is_sharded,
)
from swarmd.errors import NetworkDown, RecordRejected
from swarmd.sim.coroutines import Answer
from swarmd.sim.ports.dht import SWARM, Once, Written, is_alive, size_of

if TYPE_CHECKING:
    from swarmd.sim.ports.network import NetworkWorker

POLL_S = 15.0  # hints are what carries; a poll finds what a lost one would have told
READ_KEPT = 8  # keys of which a worker knows what it has found there last


class SimTopic:
    """A gossip topic, see `swarmd.dht.ports.Topic`.

    Args:
        worker: who sends on it and listens to it.
        name: of the topic.
    """

    def __init__(self, worker: NetworkWorker, name: str) -> None:
        self._worker = worker
        self._name = name

    def listen(self, take: Callable[[str, bytes], None]) -> None:
        self._worker.listeners[self._name] = take

    def publish(self, message: bytes) -> None:
        worker = self._worker
        if not worker.joined:
            return
        for other in worker.dht.reached_by(worker):
            if other is not worker:
                worker.hint(other, other.hear, self._name, worker.node.peer, message)

    async def send(self, message: bytes) -> None:
        self.publish(message)


class RecordsSeen(RecordComparison):
    """The shipped comparison, which sees each record that a worker reads or writes once.

    Args:
        coordinator, known, found: as of the shipped one.
        signed: gives records as they travel.
    """

    def __init__(
        self, coordinator: str, known: PeerCheck, found: EvidenceSink, signed: Once[Record, SeenRecord]
    ) -> None:
        super().__init__(coordinator, known, found)
        self._signed = signed
        self._seen: dict[tuple[str, type[object]], Record] = {}  # the latest of each owner and kind
        self._read: dict[str, Mapping[str, Record]] = {}  # by key, what was found there last

    def see_all(self, name: str, found: Mapping[str, Record]) -> None:
        """Records that were found under a key; the same mapping as the last time holds nothing new."""
        if self._read.get(name) is found:
            return
        self._read.pop(name, None)
        self._read[name] = found
        if len(self._read) > READ_KEPT:
            del self._read[next(iter(self._read))]
        for record in found.values():
            self.see(record)

    def see(self, record: Record) -> None:
        content = record.content
        if not isinstance(content, ReportRecord | ClockRecord | LeaderboardRecord):
            return
        place = (record.owner, type(content))
        if self._seen.get(place) is not record:
            self._seen[place] = record
            self.compare(self._signed(record))

    def read_board(self, reports: Iterable[bytes]) -> None:
        """What simulated leaderboards quote is no record by itself, see `Written.encode`."""


def written_of(record: Record) -> Written:
    """A record that came by gossip, as the simulated DHT keeps it."""
    if isinstance(record, Written):
        return record
    content = record.content
    return Written(record.owner, content, record.expiration, size_of(content))


def check_unsigned(policy: RecordPolicy, evidence: Evidence) -> Charge:
    """See `swarmd.dht.wire.evidence.check_evidence`."""
    return check_evidence(policy, evidence, lambda signed, key: True)


CALL_S = 5.0  # a request that gets no answer fails after this
REPLICAS = 5  # peers that keep a record, as in `swarmd.dht.store.lookup`
BLOBS_KEPT = 256  # or twice as many as there are nodes: a stage without shards is gathered from nearly all
ROLLOUTS_BYTES = 4096  # of a body that the simulated trainer writes
DIGEST_LENGTH = 16  # of its digests, which are drawn
INLINE_BYTES_MAX = 40960

T = TypeVar("T")


class SimFindings(NamedTuple):
    """See `swarmd.dht.ports.Findings`."""

    records: Mapping[str, Record]
    answered: bool

    def has(self, wanted: Mapping[str, float]) -> bool:
        late = (owner in self.records and self.records[owner].expiration >= wanted[owner] for owner in wanted)
        return bool(wanted) and all(late)


class SimRecords(RecordStore):
    """Records as a worker reaches them.

    Args:
        worker: who reads.
        view: of its swarm.
        comparison: sees what was gossiped.
    """

    def __init__(self, worker: NetworkWorker, view: SwarmView, comparison: RecordComparison) -> None:
        super().__init__(view)
        self._worker = worker
        self._comparison = comparison

    def watch(self, name: str, seen: RecordsSink, polls: float = 1, later: bool = False) -> KeyWatch:
        self._worker.dht.watch(self._worker, name)
        return super().watch(name, seen, polls, later)

    def unwatch(self, name: str) -> None:
        self._worker.dht.unwatch(self._worker, name)
        super().unwatch(name)

    def judge(self, name: str, record: Record) -> Record:
        check_expiration(record.expiration, self._worker.node.clock())
        record = written_of(record)
        self._comparison.see(record)
        return record

    async def wait_up(self) -> None:
        await self._worker.until_up()

    async def find(self, name: str, wanted: Mapping[str, float] | None = None) -> SimFindings:
        worker = self._worker
        worker.world.counted.asked[name.split("/")[2]] += 1
        await worker.travel()
        return SimFindings(worker.read(name), worker.has_others)

    async def find_each(self, name: str, owners: Collection[str], wanted: Collection[str] | None = None) -> SimFindings:
        found = await self.find(name)
        return SimFindings({owner: found.records[owner] for owner in owners if owner in found.records}, found.answered)

    async def find_of(self, name: str, owner: str) -> SimFindings:
        worker = self._worker
        worker.world.counted.asked["member"] += 1
        await worker.travel()
        record = _shown_by(worker, owner, name) or worker.search(name).get(owner)
        return SimFindings({} if record is None else {owner: record}, worker.has_others)

    def hold(self, name: str, record: Record) -> None:
        if self._worker.joined:
            self._worker.store.put(name, written_of(record))

    async def answers(self, peer: str) -> bool:
        await self._worker.travel()
        return self._worker.reaches(peer)

    def spent_s(self) -> float:
        return 0.0


def _shown_by(worker: NetworkWorker, owner: str, name: str) -> Written | None:
    """What the owner of a record shows itself, if it can be called."""
    other = worker.dht.worker_of(owner)
    record = other.own.get(name) if other is not None and worker.reaches(owner) else None
    return record if record is not None and is_alive(record, worker.node.clock()) else None


class SimBodies:
    """Bodies on a simulated disk and at their owners, see `swarmd.dht.ports.Bodies`."""

    def __init__(self, worker: NetworkWorker) -> None:
        self._worker = worker
        self._kept = worker.dht.blobs.setdefault(worker.node.index, {})
        self._boards = worker.dht.boards

    def has(self, digest: str) -> bool:
        return digest in self._kept

    async def get(self, digest: str) -> bytes:
        return self._kept.get(digest) or body_of(digest)

    async def put(self, body: bytes) -> str:
        digest = digest_of(body)
        self._kept[digest] = body if len(digest) > DIGEST_LENGTH else b""
        while len(self._kept) > max(BLOBS_KEPT, 2 * len(self._worker.world.nodes)):
            del self._kept[next(iter(self._kept))]
        return digest

    async def fetch(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        worker = self._worker
        worker.world.counted.asked["body"] += 1
        await worker.travel()
        body = worker.body_from(peer, digest)
        if body is None:
            await worker.runtime.sleep(timeout_s)
            raise NetworkDown(f"no answer from {peer} within {timeout_s:g} s")
        if len(body) != size_bytes:
            raise RecordRejected("oversized", f"{len(body)} bytes instead of {size_bytes}")
        return body

    async def inflate(self, packed: bytes, size_bytes: int) -> bytes:
        body = packed[1:].ljust(ROLLOUTS_BYTES) if len(packed) == DIGEST_LENGTH + 1 else self._boards.unpack(packed)
        if packed[:1] != b"z" or len(body) != size_bytes:
            raise RecordRejected("malformed", f"the body has not the stated {size_bytes} bytes")
        return body

    async def deflate(self, body: bytes, members: int, to_fetch: bool = True) -> bytes:
        """Every second node writes rollouts that are too large for a record."""
        if len(digest_of(body)) == DIGEST_LENGTH:
            return b"" if self._worker.node.index % 2 else b"z" + body[:DIGEST_LENGTH]
        return b"z" + body if len(body) < INLINE_BYTES_MAX else b""

    async def check(self, body: bytes, digest: str, size_bytes: int) -> None:
        if len(body) != size_bytes:
            raise RecordRejected("oversized", f"{len(body)} bytes instead of {size_bytes}")
        if (digest_of(body) if is_rollouts(body) else self._boards.digest(body)) != digest:
            raise RecordRejected("wrong-digest", "the body is not the one that was announced")

    def open_board(self, body: bytes) -> LeaderboardBody:
        return self._boards.open(body)


def body_of(digest: str) -> bytes:
    """The rollouts that a simulated trainer wrote."""
    return digest.encode().ljust(ROLLOUTS_BYTES)


def is_rollouts(body: bytes) -> bool:
    """Whether a body is what `body_of` makes."""
    return len(body) == ROLLOUTS_BYTES and body.endswith(b" ")


def digest_of(body: bytes) -> str:
    """Drawn for rollouts, a sha256 for all else."""
    if is_rollouts(body):
        return sys.intern(body[:DIGEST_LENGTH].decode())  # all who keep the body keep its digest
    return hashlib.sha256(body).hexdigest()


class SimKeepers:
    """Peers that may keep a worker's records, see `swarmd.dht.ports.Keepers`."""

    def __init__(self, worker: NetworkWorker) -> None:
        self._worker = worker
        self._admitted: list[tuple[str, Written]] = []

    def admit(self, name: str, record: Record) -> None:
        own, held = self._worker.own, self._worker.own.get(name)
        if held is not None and held != record and held.expiration >= record.expiration and self._counts(held):
            raise RecordRejected("stale", "a later record of the owner is held")
        own[name] = written_of(record)
        self._admitted.append((name, written_of(record)))

    def _counts(self, held: Record) -> bool:
        """Whether a record is none of a clock that was ahead."""
        return not is_far(held.expiration, self._worker.node.clock())

    def held(self, name: str, owner: str) -> Record | None:
        return self._worker.own.get(name)

    def near(self, name: str) -> list[Hashable]:
        return list(self._worker.near(crc32(name.encode()), REPLICAS))

    def trusted_peers(self, name: str) -> list[Hashable]:
        return list(self._worker.guides())

    async def spread(self, name: str, record: Record, peers: Sequence[Hashable]) -> list[Hashable]:
        worker = self._worker
        worker.world.counted.asked["store"] += 1
        await worker.travel(fails=False)
        failure, random = worker.world.chance("failure"), worker.random
        took = [peer for peer in peers if worker.takes(peer) and random.random() >= failure]
        if not any(map(worker.reaches, took)) or random.random() < worker.world.chance("stale"):
            return took  # nobody honest heard of it; or those who did lose it at once
        if not worker.keep(name, written_of(record)):
            return []
        worker.world.counted.on_stored(record.content, worker.world.now)
        if is_sharded(record.content):  # at which nobody hints: the coordinator is among those who keep it
            worker.tell_keepers(took, record)
        return took

    async def shows(self, peer: Hashable, name: str, record: Record) -> tuple[bool, Record | None]:
        worker = self._worker
        await worker.travel(fails=False)
        if not worker.reaches(peer) or worker.random.random() < worker.world.chance("failure"):
            return False, None
        held = worker.store.find(name, worker.world.now).get(record.owner)
        if held is None or held == record:
            return held is not None, None
        return False, held if held.expiration > record.expiration else None

    async def prove_link(self) -> None:
        """Whoever comes finds what a lonely node keeps."""
        await self._worker.travel()
        for name, record in self._admitted:
            self._worker.keep(name, record)

    def settle(self, name: str, record: Record, stored: Collection[Hashable]) -> None:
        """All who could keep it at this side of a partition hold what they hold together."""


class SimNetwork:
    """Where a worker publishes, see `swarmd.dht.ports.Network`."""

    def __init__(self, worker: NetworkWorker) -> None:
        self._worker = worker
        self._epoch = 0
        self._jumps = worker.node.jumps

    async def call(self, operation: Callable[[Keepers], Coroutine[Any, Any, T]]) -> T:
        if not self._worker.joined:
            raise NetworkDown("the network is down: p2pd is being started")
        return await operation(SimKeepers(self._worker))

    async def wait_up(self) -> None:
        await self._worker.until_up()
        self._epoch = self._worker.epoch

    async def disturbed(self, within_s: float, lonely: bool) -> None:
        worker = self._worker
        until = worker.runtime.now() + within_s
        while worker.epoch == self._epoch and not (lonely and worker.has_others) and self._jumps == worker.node.jumps:
            lonely = lonely or not worker.has_others
            left_s = until - worker.runtime.now()
            if left_s <= 0:
                break
            await worker.disturbance.wait(left_s)
        self._jumps = worker.node.jumps

    def sign(self, content: Payload, expiration: float) -> Written:
        record = Written(self._worker.node.peer, content, expiration, size_of(content))
        self._worker.world.checks.network.on_signed(self._worker.node, record)
        return record


class SimOwnRecords(OwnRecords):
    """Own records on a simulated disk."""

    def __init__(self, worker: NetworkWorker) -> None:
        super().__init__(SWARM, worker.dht.shelves.get(worker.node.index, ()))
        self._worker = worker

    async def save(self) -> None:
        self._worker.dht.shelves[self._worker.node.index] = self.kept


class SimHintGossip:
    """Says that there is a record to all who watch its key."""

    def __init__(self, worker: NetworkWorker) -> None:
        self._worker = worker

    def publish(self, record: Record) -> None:
        worker, key = self._worker, record.content.key
        for other in worker.dht.watching.get(key, ()):
            if other is not worker and other.linked and other.node.side == worker.node.side:
                worker.hint(other, other.take_hint, key, record.owner, record.expiration)


class Condition:
    """Coroutines that wait for one thing to happen."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []

    async def wait(self) -> None:
        """Return when it happens."""
        answer = Answer()
        self._answers.append(answer)
        await answer

    def happen(self) -> None:
        """Have all of them go on."""
        answers, self._answers = self._answers, []
        for answer in answers:
            answer.give()
