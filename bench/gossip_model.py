"""A swarm that has read a leaderboard and speaks of it: the shipped gossip of every node, over a simulated mesh.

A message takes to each node what the fastest way through the mesh takes; p2pd passes each on once, so a node hears it
once. Signatures are left out.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import count
from random import Random
from typing import Any

import msgspec

from swarmd.core.events import Equivocated, Event
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.limits.rejections import Rejections
from swarmd.dht.ports import Record, as_signed
from swarmd.dht.pubsub.evidence_gossip import EvidenceGossip, decode_message
from swarmd.dht.pubsub.suppression import Suppression
from swarmd.dht.rounds.record_comparison import RecordComparison
from swarmd.dht.wire.evidence import Charge, Evidence, check_evidence
from swarmd.dht.wire.records import LeaderboardRecord, RecordPolicy, SignedRecord, sign
from swarmd.sim.coroutines import VirtualRuntime

SWARM = "model"
ROUND = 7
BEGAN = 1_800_000_000.0  # POSIX seconds; any will do
MESH = 6  # peers that gossipsub sends a message on to
LINK_S = (0.05, 0.2)  # one way
LOOKUP_S = (0.1, 0.8)  # from the hint at a leaderboard to its having been read
TALK_S = 60.0  # in which all has been said that is not said again later

Draw = Callable[[Random, int], Suppression]  # of one node, in a swarm of so many


class Told(msgspec.Struct, frozen=True):
    """A message that a node told all others."""

    at_s: float  # after the leaderboard was hinted at
    teller: int
    kind: str
    size_bytes: int


class Queue:
    """What happens in the simulated swarm, in its order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def later(self, delay_s: float, act: Callable[..., None], /, *args: Any) -> None:
        """See `swarmd.sim.coroutines.Later`."""
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), act, args))

    def run(self, until_s: float) -> None:
        """Let all happen that does by then."""
        while self._due and self._due[0][0] <= until_s:
            self.now, _, act, args = heapq.heappop(self._due)
            act(*args)


