"""A simulated node's network worker: the shipped logic over a simulated network.

- The link, the DHT's storage and look-ups, bodies, gossip and time are simulated; the process dies and freezes.
  `swarmd.dht` decides what is gathered, published, watched and reported, and reaches the network through the ports
  implemented here.
- Network faults are drawn here: requests without an answer, peers that accept a record and lose it, stale values, hints
  and facts that are lost or duplicated.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from msgspec.structs import replace

from swarmd.config import ChainConfig, Config, DhtConfig, SwarmConfig
from swarmd.core import events
from swarmd.core.commands import Command, FetchWeights
from swarmd.core.values import AveragedOffer, PeerWeights, Standing
from swarmd.dht.agent import NetworkAgent
from swarmd.dht.evidence import DecodedRecord, EquivocationDetector, EvidenceGossip
from swarmd.dht.gossip import ClockGossip, Gossip
from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.membership import Members
from swarmd.dht.p2p.limits import PeerCheck
from swarmd.dht.ports import EvidenceSink, RecordsSink, Replicas
from swarmd.dht.publisher import OwnRecords, Publisher
from swarmd.dht.record_store import KeyWatch, RecordStore
from swarmd.dht.store.seniority import Rank, Seniority
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names, records
from swarmd.dht.wire.bodies import LeaderboardBody, SavedStandings
from swarmd.dht.wire.evidence import Evidence, ProvenEquivocation, check_evidence
from swarmd.errors import NetworkDown, RecordRejected
from swarmd.sim.coroutines import VirtualFuture, VirtualRuntime
from swarmd.sim.dht import (
    CLOCK,
    RECORD_S,
    SWARM,
    IdentityCache,
    LeaderboardCaches,
    PartitionStore,
    SimDht,
    SimRecord,
    estimate_record_bytes,
    is_unexpired,
)
from swarmd.sim.machine import SimMachine
from swarmd.sim.processes import SimSupervisor, SimWorker
from swarmd.sim.simulation import peer_id_of

POLL_S = 15.0  # hints carry the news; a poll finds what a lost one would have told
READ_KEPT = 8  # keys of which a worker remembers the last result
CALL_S = 5.0  # timeout of a request without an answer
REPLICAS = 5  # peers that hold a record, as in `swarmd.dht.store.lookup`
BLOBS_KEPT = 256  # or twice the number of nodes: an unsharded stage is gathered from nearly all
ROLLOUTS_BYTES = 4096  # size of a body from the simulated trainer
DIGEST_LENGTH = 16  # of its digests, which are random
INLINE_BYTES_MAX = 40960
PIPE_S = 0.001  # latency from the daemon to the worker
JOIN_S = (0.2, 3.0)
WEIGHTS_SPENT_CHANCE = 0.1  # of repeated offers for averaging, if there were earlier ones
WEIGHTS_MISSING_CHANCE = 0.2
CONTRACT = ChainConfig(rpc=(), chain_id=31337, contract="0x" + "1" * 40)

T = TypeVar("T")


class SimTopic:
    """A gossip topic, see `swarmd.dht.ports.Topic`."""

    def __init__(self, worker: SimNetworkWorker, name: str) -> None:
        self._worker = worker
        self._name = name

    def listen(self, take: Callable[[str, bytes], None]) -> None:
        self._worker.listeners[self._name] = take

    def publish(self, message: bytes) -> None:
        worker = self._worker
        if not worker.joined:
            return
        for other in worker.dht.linked_workers_at(worker.partition_side):
            if other is not worker:
                worker.send_gossip(other, other.on_gossip, self._name, worker.peer, message)


class SimRecordComparison(EquivocationDetector):
    """The shipped comparison, which processes each record that a worker reads or writes once."""

    def __init__(
        self,
        coordinator: str,
        known: PeerCheck,
        found: EvidenceSink,
        signed: IdentityCache[records.Record, DecodedRecord],
    ) -> None:
        super().__init__(coordinator, known, found)
        self._signed = signed
        self._seen: dict[tuple[str, type[object]], records.Record] = {}  # the latest of each owner and kind
        self._read: dict[str, Mapping[str, records.Record]] = {}  # key → records found there last

    def compare_found(self, name: str, found: Mapping[str, records.Record]) -> None:
        """Compare records found under a key; an identical mapping as before holds nothing new."""
        if self._read.get(name) is found:
            return
        self._read.pop(name, None)
        self._read[name] = found
        if len(self._read) > READ_KEPT:
            del self._read[next(iter(self._read))]
        for record in found.values():
            self.compare_record(record)

    def compare_record(self, record: records.Record) -> None:
        content = record.content
        if not isinstance(content, records.ReportRecord | records.ClockRecord | records.LeaderboardRecord):
            return
        place = (record.owner, type(content))
        if self._seen.get(place) is not record:
            self._seen[place] = record
            self.compare_decoded(self._signed(record))

    def compare_quoted_reports(self, reports: Iterable[bytes]) -> None:
        """Do nothing: simulated leaderboards do not quote whole records, see `SimRecord.encode`."""


def to_sim_record(record: records.Record) -> SimRecord:
    """Return a gossiped record in the form that the simulated DHT stores."""
    if isinstance(record, SimRecord):
        return record
    content = record.content
    return SimRecord(record.owner, content, record.expiration, estimate_record_bytes(content))


def check_unsigned_evidence(policy: records.RecordPolicy, evidence: Evidence) -> ProvenEquivocation:
    return check_evidence(policy, evidence, lambda signed, key: True)


class SimFindings(NamedTuple):
    """Implements `swarmd.dht.ports.LookupResult`."""

    records: Mapping[str, records.Record]
    answered: bool

    def has_all(self, wanted: Mapping[str, float]) -> bool:
        late = (owner in self.records and self.records[owner].expiration >= wanted[owner] for owner in wanted)
        return bool(wanted) and all(late)


class SimRecords(RecordStore):
    """A worker's access to records."""

    def __init__(self, worker: SimNetworkWorker, view: SwarmView, comparison: EquivocationDetector) -> None:
        super().__init__(view)
        self._worker = worker
        self._comparison = comparison

    def watch(self, name: str, seen: RecordsSink, polls: float = 1, later: bool = False) -> KeyWatch:
        self._worker.dht.watching.setdefault(name, {})[self._worker] = None
        return super().watch(name, seen, polls, later)

    def unwatch(self, name: str) -> None:
        self._worker.dht.unwatch_key(self._worker, name)
        super().unwatch(name)

    def check_gossiped_record(self, name: str, record: records.Record) -> records.Record:
        records.check_expiration(record.expiration, self._worker.node.local_time())
        record = to_sim_record(record)
        self._comparison.compare_record(record)
        return record

    async def wait_until_up(self) -> None:
        await self._worker.wait_until_up()

    async def find_records(self, name: str, wanted: Mapping[str, float] | None = None) -> SimFindings:
        worker = self._worker
        worker.world.asked[name.split("/")[2]] += 1
        await worker.wait_round_trip()
        return SimFindings(worker.look_up(name), worker.has_peers_at_side)

    async def find_records_by_owners(
        self, name: str, owners: Collection[str], wanted: Collection[str] | None = None
    ) -> SimFindings:
        found = await self.find_records(name)
        return SimFindings({owner: found.records[owner] for owner in owners if owner in found.records}, found.answered)

    async def find_record_by_owner(self, name: str, owner: str) -> SimFindings:
        worker = self._worker
        worker.world.asked["member"] += 1
        await worker.wait_round_trip()
        # The owner sends it itself, if it can be called.
        other = worker.dht.worker_of_peer(owner)
        record = other.own.get(name) if other is not None and worker.can_reach(owner) else None
        if record is None or not is_unexpired(record, worker.node.local_time()):
            record = worker.search_peers(name).get(owner)
        return SimFindings({} if record is None else {owner: record}, worker.has_peers_at_side)

    def store_locally(self, name: str, record: records.Record) -> None:
        if self._worker.joined:
            self._worker.partition_store.put_record(name, to_sim_record(record))

    async def ping_peer(self, peer: str) -> bool:
        await self._worker.wait_round_trip()
        return self._worker.can_reach(peer)

    def cpu_time_s(self) -> float:
        return 0.0


