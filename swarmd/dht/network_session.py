"""What one life of the network worker knows and decides by, whatever the network is made of. No hivemind in it.

`swarmd.dht.session` puts it onto hivemind and p2pd, the simulator onto a DHT of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import Any, Protocol

from swarmd.config import Config
from swarmd.core.commands import NoteEvidence
from swarmd.core.events import Event
from swarmd.dht.gossip import Suppression
from swarmd.dht.invitations import Withdrawals, must_be_invited
from swarmd.dht.limits import Rejections
from swarmd.dht.ports import (
    Bodies,
    Chunks,
    EvidenceSink,
    Record,
    Records,
    RecordSink,
    RecordsSink,
    ReportCheck,
)
from swarmd.dht.rounds.key_watch import KeyWatch
from swarmd.dht.rounds.publisher import Publisher
from swarmd.dht.store.seniority import Seniority
from swarmd.dht.swarm_view import AnnouncedShards, CoordinatorContact, MembersOffers, Patience
from swarmd.dht.wire.bodies import LeaderboardBody, decode_board
from swarmd.dht.wire.records import (
    PAST_S,
    TTL_MAX_S,
    ClockRecord,
    Membership,
    RecordPolicy,
    is_sharded,
)
from swarmd.logger import get_logger
from swarmd.weights.offered import FetchedWeights, OfferedWeights
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import Running, Runtime

log = get_logger(__name__)


class Compares(Protocol):
    """Compares what is signed, see `swarmd.dht.evidence.RecordComparison`."""

    def see(self, record: Record, /) -> None: ...

    def read_board(self, reports: Iterable[bytes], /) -> None: ...


class Exchanges(Protocol):
    """Tells and keeps evidence, see `swarmd.dht.evidence.EvidenceGossip`."""

    contradicted: EvidenceSink  # called with what is new here

    def bars(self, peer: str, round: int) -> bool: ...

    async def note(self, command: NoteEvidence) -> None: ...

    async def run(self) -> None: ...


class ClockPublisher(Protocol):
    """Gossips the clock's record, see `swarmd.dht.gossip.ClockGossip`."""

    def publish(self, record: Record, /) -> None: ...

    def pass_on(self, record: Record, /) -> None: ...


class HintPublisher(Protocol):
    """Gossips that a record is there, see `swarmd.dht.gossip.HintGossip`."""

    def publish(self, record: Record, /) -> None: ...


