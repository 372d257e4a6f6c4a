"""Builds the parts of one run of the network worker and connects them."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import anyio
from anyio import from_thread, to_thread
from anyio.abc import TaskGroup

from swarmd.config import Config
from swarmd.core.events import Event, MemberSeen
from swarmd.dht.adapters import HivemindBodies, HivemindNetwork, HivemindRecordStore, HivemindTopic
from swarmd.dht.evidence import EquivocationDetector, EvidenceGossip
from swarmd.dht.gossip import ClockGossip, Gossip, HintGossip
from swarmd.dht.identity.identity import Identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, load_or_find_work
from swarmd.dht.p2p.body_streams import WEIGHTS, BodyServer, fetch_body
from swarmd.dht.p2p.connections import ConnectionLimiter, LinkReporter
from swarmd.dht.p2p.hivemind_api import Multiaddr
from swarmd.dht.p2p.limits import PeerLimits
from swarmd.dht.p2p.memory_watch import FILES_MAX, TASKS_MAX, MemoryThresholds, MemoryWatch
from swarmd.dht.p2p.node import DhtNode, NodeSettings
from swarmd.dht.p2p.p2pd import CONNECTIONS_MAX
from swarmd.dht.p2p.peers import AddressBook, RejoinLoop
from swarmd.dht.ports import MemberCheck
from swarmd.dht.publisher import OwnRecordFile, Publisher
from swarmd.dht.store.seniority import choose_trusted_peers
from swarmd.dht.store.validator import Validator, install_guards
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.weights import FetchListener, ServedWeights, WeightsFetcher
from swarmd.dht.wire import names
from swarmd.dht.wire.addresses import check_addresses, is_loopback
from swarmd.dht.wire.bodies import LeaderboardBody, read_standings, save_standings
from swarmd.dht.wire.invitations import OwnInvitations, read_withdrawals, save_withdrawals
from swarmd.errors import ConfigError, SwarmdError
from swarmd.eventlog.blobs import BlobStore
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.weights.offered import FetchedWeights, OfferedWeights
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import LoopRuntime, Stopper

TELL_REJECTIONS_S = 2.0

log = get_logger(__name__)


class SessionRuntime(LoopRuntime):
    """The event loop of a running session. An uncaught error in any task ends the session."""

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def open_task_group(self) -> AsyncIterator[TaskGroup]:
        """Allow `start` inside the `async with` block, which ends when all started coroutines have ended."""
        async with anyio.create_task_group() as self._tasks:
            yield self._tasks

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Stopper:
        assert self._tasks is not None, "the session does not run"
        scope = anyio.CancelScope()
        self._tasks.start_soon(self._run, coroutine, scope)
        return scope.cancel

    async def _run(self, coroutine: Coroutine[Any, Any, Any], scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await coroutine
        finally:
            coroutine.close()  # in case the session ended before the coroutine started


class Session:
    """The network worker's parts on top of hivemind and p2pd; `run` runs them. Implements `OwnNode`. `fills_process`:
    whether this process runs only the session; if false, only p2pd's memory is bounded."""

    def __init__(
        self,
        config: Config,
        paths: NodeDirectory,
        identity: Identity,
        blobs: BlobStore,
        observe: EventSink,
        fills_process: bool = True,
    ) -> None:
        _check_config(config)
        install_guards()
        dht, peer_id = config.dht, identity.peer_id
        self._paths = paths
        self._observe = observe
        self._runtime = SessionRuntime()
        withdrawn = read_withdrawals(paths.withdrawn, config.swarm.id)
        parts = (config, peer_id, secrets.token_hex(8), self._runtime, Random(), self._emit, withdrawn, self._is_known)
        view = self.view = SwarmView(*parts)
        view.require_own_invitation()
        kept = read_standings(paths.standings, view.swarm)
        if kept is not None:
            view.seniority.update_standings(kept.standings)
        named = (*dht.bootstrap, *dht.listen, *dht.announce)
        self._book = AddressBook(paths.peers, dht.bootstrap, peer_id, any(map(is_loopback, named)))
        self.peer_limits = PeerLimits(view.rejections.count, self._configured_peers(), view.is_credited)
        self._validator = Validator(
            view.policy,
            view.rejections,
            lambda record: self.store.handle_stored_record(record),
            view.seniority,
            self._trusted_peers,
            lambda key, owner: self.store.awaits(key, owner),
            lambda record: self.gossip.comparison.compare_record(record),
        )
        settings = NodeSettings(paths.root / dht.identity, paths.sockets, peer_id, dht, port=self._book.port)
        self.node = DhtNode(settings, self._validator, self._on_network_down, self.peer_limits)
        self.store = HivemindRecordStore(view, self.node, self._validator)
        self.bodies = HivemindBodies(self.node, blobs)
        self.gossip = self._make_gossip()
        own_records, network = OwnRecordFile(paths.records, view.swarm), HivemindNetwork(self.node, identity)
        self.publisher = Publisher(view, network, own_records, self.gossip)
        self.offered = OfferedWeights(paths.weights)
        self.fetched_weights = FetchedWeights(paths.peer_weights, view.offers.has_manifest)
        admits, given = view.policy.is_admitted, ServedWeights(self.offered, self.fetched_weights)
        BodyServer(self.node, blobs, admits)
        BodyServer(self.node, given, admits, WEIGHTS, given.file_digest_of)
        rejoin = RejoinLoop(self.node, self._book)
        self.link = LinkReporter(self.node, rejoin, view.coordinating, view.emit, view.contact.isolation_reason)
        connections = ConnectionLimiter(self.node, self.peer_limits, CONNECTIONS_MAX)
        marks = MemoryThresholds(dht.memory_bytes_max, FILES_MAX, TASKS_MAX)
        self._memory = MemoryWatch(self.node, marks, connections.disconnect_unknown_peers, fills_process)
        self._invitations = OwnInvitations(paths.invitations)
        self._work: int | None = None
        self._working = anyio.Lock()

    def _make_gossip(self) -> Gossip:
        view = self.view
        hints, clock, told = (
            HivemindTopic(self.node, name(view.swarm))
            for name in (names.hints_topic, names.clock_topic, names.evidence_topic)
        )
        evidence = EvidenceGossip(view, told)
        return Gossip(
            ClockGossip(view, clock),
            evidence,
            EquivocationDetector(view.coordinator, view.is_credited, evidence.on_evidence_found),
            HintGossip(view, hints, self.peer_limits, self.store.handle_hint).publish,
            self.store.handle_stored_record,
        )

    def make_weights_fetcher(
        self, must_be_member: MemberCheck, told: FetchListener = lambda progress: None
    ) -> WeightsFetcher:
        fetch = partial(fetch_body, self.node, bounds=WEIGHTS)
        return WeightsFetcher(self.view, self.store, self.gossip, fetch, self.fetched_weights, must_be_member, told)

    def _trusted_peers(self) -> list[str]:
        """Return peers that every lookup asks, however far they are from the key: the coordinator, and a random sample
        of the bootstrap peers and of the peers credited longest."""
        view, bootstrap = self.view, [peer for _, peer in self._book.bootstrap]
        elders = view.seniority.elders
        return choose_trusted_peers(view.peer_id, view.coordinator, bootstrap, elders, view.random.sample)

    def _configured_peers(self) -> set[str]:
        members = self.view.config.dht.members
        named = {peer for _, peer in self._book.bootstrap} | set(members) | {self.view.coordinator}
        return named - {self.view.peer_id}

    def _is_known(self, peer: str) -> bool:
        return self.peer_limits.remote_peer_of(peer).known

    def _on_network_down(self, reason: str) -> None:
        log.warning("%s", reason)
        self.link.report_down(reason)

    def _emit(self, event: Event) -> None:
        if isinstance(event, MemberSeen) and event.worked:  # any peer can publish a membership without proof of work
            self.peer_limits.mark_known(event.peer)
        self._observe(event)

    # --- this node, see `swarmd.dht.ports.OwnNode` ---

    async def addresses(self) -> tuple[str, ...]:
        return await self.node.addresses()

    def remember_addresses(self, peer: str, addresses: Sequence[str], credited: bool) -> None:
        self._book.remember_peer(peer, addresses, credited)

    async def withdrawn_invitations(self) -> bytes:
        return await to_thread.run_sync(self._invitations.latest_packed_withdrawals)

    def save_withdrawals(self) -> None:
        """Save withdrawn invitations at once: if this node's own is among them, it will stop."""
        self._validator.clear_caches()
        try:
            save_withdrawals(self._paths.withdrawn, self.view.swarm, self.view.withdrawals.all_withdrawals)
        except SwarmdError as error:
            log.warning("withdrawn invitations are not kept: %s", error)

    async def weights_offer(self) -> bytes:
        offer = await to_thread.run_sync(self.offered.current)
        return b"" if offer is None else offer.encode()

    async def save_standings(self, board: LeaderboardBody) -> None:
        try:
            await to_thread.run_sync(save_standings, self._paths.standings, self.view.swarm, board)
        except SwarmdError as error:
            log.warning("the leaderboard of round %d is not kept: %s", board.round, error)

    async def proof_of_work(self) -> int:
        """Return the identity's proof of work, read from its file or computed now. Stops at once when cancelled."""
        dht = self.view.config.dht
        bits = max(WORK_BITS, dht.work_bits) if dht.admission == "work" else WORK_BITS
        async with self._working:
            if self._work is None:
                sought = (self._paths.work, self.view.swarm, self.view.peer_id, bits)
                self._work = await to_thread.run_sync(load_or_find_work, *sought, from_thread.check_cancelled)
        return self._work

    # --- running ---

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Run the parts until `body` returns. Raises AddressInUse; WorkerLimitExceeded: the process is too large."""
        evidence = self.gossip.evidence
        parts = (self.node, self.link, self.publisher, evidence, self._memory)
        async with self._runtime.open_task_group() as tasks:
            for part in parts:
                tasks.start_soon(part.run)
            tasks.start_soon(self._report_rejections)
            await body()
            tasks.cancel_scope.cancel()

    async def _report_rejections(self) -> None:
        while True:
            await anyio.sleep(TELL_REJECTIONS_S)
            for event in self.view.rejections.take_due_events():
                self.view.emit(event)


def _check_config(config: Config) -> None:
    check_addresses(config)
    for key in ("bootstrap", "listen", "announce"):
        for address in getattr(config.dht, key):
            try:
                Multiaddr(address)
            except ValueError as error:
                fix = "What follows host and port must be something that hivemind knows, such as /quic-v1"
                raise ConfigError(f"dht.{key}: {address!r} is not an address: {error}", fix) from error
