"""The network worker of a simulated node: the shipped decisions over a simulated network.

Simulated are the link, the DHT's storage and look-ups, bodies, gossip and time; the process dies and freezes, and its
facts come twice now and then. What is gathered, published, watched and told is decided by `swarmd.dht`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from swarmd.config import ChainConfig, Config, DhtConfig, SwarmConfig
from swarmd.core.commands import Announce, Command, FetchWeights, Gather, PublishReport
from swarmd.core.events import (
    Event,
    LinkDegraded,
    LinkDown,
    LinkUp,
    ReportSeen,
    RolloutsGathered,
    RoundAnnounced,
    WeightsFetched,
    WeightsRefused,
)
from swarmd.core.values import PeerWeights, Standing
from swarmd.dht.agent import NetworkAgent
from swarmd.dht.evidence import EvidenceGossip
from swarmd.dht.gossip import ClockGossip, Gossip
from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.membership import Members
from swarmd.dht.p2p.limits import PeerCheck
from swarmd.dht.publisher import Publisher
from swarmd.dht.store.seniority import Rank, Seniority
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.bodies import KeptStandings, LeaderboardBody
from swarmd.dht.wire.records import Record
from swarmd.errors import IdentityInUse, NetworkDown
from swarmd.sim.coroutines import Answer, Task, VirtualRuntime
from swarmd.sim.ports.dht import CLOCK, RECORD_S, SWARM, Boards, Store, Written, is_alive
from swarmd.sim.ports.machine import SimWorker
from swarmd.sim.ports.network_ports import (
    CALL_S,
    POLL_S,
    Condition,
    RecordsSeen,
    SimBodies,
    SimHintGossip,
    SimNetwork,
    SimOwnRecords,
    SimRecords,
    SimTopic,
    body_of,
    check_unsigned,
    written_of,
)

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode

PIPE_S = 0.001  # from the daemon to the worker
JOIN_S = (0.2, 3.0)
WEIGHTS_SPENT_CHANCE = 0.1  # of those to be averaged with, where some were
WEIGHTS_MISSING_CHANCE = 0.2
CONTRACT = ChainConfig(rpc=(), chain_id=31337, contract="0x" + "1" * 40)


class SimSeniority(Seniority):
    """What a node knows of who has been in the swarm for how long; nobody finds work here, it is written down.

    Args:
        works: bits of work of those that have not done what every node does.
        boards: what is made of leaderboards.
    """

    def __init__(self, always: PeerCheck, secret: bytes, works: Mapping[str, int], boards: Boards) -> None:
        super().__init__(always, secret)
        self._works = works
        self._boards = boards

    def credit(self, standings: Iterable[Standing]) -> Mapping[str, int]:
        return self._boards.rounds(standings)

    def rank_of(self, record: Record, key: bytes) -> Rank:
        return self.rank(record.owner, key, self._works.get(record.owner, WORK_BITS), record.size_bytes)


class WorkerRuntime(VirtualRuntime):
    """A worker's time. Nothing of what runs as long as a session does ends it, in a world where no node has a twin."""

    def __init__(self, worker: NetworkWorker) -> None:
        super().__init__(worker.later, lambda: worker.world.now, worker.node.clock)
        self._worker = worker

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Task:
        return super().start(self._guard(coroutine))

    async def _guard(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            await coroutine
        except IdentityInUse as error:
            self._worker.world.fail(self._worker.node, f"it takes itself for its twin: {error.message}")


class SimSession:
    """The parts of a simulated worker's network, wired. It is an `OwnNode`, too.

    Attributes:
        view, store, publisher, gossip: what decides is made of these.
        bodies: of rollouts and leaderboards.
    """

    def __init__(self, worker: NetworkWorker, random: Random) -> None:
        node, dht, runtime = worker.node, worker.dht, worker.runtime
        self._node = node
        self._dht = dht
        config, nonce = config_of(node), f"{node.life}/{worker.pid}"
        known = (config.swarm.coordinator or node.peer, node.peer)
        secret = f"{node.peer}/{worker.pid}".encode()
        seniority = SimSeniority(known.__contains__, secret, dht.works, dht.boards)
        parts = (config, node.peer, nonce, runtime, random, worker.observe)
        view = self.view = SwarmView(*parts, seniority=lambda always: seniority)
        kept = dht.standings.get(node.index)
        if kept is not None:
            seniority.learn(kept.standings)
        self.bodies = SimBodies(worker)
        evidence = EvidenceGossip(view, SimTopic(worker, names.evidence_topic(SWARM)), check_unsigned)
        self.comparison = RecordsSeen(view.coordinator, view.is_credited, evidence.found, dht.signed)
        self.store = SimRecords(worker, view, self.comparison)
        clock = ClockGossip(view, SimTopic(worker, names.clock_topic(SWARM)))
        hint, accepted = SimHintGossip(worker).publish, self.store.accepted
        self.gossip = Gossip(clock, evidence, self.comparison, hint, accepted)
        own_records, network = SimOwnRecords(worker), SimNetwork(worker)
        self.publisher = Publisher(view, network, own_records, self.gossip)

    async def addresses(self) -> tuple[str, ...]:
        return ()

    async def work(self) -> int:
        return 0

    async def withdrawn(self) -> bytes:
        return b""

    async def weights_offer(self) -> bytes:
        return b""

    def remember_addresses(self, peer: str, addresses: Sequence[str], credited: bool) -> None:
        """Nobody has to be found here."""

    def keep_withdrawn(self) -> None:
        """Nobody needs an invitation here."""

    async def keep_standings(self, board: LeaderboardBody) -> None:
        self._dht.standings[self._node.index] = KeptStandings(SWARM, board.round, board.standings)
        if self.view.coordinating:
            self._dht.seniority.learn(board.standings)


def config_of(node: SimNode) -> Config:
    """What a node's configuration says of the network."""
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


class NetworkWorker(SimWorker):
    """A node's place in the DHT.

    Attributes:
        joined: whether p2pd runs.
        linked: whether it reaches the swarm.
        epoch: counts losses of the link; what was under way before one is not answered after it.
        own: the node's own records, as it keeps them itself.
        listeners: gossip topic → what takes its messages.
    """

    kind = "network"

    def __init__(self, node: SimNode, pid: int) -> None:
        super().__init__(node, pid)
        self.dht = node.world.dht
        self.linked = False
        self.joined = False
        self.peers_told = 0
        self.epoch = 0
        self.own: dict[str, Written] = {}
        self.listeners: dict[str, Callable[[str, bytes], None]] = {}
        self.runtime = WorkerRuntime(self)
        self.disturbance = self.runtime.signal()
        session = self.session = SimSession(self, self.make_chance())
        parts = (session.view, session.store, session.publisher)
        members = Members(*parts, session)
        self.agent = NetworkAgent(*parts, session.gossip, session.bodies, session, members)
        self._up = Condition()
        self._deaf = False
        self._hurries = False  # it is about to end, and says so without waiting for anybody
        self._gathers: dict[str, Gather] = {}

    def make_chance(self) -> Random:
        """What the shipped decisions draw from."""
        return self.random

    @property
    def presences(self) -> Mapping[str, object]:
        """The members that it knows."""
        return self.agent.members.presences.known

    # --- the link ---

    def begin(self) -> None:
        self._deaf = self.random.random() < self.world.chance("slow_start")
        if self._deaf:
            return
        self.dht.join(self)
        self.runtime.start(self.session.publisher.run())
        self.runtime.start(self.session.gossip.evidence.run())
        self.agent.begin()
        self.later(self.random.uniform(*JOIN_S), self._join)
        self.later(self.random.uniform(0.5, 1.0) * POLL_S, self._poll)

    def _join(self) -> None:
        self.joined = True
        self._up.happen()
        self._look_around()

    def _look_around(self) -> None:
        """A follower is linked while it reaches another node, the coordinator always."""
        others = self.dht.at_side(self.node.side) - 1
        reaches = others > 0 or self.node.coordinates
        if reaches and (not self.linked or self._is_news(others)):
            self.linked, self.peers_told = True, others
            self.tell(LinkUp(others))
        elif self.linked and not reaches:
            self.linked = False
            self.tell(LinkDegraded("no peer answers"))
        elif not reaches and self.random.random() < 0.2:
            self.tell(LinkDegraded("no peer answers"))
        self.disturbance.set()

    def _is_news(self, others: int) -> bool:
        """The last peer is gone, or there is one again; which matters to a coordinator that holds the swarm then."""
        coordination = self.node.settings.coordination
        holds = coordination is not None and coordination.when_alone == "hold"
        return holds and (others > 0) != (self.peers_told > 0)

    def lose_link(self) -> None:
        """p2pd died; it is started again."""
        if not self.alive or not self.joined:
            return
        self.epoch += 1
        self.linked = self.joined = False
        self.disturbance.set()
        self.tell(LinkDown("p2pd ended"))
        self.later(self.random.uniform(0.3, 4.0), self._join)

    def _poll(self) -> None:
        self.later(POLL_S, self._poll)
        if self.joined:
            self._look_around()
        for event in self.session.view.rejections.due():
            self.tell(event)

    def say_goodbye(self) -> None:
        """An orderly stop: the membership record says so."""
        if self.joined and not self._deaf:
            self._hurries = True
            self.runtime.start(self.agent.members.leave())

    def end(self) -> None:
        super().end()
        self.runtime.stop()
        self.dht.leave(self)

    # --- what the shipped code is given and gives ---

    def perform(self, command: Command) -> None:
        if self._deaf:
            return
        if isinstance(command, FetchWeights):
            self._fetch_weights(command)
            return
        if isinstance(command, PublishReport):
            self.world.checks.on_report(self.node, command)
        elif isinstance(command, Announce):
            self.world.counted.on_announce(command, self.world.now)
        elif isinstance(command, Gather):
            self._gathers[command.id] = command
            self.world.checks.network.on_gather(self, command)
        self.later(PIPE_S, self.agent.take, command)

    def _fetch_weights(self, command: FetchWeights) -> None:
        """A peer's weights come after a while, too late at times; or they do not come. No bytes are moved here."""
        left_s = command.until_at - self.node.clock()
        if self.random.random() < self.world.chance("loss") or left_s <= 0:
            return
        if not self.joined or self.random.random() < WEIGHTS_MISSING_CHANCE:
            self.tell(WeightsRefused(command.id, "none-offered", "nobody offers any"))
            return
        digest, size_bytes = f"{self.random.getrandbits(256):064x}", self.random.randint(1, command.size_bytes_max)
        others = [node.peer for node in self.world.nodes if node is not self.node]
        whose = self.random.choice(others) if command.average else self.node.settings.coordinator
        round = int(command.id.rpartition("/")[2]) - 1
        weights = PeerWeights(whose, round, digest, size_bytes, 0.5, command.average)
        if command.averaged and self.random.random() < WEIGHTS_SPENT_CHANCE:  # a peer that trains no more
            spent = self.random.choice(command.averaged)
            weights = replace(weights, peer=spent.peer, round=spent.round, digest=spent.digest)
        seconds = self.random.expovariate(4.0 / max(left_s, 1.0))
        self.later(seconds, self.tell, WeightsFetched(command.id, weights, size_bytes, seconds))

    def observe(self, event: Event) -> None:
        """A fact of the shipped code; now and then one comes twice."""
        if isinstance(event, RolloutsGathered):
            gather = self._gathers.pop(event.command, None)
            if gather is not None:
                self.world.checks.network.on_gathered(self, gather, event)
        else:
            self.world.checks.network.on_fact(self, event)
        self.tell(event)
        if isinstance(event, RoundAnnounced | ReportSeen) and self.random.random() < self.world.chance("duplicate"):
            self.tell(event)

    # --- what it reaches ---

    @property
    def store(self) -> Store:
        """What is held at its side of a partition."""
        return self.dht.store_of(self)

    @property
    def has_others(self) -> bool:
        """Whether there is anybody else at its side."""
        return self.joined and self.dht.at_side(self.node.side) > 1

    def reaches(self, peer: Hashable) -> bool:
        """Whether an honest node can be called."""
        other = self.dht.worker_of(peer)
        return other is not None and other.joined and other.node.side == self.node.side

    def takes(self, peer: Hashable) -> bool:
        """Whether a peer says that it keeps a record."""
        return self.reaches(peer)

    def near(self, place: int, count: int) -> list[str]:
        """So many peers that should keep what lies under a key."""
        workers, side = self.dht.workers, self.node.side
        found: list[str] = []
        for step in range(len(workers)):
            other = workers[(place + step) % len(workers)]
            if other is not self and other.joined and other.node.side == side:
                found.append(other.node.peer)
                if len(found) == count:
                    break
        return found

    def guides(self) -> list[str]:
        """Peers that are asked in each search."""
        return [] if self.node.coordinates else [self.session.view.coordinator]

    async def until_up(self) -> None:
        """Return when p2pd runs."""
        while not self.joined:
            await self._up.wait()

    async def travel(self, fails: bool = True) -> None:
        """There and back: a request's time. Raises NetworkDown where there is no link, or no answer."""
        epoch = self.epoch
        if not self.joined:
            raise NetworkDown("the network is down: p2pd is being started")
        if fails and self.random.random() < self.world.chance("failure"):
            await self.runtime.sleep(0.0 if self._hurries else CALL_S)
            raise NetworkDown(f"no answer from the network within {CALL_S:g} s")
        if not self._hurries:
            answer = Answer()
            self.later(min(self.random.expovariate(1.0 / self.world.profile.latency_s), CALL_S), answer.give)
            await answer
        if epoch != self.epoch or not self.joined:
            raise NetworkDown("p2pd ended")

    def read(self, name: str) -> Mapping[str, Written]:
        """What a look-up finds under a key, here and with others; now and then their values of before."""
        found = self.search(name)
        if name == CLOCK and found and self.random.random() < self.world.chance("stale"):
            before = self.store.before.get(self.session.view.coordinator)
            found = {} if before is None else {before.owner: before}
        own = self.own.get(name)
        if own is not None and is_alive(own, self.node.clock()):
            held = found.get(own.owner)
            if held is None or held.expiration < own.expiration:
                return {**found, own.owner: own}
        return found

    def search(self, name: str) -> Mapping[str, Written]:
        """What others hold under a key; each record that is seen first is compared with those before."""
        found = self.store.find(name, self.node.clock())
        self.session.comparison.see_all(name, found)
        return found

    def keep(self, name: str, record: Written) -> bool:
        """Peers are given an own record. False where it finds no room."""
        return self.store.put(name, record)

    def tell_keepers(self, peers: Sequence[Hashable], record: Record) -> None:
        """Those who keep a record have it; who waits for it takes it, who watches its key looks."""
        for peer in peers:
            other = self.dht.worker_of(peer)
            if other is not None and other.joined:
                other.session.store.accepted(record)
                self.world.checks.network.brought.on_stored(other, written_of(record))

    def body_from(self, peer: str, digest: str) -> bytes | None:
        """What a peer gives for a digest; None where it never answers. Raises NetworkDown."""
        other = self.dht.worker_of(peer)
        if other is None or not self.reaches(peer):
            raise NetworkDown(f"{peer} is not there")
        kept = self.dht.blobs.get(other.node.index, {}).get(digest)
        if kept:  # else it has the usual form
            return kept
        return body_of(digest) if len(digest) == len(body_of(digest).rstrip()) else None

    # --- gossip ---

    def hint(self, other: NetworkWorker, act: Callable[..., None], *args: Any, sure: bool = False) -> None:
        """Have another hear something; now and then it is lost on the way, or comes twice."""
        random, profile = self.random, self.world.profile
        times = 0 if not sure and random.random() < self.world.chance("loss") else 1
        times += random.random() < self.world.chance("duplicate")
        for _ in range(times):
            other.later(random.expovariate(1.0 / profile.latency_s), act, *args)

    def take_hint(self, key: str, owner: str, expiration: float) -> None:
        """Somebody says that there is a record."""
        if self.joined:
            self.session.store.hinted(key, owner, expiration)

    def hear(self, topic: str, sender: str, message: bytes) -> None:
        """Something was said on a gossip topic."""
        if self.joined:
            self.listeners[topic](sender, message)
