"""All that one life of the network worker is made of, put together."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any

import anyio
from anyio import from_thread, to_thread
from anyio.abc import TaskGroup

from swarmd.config import Config
from swarmd.core.events import Event, MemberSeen
from swarmd.dht.adapters import HiveBodies, HiveChunks, HiveNetwork, HiveRecords, HiveTopic
from swarmd.dht.addresses import check_addresses, is_loopback
from swarmd.dht.evidence import EvidenceGossip, RecordComparison
from swarmd.dht.gossip import ClockGossip, HintGossip
from swarmd.dht.identity.identity import Identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, take_work
from swarmd.dht.invitations import (
    Admission,
    OwnInvitations,
    OwnWithdrawals,
    Withdrawals,
    keep_withdrawals,
    read_invitation,
    read_withdrawals,
)
from swarmd.dht.limits import RequestLimits
from swarmd.dht.memory_watch import FILES_MAX, TASKS_MAX, MemoryThresholds, MemoryWatch
from swarmd.dht.network_session import NetworkSession
from swarmd.dht.p2p.connections import Connections, LinkReporter
from swarmd.dht.p2p.hivemind_api import MSGPackSerializer, Multiaddr
from swarmd.dht.p2p.node import DhtNode, NodeSettings
from swarmd.dht.p2p.p2pd import CONNECTIONS_MAX
from swarmd.dht.p2p.peers import AddressBook, Rejoin
from swarmd.dht.ports import Record, as_signed
from swarmd.dht.rounds.fetch import WEIGHTS, BodyServer
from swarmd.dht.rounds.publisher import OwnRecordFile, OwnRecordStore, Publisher
from swarmd.dht.store.seniority import Seniority, choose_guides
from swarmd.dht.store.validator import Validator, install_guards
from swarmd.dht.weights import GivenWeights
from swarmd.dht.wire import names
from swarmd.dht.wire.bodies import BlobStore, LeaderboardBody, keep_standings, read_standings
from swarmd.dht.wire.records import TTL_MAX_S, RecordPolicy
from swarmd.errors import ConfigError, SwarmdError
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.weights.offered import FetchedWeights, OfferedWeights
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import LoopRuntime, Running

TELL_REJECTIONS_S = 2.0
RECORD_MIN_S = 5.0

log = get_logger(__name__)


class _Scoped:
    """A coroutine in the session's task group, see `swarmd.worker.runtime.Running`."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()

    async def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            with self._scope:
                await coroutine
        finally:
            coroutine.close()  # where the session ended before it began

    def stop(self) -> None:
        self._scope.cancel()


class SessionRuntime(LoopRuntime):
    """The event loop, as long as a session runs: what ends by an error that nobody takes ends the session."""

    def __init__(self) -> None:
        self.tasks: TaskGroup | None = None

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Running:
        assert self.tasks is not None, "the session does not run"
        running = _Scoped()
        self.tasks.start_soon(running.run, coroutine)
        return running