class SimBodies:
    """Bodies on a simulated disk and at their owners, see `swarmd.dht.ports.Bodies`."""

    def __init__(self, worker: SimNetworkWorker) -> None:
        self._worker = worker
        self._kept = worker.dht.blobs.setdefault(worker.index, {})
        self._boards = worker.dht.boards

    def has(self, digest: str) -> bool:
        return digest in self._kept

    async def get(self, digest: str) -> bytes:
        return self._kept.get(digest) or make_rollouts_body(digest)

    async def put(self, body: bytes) -> str:
        digest = digest_of_body(body)
        self._kept[digest] = body if len(digest) > DIGEST_LENGTH else b""
        while len(self._kept) > max(BLOBS_KEPT, 2 * self._worker.world.profile.nodes):
            del self._kept[next(iter(self._kept))]
        return digest

    async def fetch(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        worker = self._worker
        worker.world.asked["body"] += 1
        await worker.wait_round_trip()
        body = worker.fetch_body(peer, digest)
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
        """Compress a body, so that every second node's rollouts are too large for a record."""
        if len(digest_of_body(body)) == DIGEST_LENGTH:
            return b"" if self._worker.index % 2 else b"z" + body[:DIGEST_LENGTH]
        return b"z" + body if len(body) < INLINE_BYTES_MAX else b""

    async def check(self, body: bytes, digest: str, size_bytes: int) -> None:
        if len(body) != size_bytes:
            raise RecordRejected("oversized", f"{len(body)} bytes instead of {size_bytes}")
        if (digest_of_body(body) if is_rollouts_body(body) else self._boards.digest(body)) != digest:
            raise RecordRejected("wrong-digest", "the body is not the one that was announced")

    def decode_leaderboard(self, body: bytes) -> LeaderboardBody:
        return self._boards.open(body)


def make_rollouts_body(digest: str) -> bytes:
    """Return the body that a simulated trainer wrote."""
    return digest.encode().ljust(ROLLOUTS_BYTES)


def is_rollouts_body(body: bytes) -> bool:
    return len(body) == ROLLOUTS_BYTES and body.endswith(b" ")


def digest_of_body(body: bytes) -> str:
    """Return a body's digest: for rollouts the random one in it, for others the sha256."""
    if is_rollouts_body(body):
        return sys.intern(body[:DIGEST_LENGTH].decode())  # shared by all holders of the body
    return hashlib.sha256(body).hexdigest()


class SimReplicas:
    """Peers that may keep a worker's records, see `swarmd.dht.ports.Replicas`."""

    def __init__(self, worker: SimNetworkWorker) -> None:
        self._worker = worker
        self._admitted: list[tuple[str, SimRecord]] = []

    def store_locally(self, name: str, record: records.Record) -> None:
        own, held = self._worker.own, self._worker.own.get(name)
        if (
            held is not None
            and held != record
            and held.expiration >= record.expiration
            and self._is_expiration_plausible(held)
        ):
            raise RecordRejected("stale", "a later record of the owner is held")
        own[name] = to_sim_record(record)
        self._admitted.append((name, to_sim_record(record)))

    def _is_expiration_plausible(self, held: records.Record) -> bool:
        """Return whether a record was not signed by a clock that was ahead."""
        return not records.is_too_far_ahead(held.expiration, self._worker.node.local_time())

    def get_local_record(self, name: str, owner: str) -> records.Record | None:
        return self._worker.own.get(name)

    def nearest_peers(self, name: str) -> list[Hashable]:
        return list(self._worker.nearest_peers(crc32(name.encode()), REPLICAS))

    def trusted_peers(self, name: str) -> list[Hashable]:
        return list(self._worker.trusted_peers())

    async def store_at_peers(self, name: str, record: records.Record, peers: Sequence[Hashable]) -> list[Hashable]:
        worker = self._worker
        worker.world.asked["store"] += 1
        await worker.wait_round_trip(fails=False)
        failure, random = worker.world.fault_chance("failure"), worker.random
        took = [peer for peer in peers if worker.is_storing_peer(peer) and random.random() >= failure]
        if not any(map(worker.can_reach, took)) or random.random() < worker.world.fault_chance("stale"):
            return took  # no honest peer got it, or those that did lost it at once
        if not worker.store_at_peers(name, to_sim_record(record)):
            return []
        worker.world.on_record_stored(record)
        if records.is_sharded(record.content):  # has no hints; the coordinator is among the replicas
            worker.notify_replicas(took, record)
        return took

    async def read_back(self, peer: Hashable, name: str, record: records.Record) -> tuple[bool, records.Record | None]:
        worker = self._worker
        await worker.wait_round_trip(fails=False)
        if not worker.can_reach(peer) or worker.random.random() < worker.world.fault_chance("failure"):
            return False, None
        held = worker.partition_store.find_records(name, worker.world.now).get(record.owner)
        if held is None or held == record:
            return held is not None, None
        return False, held if held.expiration > record.expiration else None

    async def check_network_link(self) -> None:
        """Store at peers again what was stored while the node was alone."""
        await self._worker.wait_round_trip()
        for name, record in self._admitted:
            self._worker.store_at_peers(name, record)

    def replicate_in_background(self, name: str, record: records.Record, stored: Collection[Hashable]) -> None:
        """Do nothing: all peers on one side of a partition share one store."""


class SimNetwork:
    """The network that a worker publishes in, see `swarmd.dht.ports.Network`."""

    def __init__(self, worker: SimNetworkWorker) -> None:
        self._worker = worker
        self._epoch = 0
        self._jumps = worker.node.jumps

    async def call(self, operation: Callable[[Replicas], Coroutine[Any, Any, T]]) -> T:
        if not self._worker.joined:
            raise NetworkDown("the network is down: p2pd is being started")
        return await operation(SimReplicas(self._worker))

    async def wait_until_up(self) -> None:
        await self._worker.wait_until_up()
        self._epoch = self._worker.epoch

    async def wait_for_disturbance(self, within_s: float, lonely: bool) -> None:
        worker = self._worker
        until = worker.runtime.now() + within_s
        while (
            worker.epoch == self._epoch
            and not (lonely and worker.has_peers_at_side)
            and self._jumps == worker.node.jumps
        ):
            lonely = lonely or not worker.has_peers_at_side
            left_s = until - worker.runtime.now()
            if left_s <= 0:
                break
            await worker.disturbance.wait(left_s)
        self._jumps = worker.node.jumps

    def sign(self, content: records.Payload, expiration: float) -> SimRecord:
        record = SimRecord(self._worker.peer, content, expiration, estimate_record_bytes(content))
        self._worker.world.on_record_signed(self._worker.index, record)
        return record


class SimOwnRecords(OwnRecords):
    def __init__(self, worker: SimNetworkWorker) -> None:
        super().__init__(SWARM, worker.dht.own_records.get(worker.index, ()))
        self._worker = worker

    async def save(self) -> None:
        self._worker.dht.own_records[self._worker.index] = self.all_records


class SimHintGossip:
    """Sends a hint at a record to all workers that watch its key."""

    def __init__(self, worker: SimNetworkWorker) -> None:
        self._worker = worker

    def publish(self, record: records.Record) -> None:
        worker, key = self._worker, record.content.key
        for other in worker.dht.watchers_of_key(key, worker.partition_side):
            if other is not worker:
                worker.send_gossip(other, other.on_hint, key, record.owner, record.expiration)


class SimSeniority(Seniority):
    """A node's seniority, with proof of work from a table instead of a search."""

    def __init__(self, always: PeerCheck, secret: bytes, works: Mapping[str, int], boards: LeaderboardCaches) -> None:
        super().__init__(always, secret)
        self._works = works
        self._boards = boards

    def compute_credited_rounds(self, standings: Iterable[Standing]) -> Mapping[str, int]:
        return self._boards.rounds(standings)

    def rank_of(self, record: records.Record, key: bytes) -> Rank:
        return self.make_rank(record.owner, key, self._works.get(record.owner, WORK_BITS), record.size_bytes)


class SimSession:
    """The parts of a simulated worker's network, connected. Implements `OwnNode`, too."""

    def __init__(self, worker: SimNetworkWorker, random: Random) -> None:
        node, dht, runtime = worker.node, worker.dht, worker.runtime
        self._node = node
        self._dht = dht
        config, nonce = make_node_config(node), f"{node.life}/{worker.pid}"
        known = (config.swarm.coordinator or node.peer, node.peer)
        secret = f"{node.peer}/{worker.pid}".encode()
        seniority = SimSeniority(known.__contains__, secret, dht.works, dht.boards)
        parts = (config, node.peer, nonce, runtime, random, worker.emit_event)
        view = self.view = SwarmView(*parts, seniority=lambda always: seniority)
        kept = dht.standings.get(node.index)
        if kept is not None:
            seniority.update_standings(kept.standings)
        self.bodies = SimBodies(worker)
        evidence = EvidenceGossip(view, SimTopic(worker, names.evidence_topic(SWARM)), check_unsigned_evidence)
        self.comparison = SimRecordComparison(
            view.coordinator, view.is_credited, evidence.on_evidence_found, dht.signed
        )
        self.store = SimRecords(worker, view, self.comparison)
        clock = ClockGossip(view, SimTopic(worker, names.clock_topic(SWARM)))
        hint, accepted = SimHintGossip(worker).publish, self.store.handle_stored_record
        self.gossip = Gossip(clock, evidence, self.comparison, hint, accepted)
        self.publisher = Publisher(view, SimNetwork(worker), SimOwnRecords(worker), self.gossip)

    async def addresses(self) -> tuple[str, ...]:
        return ()

    async def proof_of_work(self) -> int:
        return 0

    async def withdrawn_invitations(self) -> bytes:
        return b""

    async def weights_offer(self) -> bytes:
        return b""

    def remember_addresses(self, peer: str, addresses: Sequence[str], credited: bool) -> None:
        """Do nothing: simulated nodes need no addresses."""

    def save_withdrawals(self) -> None:
        """Do nothing: simulated swarms have no invitations."""

    async def save_standings(self, board: LeaderboardBody) -> None:
        self._dht.standings[self._node.index] = SavedStandings(SWARM, board.round, board.standings)
        if self.view.coordinating:
            self._dht.seniority.update_standings(board.standings)


def make_node_config(node: SimMachine) -> Config:
    """Return a node's configuration of the network."""
    settings, profile = node.settings, node.world.profile
    dht = DhtConfig(poll_s=POLL_S, record_s=RECORD_S, gather_peers=profile.gather_peers)
    coordinator = "" if node.coordinates else settings.coordinator
    return Config(
        swarm=SwarmConfig(SWARM, coordinator, stages=settings.stages),
        name=node.name,
        role=settings.role,
        dht=dht,
        chain=CONTRACT if settings.chain is not None else None,
    )


class SimNetworkWorker(SimWorker):
    """A node's network worker.

    Attributes:
        joined: whether p2pd runs.
        linked: whether it reaches the swarm.
        epoch: number of link losses; requests from before a loss get no answer.
        own: the node's own records, as it stores them itself.
        listeners: gossip topic → message handler.
    """

    kind = "network"

    def __init__(self, supervisor: SimSupervisor, pid: int, dht: SimDht[SimNetworkWorker]) -> None:
        super().__init__(supervisor, pid)
        self.dht = dht
        self.index, self.peer = self.node.index, self.node.peer
        self.linked = False
        self.joined = False
        self.peers_told = 0
        self.epoch = 0
        self.own: dict[str, SimRecord] = {}
        self.listeners: dict[str, Callable[[str, bytes], None]] = {}
        self.runtime = VirtualRuntime(self.call_later, lambda: self.world.now, self.node.local_time)
        self.disturbance = self.runtime.make_signal()
        session = self.session = SimSession(self, self.make_random())
        parts = (session.view, session.store, session.publisher)
        members = Members(*parts, session)
        self.agent = NetworkAgent(*parts, session.gossip, session.bodies, session, members)
        self._until_up: list[VirtualFuture] = []  # completed when p2pd runs
        self._deaf = False
        self._hurries = False  # it is about to end, and announces that without waiting for timeouts

    def make_random(self) -> Random:
        """Return the random stream of the shipped code."""
        return self.random

    # --- the link ---

    def start(self) -> None:
        self._deaf = self.random.random() < self.world.fault_chance("slow_start")
        if self._deaf:
            return
        self.dht.add_worker(self)
        self.runtime.start(self.session.publisher.run())
        self.runtime.start(self.session.gossip.evidence.run())
        self.agent.start()
        self.call_later(self.random.uniform(*JOIN_S), self._bring_up)
        self.call_later(self.random.uniform(0.5, 1.0) * POLL_S, self._poll_link)

    def _bring_up(self) -> None:
        self.joined = True
        waiting, self._until_up = self._until_up, []
        for answer in waiting:
            answer.complete()
        self._update_link()

    def _update_link(self) -> None:
        """Report changes of the link: a follower is linked while it reaches another node, the coordinator always."""
        others = self.dht.on_side[self.partition_side] - 1
        reaches = others > 0 or self.node.coordinates
        if reaches and (not self.linked or self._is_peer_change_relevant(others)):
            self.linked, self.peers_told = True, others
            self.send_event(events.LinkUp(others))
        elif self.linked and not reaches:
            self.linked = False
            self.send_event(events.LinkDegraded("no peer answers"))
        elif not reaches and self.random.random() < 0.2:
            self.send_event(events.LinkDegraded("no peer answers"))
        self.disturbance.set()

    def _is_peer_change_relevant(self, others: int) -> bool:
        """Return whether the last peer left or the first came back, if the coordinator holds stages when alone."""
        coordination = self.node.settings.coordination
        holds = coordination is not None and coordination.when_alone == "hold"
        return holds and (others > 0) != (self.peers_told > 0)

    def lose_link(self) -> None:
        """Simulate the death of p2pd, which is restarted."""
        if not self.alive or not self.joined:
            return
        self.epoch += 1
        self.linked = self.joined = False
        self.disturbance.set()
        self.send_event(events.LinkDown("p2pd ended"))
        self.call_later(self.random.uniform(0.3, 4.0), self._bring_up)

    def _poll_link(self) -> None:
        self.call_later(POLL_S, self._poll_link)
        if self.joined:
            self._update_link()
        for event in self.session.view.rejections.take_due_events():
            self.send_event(event)

    def handle_stop(self) -> None:
        """Announce the departure in an orderly stop."""
        if self.joined and not self._deaf and not self.ignores_stop:
            self._hurries = True
            self.runtime.start(self.agent.members.leave())
        super().handle_stop()

    def terminate(self) -> None:
        super().terminate()
        self.runtime.stop()
        self.dht.remove_worker(self)

    # --- commands and facts ---

    def perform(self, command: Command) -> None:
        if self._deaf:
            return
        if isinstance(command, FetchWeights):
            self._fetch_weights(command)
            return
        self.world.on_network_command(self.index, command)
        self.call_later(PIPE_S, self.agent.start_command, command)

    def _fetch_weights(self, command: FetchWeights) -> None:
        """Simulate a fetch: weights arrive after a while, sometimes too late or not at all. No bytes are moved."""
        left_s = command.until_at - self.node.local_time()
        if self.random.random() < self.world.fault_chance("loss") or left_s <= 0:
            return
        if not self.joined or self.random.random() < WEIGHTS_MISSING_CHANCE:
            self.send_event(events.WeightsRefused(command.id, "none-offered", "nobody offers any"))
            return
        digest, size_bytes = f"{self.random.getrandbits(256):064x}", self.random.randint(1, command.size_bytes_max)
        others = [peer_id_of(index) for index in range(self.world.profile.nodes) if index != self.index]
        whose = self.random.choice(others) if command.average else self.node.settings.coordinator
        round = int(command.id.rpartition("/")[2]) - 1
        several = self.random.sample(others, self.random.randrange(len(others))) if command.average else []
        more = [AveragedOffer(peer, round, f"{self.random.getrandbits(256):064x}") for peer in several if peer != whose]
        weights = PeerWeights(whose, round, digest, size_bytes, 0.5, command.average, tuple(more))
        if command.averaged and self.random.random() < WEIGHTS_SPENT_CHANCE:  # a peer that no longer trains
            spent = self.random.choice(command.averaged)
            weights = replace(weights, peer=spent.peer, round=spent.round, digest=spent.digest)
        seconds = self.random.expovariate(4.0 / max(left_s, 1.0))
        self.call_later(seconds, self.send_event, events.WeightsFetched(command.id, weights, size_bytes, seconds))

    def emit_event(self, event: events.Event) -> None:
        """Report a fact of the shipped code, sometimes twice."""
        self.world.on_network_fact(self.index, event)
        self.send_event(event)
        if isinstance(
            event, events.RoundAnnounced | events.ReportSeen
        ) and self.random.random() < self.world.fault_chance("duplicate"):
            self.send_event(event)

    # --- what it reaches ---

    @property
    def partition_side(self) -> int:
        return self.dht.sides[self.index]

    @property
    def partition_store(self) -> PartitionStore:
        """The records on its side of a partition."""
        return self.dht.stores[self.partition_side]

    @property
    def has_peers_at_side(self) -> bool:
        """Whether there are other workers on its side."""
        return self.joined and self.dht.on_side[self.partition_side] > 1

    def can_reach(self, peer: Hashable) -> bool:
        """Return whether an honest node can be called."""
        other = self.dht.worker_of_peer(peer)
        return other is not None and other.joined and other.partition_side == self.partition_side

    def is_storing_peer(self, peer: Hashable) -> bool:
        return self.can_reach(peer)

    def nearest_peers(self, place: int, count: int) -> list[str]:
        """Return `count` peers that should hold a key's records."""
        workers, side = self.dht.workers, self.partition_side
        found: list[str] = []
        for step in range(len(workers)):
            other = workers[(place + step) % len(workers)]
            if other is not self and other.joined and other.partition_side == side:
                found.append(other.peer)
                if len(found) == count:
                    break
        return found

    def trusted_peers(self) -> list[str]:
        """Return peers that are asked in each search."""
        return [] if self.node.coordinates else [self.session.view.coordinator]

    async def wait_until_up(self) -> None:
        """Return when p2pd runs."""
        while not self.joined:
            answer = VirtualFuture()
            self._until_up.append(answer)
            await answer

    async def wait_round_trip(self, fails: bool = True) -> None:
        """Let the time of a round trip pass. Raises NetworkDown without a link or an answer."""
        epoch = self.epoch
        if not self.joined:
            raise NetworkDown("the network is down: p2pd is being started")
        if fails and self.random.random() < self.world.fault_chance("failure"):
            await self.runtime.sleep(0.0 if self._hurries else CALL_S)
            raise NetworkDown(f"no answer from the network within {CALL_S:g} s")
        if not self._hurries:
            answer = VirtualFuture()
            self.call_later(min(self.random.expovariate(1.0 / self.world.profile.latency_s), CALL_S), answer.complete)
            await answer
        if epoch != self.epoch or not self.joined:
            raise NetworkDown("p2pd ended")

    def look_up(self, name: str) -> Mapping[str, SimRecord]:
        """Return what a look-up finds under a key, on this node and others; sometimes stale records."""
        found = self.search_peers(name)
        if name == CLOCK and found and self.random.random() < self.world.fault_chance("stale"):
            before = self.partition_store.before.get(self.session.view.coordinator)
            found = {} if before is None else {before.owner: before}
        own = self.own.get(name)
        if own is not None and is_unexpired(own, self.node.local_time()):
            held = found.get(own.owner)
            if held is None or held.expiration < own.expiration:
                return {**found, own.owner: own}
        return found

    def search_peers(self, name: str) -> Mapping[str, SimRecord]:
        """Return what others hold under a key, after comparing records seen for the first time with earlier ones."""
        found = self.partition_store.find_records(name, self.node.local_time())
        self.session.comparison.compare_found(name, found)
        return found

    def store_at_peers(self, name: str, record: SimRecord) -> bool:
        """Store an own record at peers. Returns False if there is no room."""
        return self.partition_store.put_record(name, record)

    def notify_replicas(self, peers: Sequence[Hashable], record: records.Record) -> None:
        """Pass a stored record to its replicas' workers: a collector accepts it, a watch reads its key."""
        for peer in peers:
            other = self.dht.worker_of_peer(peer)
            if other is not None and other.joined:
                other.session.store.handle_stored_record(record)

    def fetch_body(self, peer: str, digest: str) -> bytes | None:
        """Return the body that a peer sends for a digest; None if it never answers. Raises NetworkDown."""
        other = self.dht.worker_of_peer(peer)
        if other is None or not self.can_reach(peer):
            raise NetworkDown(f"{peer} is not there")
        kept = self.dht.blobs.get(other.index, {}).get(digest)
        if kept:  # otherwise the body is derived from its digest
            return kept
        return make_rollouts_body(digest) if len(digest) == len(make_rollouts_body(digest).rstrip()) else None

    # --- gossip ---

    def send_gossip(self, other: SimNetworkWorker, act: Callable[..., None], *args: Any) -> None:
        """Send gossip to another worker; sometimes it is lost, or arrives twice."""
        random = self.random
        times = 0 if random.random() < self.world.fault_chance("loss") else 1
        times += random.random() < self.world.fault_chance("duplicate")
        for _ in range(times):
            other.call_later(random.expovariate(1.0 / self.world.profile.latency_s), act, *args)

    def on_hint(self, key: str, owner: str, expiration: float) -> None:
        """Handle a hint at a record."""
        if self.joined:
            self.session.store.handle_hint(key, owner, expiration)

    def on_gossip(self, topic: str, sender: str, message: bytes) -> None:
        if self.joined:
            self.listeners[topic](sender, message)
