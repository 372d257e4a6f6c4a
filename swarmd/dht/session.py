"""All that one life of the network worker is made of, put together."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from swarmd.config import Config
from swarmd.core.events import Event, MemberSeen
from swarmd.dht import names
from swarmd.dht.addresses import check_addresses
from swarmd.dht.admission import Admission, must_be_invited, read_invitation
from swarmd.dht.bodies import BlobStore
from swarmd.dht.compared import Compared
from swarmd.dht.connections import Connections
from swarmd.dht.door import Door
from swarmd.dht.exchange import Exchange
from swarmd.dht.fetch import BodyServer
from swarmd.dht.gossip import Gossip
from swarmd.dht.guides import choose_guides
from swarmd.dht.hearing import Hearing
from swarmd.dht.herald import Herald
from swarmd.dht.identity import Identity
from swarmd.dht.invitations import MadeHere, WithdrawnHere
from swarmd.dht.leaderboard import Board, keep_standings, read_standings
from swarmd.dht.link import LinkReporter
from swarmd.dht.node import Node, NodeSettings
from swarmd.dht.peers import AddressBook, Rejoin
from swarmd.dht.publisher import Publisher
from swarmd.dht.records import PAST_S, TTL_MAX_S, ClockRecord, LeaderboardRecord, Policy, Signed
from swarmd.dht.rejections import Rejections
from swarmd.dht.room import Marks, Room
from swarmd.dht.seniority import Seniority
from swarmd.dht.shelf import Shelf
from swarmd.dht.topic import Topic
from swarmd.dht.validator import Validator, install_guards
from swarmd.dht.watch import Watch
from swarmd.dht.withdrawal import Withdrawals, keep_withdrawals, read_withdrawals
from swarmd.dht.work import WORK_BITS, find_work
from swarmd.errors import ConfigError, SwarmdError
from swarmd.paths import DataPaths

TELL_REJECTIONS_S = 2.0
RECORD_MIN_S = 5.0
WATCHED_SLOWLY = 6  # polls left out between two reads of what only the coordinator needs promptly

log = logging.getLogger(__name__)


class Emitter(Protocol):
    """What is used of `swarmd.worker.child.Outbox`."""

    def observe(self, event: Event) -> None:
        """Hand a fact to the daemon."""


class Session:
    """The parts, wired; `run` keeps them going.

    Args:
        config: the node's configuration.
        paths: its data directory.
        identity: its key, held by this process.
        blobs: rollout bodies.
        outbox: takes the events.
        fills_process: whether all that this process holds is the session's. In a program that does other things too,
            p2pd alone is kept within marks.
    """

    def __init__(
        self,
        config: Config,
        paths: DataPaths,
        identity: Identity,
        blobs: BlobStore,
        outbox: Emitter,
        fills_process: bool = True,
    ) -> None:
        _check(config)
        install_guards()
        self.config = config
        self.paths = paths
        self.swarm = config.swarm.id
        self.identity = identity
        self.peer_id = identity.peer_id
        self.coordinating = config.role == "coordinator"
        self.coordinator = self.peer_id if self.coordinating else config.swarm.coordinator
        self.nonce = secrets.token_hex(8)
        self.started_at = time.time()
        self.blobs = blobs
        self._observe = outbox.observe
        self.watches: dict[str, Watch] = {}
        self.slow: Counter[str] = Counter()  # peers whose bodies stopped coming, how often one after another
        self.members = 1  # present, this node included; decides how much of a body goes into a record
        self.book = AddressBook(paths.peers, config.dht.bootstrap, self.peer_id)
        self.rejections = Rejections(time.monotonic)
        self.door = Door(self.rejections.count, self._known())
        self.hearing = Hearing(follows=bool(self.coordinator) and not self.coordinating)
        self._build()
        self.connections = Connections(self.node, self.door, config.dht.connections_max)
        marks = Marks(config.dht.memory_bytes_max, config.dht.files_max, config.dht.tasks_max)
        self.room = Room(self.node, marks, self.connections.make_room, fills_process)
        self._tasks: TaskGroup | None = None
        self._work: int | None = None
        self._working = anyio.Lock()

    def _build(self) -> None:
        dht, paths = self.config.dht, self.paths
        admission = Admission(dht.admission, self.swarm, self.coordinator, dht.work_bits)
        self.policy = Policy(
            self.swarm, self.coordinator, dht.members, self.peer_id, admission=admission, protocol=dht.protocol
        )
        self.withdrawals = Withdrawals(self.coordinator, read_withdrawals(paths.withdrawn, self.swarm))
        admission.withdrawn = self.withdrawals.has
        self.withdrawn_here = WithdrawnHere(MadeHere(paths.invitations))
        self.invitation = read_invitation(dht.invitation)
        self.must_be_invited()
        self.seniority = Seniority(self.policy.lists)
        kept = read_standings(paths.standings, self.swarm)
        if kept is not None:
            self.seniority.learn(kept.standings)
        self.validator = Validator(self.policy, self.rejections, self._accepted, self.seniority)
        self.validator.guides = self._guides
        self.node = Node(node_settings(self.config, paths, self.peer_id), self.validator, self._down, self.door)
        self.node.port = self.book.port
        self.rejoin = Rejoin(self.node, self.book)
        hints, clock = Topic(self.node, names.hints(self.swarm)), Topic(self.node, names.clock_topic(self.swarm))
        admits = self.policy.admits
        self.gossip = Gossip(hints, self.door, self.peer_id, admits, self._is_credited, self._hinted)
        self.heard_clock: Callable[[Signed], None] = lambda signed: None
        self.herald = Herald(
            clock,
            lambda signed: self.heard_clock(signed),
            lambda sender, error: self.rejections.count(sender, error.reason, error.message),
        )
        self._compare_records()
        shelf = Shelf(paths.records, self.swarm)
        self.publisher = Publisher(self.node, self.identity, shelf, dht.record_s, self.coordinating, self._told)
        self.bodies = BodyServer(self.node, self.blobs, self.policy.admits)
        self.link = LinkReporter(self.node, self.rejoin, self.coordinating, self.emit, self.hearing.isolation)

    def _compare_records(self) -> None:
        """Whoever says one thing here and another there is found out; see `swarmd.dht.evidence`."""

        def known(peer: str) -> bool:
            return self.seniority.rounds_of(peer) > 0

        topic = Topic(self.node, names.evidence_topic(self.swarm))
        self.exchange = Exchange(topic, self.policy, self.validator, known, self.rejections, self.emit)
        self.compared = Compared(self.coordinator, known, self.exchange.found)
        self.validator.verified = self.compared.see

    def must_be_invited(self) -> None:
        """Raises ConfigError where the swarm asks for an invitation, and this node has none that holds."""
        dht = self.config.dht
        if dht.admission == "invitation" and not self.coordinating and self.peer_id not in dht.members:
            parts = (self.invitation, self.swarm, self.coordinator, self.peer_id, self.withdrawals.has)
            must_be_invited(*parts)

    def learn_withdrawn(self, host: str, packed: bytes, expiration: float) -> bool:
        """Take a host's word on what it has withdrawn. True where it changes anything: all records are judged anew.

        Raises:
            ConfigError: this node's own invitation is withdrawn.
        """
        if self.config.dht.admission != "invitation":
            return False
        if not self.withdrawals.learn(host, packed, expiration, self.policy.now() + TTL_MAX_S + PAST_S):
            return False
        self.validator.forget()
        self._keep_withdrawn()
        self.must_be_invited()
        return True

    def _keep_withdrawn(self) -> None:
        """At once, rare and small as it is: this node may be about to end for it."""
        try:
            keep_withdrawals(self.paths.withdrawn, self.swarm, self.withdrawals.told)
        except SwarmdError as error:
            log.warning("withdrawn invitations are not kept: %s", error)

    def _guides(self) -> list[str]:
        """Peers that are asked whatever lies near a key: the coordinator, and of those known the longest, by chance."""
        bootstrap = [peer for _, peer in self.book.bootstrap]
        return choose_guides(self.peer_id, self.coordinator, bootstrap, self.seniority.eldest, random.sample)

    def _is_credited(self, peer: str) -> bool:
        return self.seniority.rounds_of(peer) > 0

    def _known(self) -> set[str]:
        """Peers that the configuration names."""
        named = {peer for _, peer in self.book.bootstrap} | set(self.config.dht.members) | {self.coordinator}
        return named - {self.peer_id}

    def _down(self, reason: str) -> None:
        log.warning("%s", reason)
        self.link.down(reason)

    def _hinted(self, key: str, owner: str, expiration: float) -> None:
        watch = self.watches.get(key)
        if watch is not None:
            watch.want(owner, expiration)

    def _accepted(self, signed: Signed) -> None:
        """A peer stored a record with this node: as good as a hint."""
        self._hinted(signed.content.key, signed.owner, signed.expiration)

    def _told(self, signed: Signed) -> None:
        """An own record is out: hint at it, and look at it like everybody else."""
        self.gossip.tell(signed)
        self.compared.see(signed)
        if isinstance(signed.content, ClockRecord):
            self.herald.tell(signed)
        elif isinstance(signed.content, LeaderboardRecord):
            self.exchange.read_board(signed)
        self._accepted(signed)

    def emit(self, event: Event) -> None:
        """Hand a fact to the daemon."""
        if isinstance(event, MemberSeen):
            self.door.meet(event.peer)
        self._observe(event)

    def learn(self, board: Board) -> None:
        """Take over the standings: whom the swarm knows, also after a restart."""
        self.seniority.learn(board.standings)
        self.compared.read_board(board.reports)
        self.start(self._keep_aside, board)

    async def _keep_aside(self, board: Board) -> None:
        try:
            await anyio.to_thread.run_sync(keep_standings, self.paths.standings, self.swarm, board)
        except SwarmdError as error:
            log.warning("the leaderboard of round %d is not kept: %s", board.round, error)

    async def work(self) -> int:
        """The number that says what this identity has cost, for its records; found once."""
        async with self._working:
            if self._work is None:
                self._work = await anyio.to_thread.run_sync(find_work, self.swarm, self.peer_id, self._bits())
        return self._work

    def _bits(self) -> int:
        dht = self.config.dht
        return max(WORK_BITS, dht.work_bits) if dht.admission == "work" else WORK_BITS

    def start(self, task: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run something for the rest of the session."""
        assert self._tasks is not None, "the session does not run"
        self._tasks.start_soon(task, *args)

    def watch(self, watch: Watch) -> None:
        """Begin to watch a key."""
        self.watches[watch.name] = watch
        self.start(self._run_watch, watch)

    async def _run_watch(self, watch: Watch) -> None:
        with watch.scope:
            await watch.run()

    def unwatch(self, name: str) -> None:
        """Stop watching a key."""
        watch = self.watches.pop(name, None)
        if watch is not None:
            watch.scope.cancel()

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Run the parts around `body`; when it returns, end them.

        Raises:
            AddressInUse: the node cannot listen where it should.
            OutOfRoom: the process has grown too large.
        """
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
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


def node_settings(config: Config, paths: DataPaths, peer_id: str) -> NodeSettings:
    """How the node of a configuration listens and calls."""
    dht = config.dht
    return NodeSettings(
        identity=identity_path(config, paths),
        sockets=paths.sockets,
        peer_id=peer_id,
        listen=dht.listen,
        announce=dht.announce,
        relays=dht.bootstrap,
        client_mode=dht.client_mode,
        auto_relay=dht.auto_relay,
        call_s=dht.call_s,
        connections_max=dht.connections_max,
    )


def identity_path(config: Config, paths: DataPaths) -> Path:
    """The key file: `dht.identity`, relative to the data directory."""
    return paths.root / config.dht.identity