class Session(NetworkSession):
    """The parts, wired, on hivemind and p2pd; `run` keeps them going.

    Args:
        config: the node's configuration.
        paths: its data directory.
        identity: its key, held by this process.
        blobs: rollout bodies.
        observe: takes the events.
        fills_process: whether all that this process holds is the session's. In a program that does other things too,
            p2pd alone is kept within marks.
    """

    def __init__(
        self,
        config: Config,
        paths: NodeDirectory,
        identity: Identity,
        blobs: BlobStore,
        observe: EventSink,
        fills_process: bool = True,
    ) -> None:
        _check(config)
        install_guards()
        self._loop = SessionRuntime()
        super().__init__(config, identity.peer_id, secrets.token_hex(8), self._loop, Random(), observe)
        self.paths = paths
        self.identity = identity
        self.blobs = blobs
        named = (*config.dht.bootstrap, *config.dht.listen, *config.dht.announce)
        self.book = AddressBook(paths.peers, config.dht.bootstrap, self.peer_id, any(map(is_loopback, named)))
        self.door = RequestLimits(self.rejections.count, self._known())
        self._build()
        self.connections = Connections(self.node, self.door, CONNECTIONS_MAX)
        marks = MemoryThresholds(config.dht.memory_bytes_max, FILES_MAX, TASKS_MAX)
        self.room = MemoryWatch(self.node, marks, self.connections.make_room, fills_process)
        self._work: int | None = None
        self._working = anyio.Lock()

    def _build(self) -> None:
        dht, paths = self.config.dht, self.paths
        admission = Admission(dht.admission, self.swarm, self.coordinator, dht.work_bits)
        self.policy = RecordPolicy(self.swarm, self.coordinator, dht.members, self.peer_id, admission=admission)
        self.policy.shards = self.shards
        self.withdrawals = Withdrawals(self.coordinator, read_withdrawals(paths.withdrawn, self.swarm))
        admission.withdrawn = self.withdrawals.has
        self.withdrawn_here = OwnWithdrawals(OwnInvitations(paths.invitations))
        self.invitation = read_invitation(dht.invitation)
        self.must_be_invited()
        self.seniority = Seniority(self.policy.lists)
        self.door.is_credited = self.is_credited
        kept = read_standings(paths.standings, self.swarm)
        if kept is not None:
            self.seniority.learn(kept.standings)
        self.validator = Validator(self.policy, self.rejections, self.accepted, self.seniority)
        self.validator.guides = self._guides
        self.validator.awaits = lambda key, owner: self.awaits(key, owner)
        self.node = DhtNode(node_settings(self.config, paths, self.peer_id), self.validator, self._down, self.door)
        self.node.port = self.book.port
        self.records, self.bodies = HiveRecords(self.node), HiveBodies(self.node, self.blobs)
        self.rejoin = Rejoin(self.node, self.book)
        hints, clock = (HiveTopic(self.node, name(self.swarm)) for name in (names.hints, names.clock_topic))
        admits = self.policy.admits
        self.gossip = HintGossip(hints, self.door, self.peer_id, admits, self.is_credited, self.hinted)
        self.herald = ClockGossip(
            clock,
            lambda record: self.heard_clock(record),
            self.rejections.count,
            self.is_credited,
            self.runtime,
            self.random,
        )
        self._compare_records()
        own_records = OwnRecordStore(OwnRecordFile(paths.records), self.swarm)
        network = HiveNetwork(self.node, self.identity)
        self.publisher = Publisher(network, own_records, self.runtime, dht.record_s, self.coordinating, self.told)
        self.publisher.renewed = self.renewed
        self.body_server = BodyServer(self.node, self.blobs, self.policy.admits)
        self.offered, self.chunks = OfferedWeights(paths.weights), HiveChunks(self.node)
        self.fetched_weights = FetchedWeights(paths.peer_weights, lambda manifest: self.offers.names(manifest))
        given = GivenWeights(self.offered, self.fetched_weights)
        self.weights_server = BodyServer(self.node, given, self.policy.admits, WEIGHTS, given.part_of)
        self.link = LinkReporter(self.node, self.rejoin, self.coordinating, self.emit, self.hearing.isolation)

    def _compare_records(self) -> None:
        """Whoever says one thing here and another there is found out; see `swarmd.dht.wire.evidence`."""

        topic = HiveTopic(self.node, names.evidence_topic(self.swarm))
        told = (self.rejections, self.emit)
        exchange = EvidenceGossip(topic, self.policy, self.is_credited, *told, self.runtime, self.suppression)
        self.exchange, self.compared = exchange, RecordComparison(self.coordinator, self.is_credited, exchange.found)
        self.validator.verified = self.compared.see

    def keep_withdrawn(self) -> None:
        """At once, rare and small as it is: this node may be about to end for it."""
        self.validator.forget()
        try:
            keep_withdrawals(self.paths.withdrawn, self.swarm, self.withdrawals.told)
        except SwarmdError as error:
            log.warning("withdrawn invitations are not kept: %s", error)

    def _guides(self) -> list[str]:
        """Peers that are asked whatever lies near a key: the coordinator, and of those known the longest, by chance."""
        bootstrap = [peer for _, peer in self.book.bootstrap]
        return choose_guides(self.peer_id, self.coordinator, bootstrap, self.seniority.elders, self.sample)

    def _known(self) -> set[str]:
        """Peers that the configuration names."""
        named = {peer for _, peer in self.book.bootstrap} | set(self.config.dht.members) | {self.coordinator}
        return named - {self.peer_id}

    def _down(self, reason: str) -> None:
        log.warning("%s", reason)
        self.link.down(reason)

    def emit(self, event: Event) -> None:
        if isinstance(event, MemberSeen) and event.worked:  # a membership alone is to be had for nothing
            self.door.meet(event.peer)
        super().emit(event)

    def judge(self, name: str, record: Record) -> Record:
        signed = as_signed(record)
        key, owner = names.key_id(name), MSGPackSerializer.dumps(signed.owner)
        return self.validator.judge(key, owner, signed.value, signed.expiration)

    def knows(self, peer: str) -> bool:
        return self.door.caller(peer).known

    def remember_addresses(self, peer: str, addresses: Sequence[str], credited: bool) -> None:
        self.book.meet(peer, addresses, credited)

    async def addresses(self) -> tuple[str, ...]:
        return await self.node.addresses()

    async def withdrawn(self) -> bytes:
        return await to_thread.run_sync(self.withdrawn_here.packed)

    async def weights_offer(self) -> bytes:
        offer = await to_thread.run_sync(self.offered.current)
        return b"" if offer is None else offer.encode()

    async def keep_standings(self, board: LeaderboardBody) -> None:
        try:
            await to_thread.run_sync(keep_standings, self.paths.standings, self.swarm, board)
        except SwarmdError as error:
            log.warning("the leaderboard of round %d is not kept: %s", board.round, error)

    async def work(self) -> int:
        """The number that says what this identity has cost: kept, or found now. Cancelled, it ends at once."""
        async with self._working:
            if self._work is None:
                sought = (self.paths.work, self.swarm, self.peer_id, self._bits())
                self._work = await to_thread.run_sync(take_work, *sought, from_thread.check_cancelled)
        return self._work

    def _bits(self) -> int:
        dht = self.config.dht
        return max(WORK_BITS, dht.work_bits) if dht.admission == "work" else WORK_BITS

    def start(self, task: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        assert self._loop.tasks is not None, "the session does not run"
        self._loop.tasks.start_soon(task, *args)

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Run the parts around `body`; when it returns, end them.

        Raises:
            AddressInUse: the node cannot listen where it should.
            OutOfRoom: the process has grown too large.
        """
        async with anyio.create_task_group() as tasks:
            self._loop.tasks = tasks
            for part in (*self.parts(), self.room.run):
                tasks.start_soon(part)
            await body()
            tasks.cancel_scope.cancel()

    def parts(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        """What runs for as long as the session does."""
        return (self.node.run, self.link.run, self.publisher.run, self.exchange.run, self._tell_rejections)

    async def _tell_rejections(self) -> None:
        while True:
            await anyio.sleep(TELL_REJECTIONS_S)
            for event in self.rejections.due():
                self.emit(event)


def _check(config: Config) -> None:
    if not RECORD_MIN_S <= config.dht.record_s <= TTL_MAX_S:
        raise ConfigError(
            f"dht.record_s is {config.dht.record_s:g}, it must lie between {RECORD_MIN_S:g} and {TTL_MAX_S:g}"
        )
    check_addresses(config)
    for key in ("bootstrap", "listen", "announce"):
        for address in getattr(config.dht, key):
            try:
                Multiaddr(address)
            except ValueError as error:
                fix = "What follows host and port must be something that hivemind knows, such as /quic-v1"
                raise ConfigError(f"dht.{key}: {address!r} is no address: {error}", fix) from error


def node_settings(config: Config, paths: NodeDirectory, peer_id: str) -> NodeSettings:
    """How the node of a configuration listens and calls."""
    dht = config.dht
    return NodeSettings(
        identity=paths.root / config.dht.identity,
        sockets=paths.sockets,
        peer_id=peer_id,
        listen=dht.listen,
        announce=dht.announce,
        relays=dht.bootstrap,
        client_mode=dht.client_mode,
        auto_relay=dht.auto_relay,
    )