class NetworkSession(ABC):
    """The parts that decide, wired. Whoever inherits from it gives those that carry.

    Args:
        config: the node's configuration.
        peer_id: its own.
        nonce: of this life.
        runtime: the clock.
        random: chance.
        observe: takes the events.
    """

    records: Records
    bodies: Bodies
    publisher: Publisher
    exchange: Exchanges
    compared: Compares
    herald: ClockPublisher
    gossip: HintPublisher
    policy: RecordPolicy
    seniority: Seniority
    withdrawals: Withdrawals
    offered: OfferedWeights  # by this node
    chunks: Chunks  # of the weights that peers offer
    fetched_weights: FetchedWeights  # from peers, and given on
    invitation: bytes = b""

    def __init__(
        self,
        config: Config,
        peer_id: str,
        nonce: str,
        runtime: Runtime,
        random: Random,
        observe: EventSink,
    ) -> None:
        self.config = config
        self.swarm = config.swarm.id
        self.peer_id = peer_id
        self.coordinating = config.role == "coordinator"
        self.coordinator = peer_id if self.coordinating else config.swarm.coordinator
        self.nonce = nonce
        self.runtime = runtime
        self.random = random
        self.started_at = runtime.time()
        self._observe = observe
        self.watches: dict[str, KeyWatch] = {}
        self._watching: dict[str, Running] = {}
        fixed = None if config.chain is None else config.chain.shards
        self.shards = AnnouncedShards.of_swarm(fixed, config.dht.admission)
        self.patience = Patience()  # with those whose rollouts are gathered
        self.slow: Counter[str] = Counter()  # peers whose bodies stopped coming, how often one after another
        # present, this node included, without those that have not worked; a follower of a large swarm goes by the
        # records of a shard, whosever they are. Decides how much of a body goes into a record, how long nodes wait
        # before they tell what all know, and whether all rollouts of a swarm that was just started are there
        self.members = 1
        self.suppression = Suppression(random, lambda: self.members)
        self.rejections = Rejections(runtime.now)
        self.offers = MembersOffers(self.rejections.count)  # of weights
        follows = bool(self.coordinator) and not self.coordinating
        self.hearing = CoordinatorContact(follows, runtime.time, runtime.now)
        self.heard_clock: RecordSink = lambda record: None
        self.must_be_member: Callable[[str], Awaitable[None]] = take_for_member
        self.awaits: ReportCheck = lambda key, owner: False
        self.take_report: Callable[[Record], bool] = lambda record: False

    # --- what whoever inherits gives ---

    @abstractmethod
    def start(self, task: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run something for the rest of the session."""

    @abstractmethod
    def judge(self, name: str, record: Record) -> Record:
        """A record that was gossiped, if it counts under a key. Raises RecordRejected."""

    @abstractmethod
    def knows(self, peer: str) -> bool:
        """Has this node met the peer as a member, or does its configuration name it?"""

    @abstractmethod
    def remember_addresses(self, peer: str, addresses: Sequence[str], credited: bool) -> None:
        """Remember where a member can be reached."""

    @abstractmethod
    async def addresses(self) -> tuple[str, ...]:
        """Where others can reach this node."""

    @abstractmethod
    async def work(self) -> int:
        """The number that says what this identity has cost, for its records; found once."""

    @abstractmethod
    async def withdrawn(self) -> bytes:
        """The invitations that this node's operator has withdrawn, as they travel."""

    @abstractmethod
    async def weights_offer(self) -> bytes:
        """The offer of this node's weights, as it travels; empty where it offers none."""

    @abstractmethod
    def keep_withdrawn(self) -> None:
        """All records are judged anew, for invitations are withdrawn; which are, is kept for the next life."""

    @abstractmethod
    async def keep_standings(self, board: LeaderboardBody) -> None:
        """Keep a leaderboard's standings for the next life."""

    # --- what is the same for all ---

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
        self.keep_withdrawn()
        self.must_be_invited()
        return True

    def is_credited(self, peer: str) -> bool:
        """Has the swarm credited this peer?"""
        return self.seniority.rounds_of(peer) > 0

    def bars(self, peer: str, round: int) -> bool:
        """Does nothing of this peer count in a round?"""
        return self.exchange.bars(peer, round)

    def sample(self, peers: Sequence[str], count: int) -> list[str]:
        """So many of these, by chance."""
        return self.random.sample(peers, count)

    def hinted(self, key: str, owner: str, expiration: float) -> None:
        """Somebody says that there is a record: it is looked at if its key is watched."""
        watch = self.watches.get(key)
        if watch is not None:
            watch.want(owner, expiration)

    def accepted(self, record: Record) -> None:
        """A peer stored a record with this node: as good as a hint, and all there is to know of a report that is
        collected here."""
        if not self.take_report(record):
            self.hinted(record.content.key, record.owner, record.expiration)

    def told(self, record: Record) -> None:
        """An own record is out: hint at it, and look at it like everybody else."""
        if not is_sharded(record.content):  # those who need it have it, or ask for its shard
            self.gossip.publish(record)
        self._note_out(record)

    def renewed(self, record: Record) -> None:
        """An own record is out again, for it is time, and others have it: they find a membership before it expires."""
        if isinstance(record.content, Membership):
            self._note_out(record)
        else:
            self.told(record)

    def _note_out(self, record: Record) -> None:
        self.compared.see(record)
        if isinstance(record.content, ClockRecord):
            self.herald.publish(record)
        self.accepted(record)

    def emit(self, event: Event) -> None:
        """Hand a fact to the daemon."""
        self._observe(event)

    def learn(self, board: LeaderboardBody) -> None:
        """Take over the standings: whom the swarm knows, also after a restart."""
        self.seniority.learn(board.standings)
        self.compared.read_board(board.reports)
        self.start(self.keep_standings, board)

    def open_board(self, body: bytes) -> LeaderboardBody:
        """A leaderboard of its body. Raises RecordRejected("malformed")."""
        return decode_board(body)

    def watch(self, name: str, seen: RecordsSink, polls: float = 1, later: bool = False) -> KeyWatch:
        """Begin to watch a key: `seen` is called with owner → record after each read.

        Args:
            polls: so many times the configured time lies between two reads that nobody hints at.
            later: whether the first read also waits for a hint, or for a part of that time that chance decides.
        """
        watch = KeyWatch(self.records, self.runtime, self.random, name, self.config.dht.poll_s * polls, seen)
        self.watches[name] = watch
        self._watching[name] = self.runtime.start(watch.run(later))
        return watch

    def unwatch(self, name: str) -> None:
        """Stop watching a key."""
        if self.watches.pop(name, None) is not None:
            self._watching.pop(name).stop()


async def take_for_member(peer: str) -> None:
    """Anybody, until `Members` reads memberships."""