class Mesh:
    """Who passes messages on to whom.

    Args:
        size: nodes.
        random: chance.
        link_s: the shortest and the longest time that a link takes, one way.
    """

    def __init__(self, size: int, random: Random, link_s: tuple[float, float] = LINK_S) -> None:
        self._links: list[dict[int, float]] = [{} for _ in range(size)]
        self._ways: dict[int, dict[int, float]] = {}
        for node in range(size):
            for other in random.sample(range(size), min(MESH // 2, size)):
                if other != node:
                    self._links[node][other] = self._links[other][node] = random.uniform(*link_s)

    def ways_s(self, source: int) -> dict[int, float]:
        """Node → seconds that a message of `source` takes to it."""
        if source not in self._ways:
            self._ways[source] = self._search(source)
        return self._ways[source]

    def _search(self, source: int) -> dict[int, float]:
        """The fastest ways, by Dijkstra."""
        found: dict[int, float] = {}
        due = [(0.0, source)]
        while due:
            after_s, node = heapq.heappop(due)
            if node not in found:
                found[node] = after_s
                for other, link_s in self._links[node].items():
                    heapq.heappush(due, (after_s + link_s, other))
        return found


class ModelNode:
    """One node's gossip of evidence; see `swarmd.dht.ports.Topic`, which it is for it.

    Args:
        swarm: its others.
        number: of it.
        suppression: how long it waits for others.
    """

    def __init__(self, swarm: ModelSwarm, number: int, suppression: Suppression) -> None:
        self._swarm = swarm
        self._number = number
        self._take: Callable[[str, bytes], None] = lambda sender, message: None
        self.away = False  # whether it is to come yet
        self.heard = 0  # messages of others
        self.found_s: float | None = None  # when it knew of two leaderboards
        queue = swarm.queue
        self.policy = RecordPolicy(SWARM, swarm.coordinator, now=lambda: BEGAN + queue.now)
        self.policy.round = ROUND + 1
        self.rejections = Rejections(lambda: queue.now)
        self.runtime = VirtualRuntime(queue.later, lambda: queue.now, self.policy.now)
        self.exchange = EvidenceGossip(
            self, self.policy, self, known, self.rejections, self._observe, self.runtime, suppression, check_unsigned
        )
        self.compared = RecordComparison(swarm.coordinator, known, self.exchange.found)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Equivocated) and self.found_s is None:
            self.found_s = self._swarm.queue.now

    def read(self, record: SignedRecord) -> None:
        """It finds a leaderboard under its key."""
        self.away = False
        self.compared.see(record)
        self.exchange.read_board(record)

    def judge(self, name: str, record: Record) -> Record:
        """See `swarmd.dht.ports.RecordJudge`."""
        self.compared.see(as_signed(record))
        return record

    def listen(self, take: Callable[[str, bytes], None]) -> None:
        self._take = take

    def hear(self, sender: str, message: bytes) -> None:
        """A message reaches it, if it is there."""
        if not self.away:
            self.heard += 1
            self._take(sender, message)

    def publish(self, message: bytes) -> None:
        self._swarm.tell(self._number, message)

    async def send(self, message: bytes) -> None:
        self.publish(message)


class ModelSwarm:
    """Nodes that have read, or will read, the leaderboard of one round.

    Args:
        size: nodes.
        random: chance.
        draw: makes what says how long a node waits for others.
    """

    def __init__(self, size: int, random: Random, draw: Draw) -> None:
        self.queue = Queue()
        self.coordinator = boards()[0].owner
        self.told: list[Told] = []
        self._random = random
        self._mesh = Mesh(size, random)
        self.nodes = [ModelNode(self, number, draw(random, size)) for number in range(size)]

    def tell(self, teller: int, message: bytes, sender: str = "") -> None:
        """A node tells all others; or somebody else does, over its connections."""
        kind = str(type(decode_message(message)).__struct_config__.tag)
        if not sender:
            self.told.append(Told(self.queue.now, teller, kind, len(message)))
        for number, after_s in self._mesh.ways_s(teller).items():
            if sender or number != teller:
                self.queue.later(after_s, self.nodes[number].hear, sender or f"node-{teller}", message)

    def read(self, record: SignedRecord, *numbers: int) -> None:
        """These nodes read a leaderboard at which the coordinator, node 0, hints now."""
        ways_s = self._mesh.ways_s(0)
        for number in numbers:
            self.queue.later(ways_s[number] + self._random.uniform(*LOOKUP_S), self.nodes[number].read, record)

    @property
    def counts(self) -> Counter[str]:
        """Messages told, by kind."""
        return Counter(each.kind for each in self.told)

    @property
    def heard(self) -> float:
        """Messages that a node heard, in the mean."""
        return sum(node.heard for node in self.nodes) / len(self.nodes)

    @property
    def found_s(self) -> float:
        """When the last node knew of two leaderboards; infinite where one does not."""
        return max(math.inf if node.found_s is None else node.found_s for node in self.nodes)


def one_board(size: int, draw: Draw, seed: int) -> ModelSwarm:
    """A swarm of which all have read the same leaderboard, and spoken of it."""
    swarm = ModelSwarm(size, Random(seed), draw)
    swarm.read(boards()[0], *range(size))
    swarm.queue.run(TALK_S)
    return swarm


def one_victim(size: int, draw: Draw, seed: int) -> ModelSwarm:
    """The same, where the last node was shown another leaderboard than all others."""
    swarm = ModelSwarm(size, Random(seed), draw)
    swarm.read(boards()[0], *range(size - 1))
    swarm.read(boards()[1], size - 1)
    swarm.queue.run(TALK_S)
    return swarm


def known(peer: str) -> bool:
    """All are members."""
    return True


def check_unsigned(policy: RecordPolicy, evidence: Evidence) -> Charge:
    """See `swarmd.dht.wire.evidence.check_evidence`."""
    return check_evidence(policy, evidence, lambda signed, key: True)


@cache
def boards() -> tuple[SignedRecord, SignedRecord]:
    """Two leaderboards of one round, by one coordinator."""
    coordinator, expiration = generate_identity(), BEGAN + 900.0
    one, other = (
        sign(coordinator, LeaderboardRecord(SWARM, ROUND, digest * 64, 1000), expiration + number)
        for number, digest in enumerate("ab")
    )
    return one, other
