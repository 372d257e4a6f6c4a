"""Hints and clock records by gossip, also from crowds that send without end."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from swarmd.config import Config, SwarmConfig
from swarmd.core.events import Equivocated
from swarmd.dht.evidence import EvidenceGossip
from swarmd.dht.gossip import ALL, HINT_BYTES_MAX, ClockGossip, Hint, HintGossip
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.limits import HINTS, REFUSALS_MAX, PeerLimits
from swarmd.dht.store.seniority import Seniority
from swarmd.dht.wire.evidence import make_evidence
from swarmd.dht.wire.records import LeaderboardRecord, Record, sign
from swarmd.errors import RecordRejected
from swarmd.sim.network import check_unsigned_evidence
from tests.dht.making import ALICE, CLOCK, COORDINATOR, Topic
from tests.dht.network import Network, VirtualTime

pytestmark = pytest.mark.anyio

SENT = 4 * (REFUSALS_MAX + int(HINTS.burst))

HINT = msgspec.msgpack.encode(Hint("report", "key", 60.0, "alice"))


class HintListener:
    """A node that hears hints."""

    def __init__(self) -> None:
        self.topic, self.refused, self.hints = Topic(), list[str](), list[str]()
        self.peer_limits = PeerLimits(lambda peer, reason, detail: self.refused.append(reason))
        view = Network(seniority=lambda always: Seniority(lambda peer: True)).view
        hinted = lambda key, owner, expiration: self.hints.append(owner)  # noqa: E731
        HintGossip(view, self.topic, self.peer_limits, hinted)  # type: ignore[arg-type]

    def hear(self, message: bytes, times: int) -> None:
        for _ in range(times):
            self.topic.take("alice", message)


def test_a_peer_whose_hints_somebody_repeats_is_not_disconnected_for_it() -> None:
    listener = HintListener()
    listener.peer_limits.release_call_slot(listener.peer_limits.remote_peer_of("alice"), 0, 0.0)
    listener.hear(HINT, SENT)
    assert len(listener.hints) < 2 * HINTS.burst and set(listener.refused) == {"hints"}
    assert not listener.peer_limits.unwanted and listener.peer_limits.is_served("alice")


def test_whoever_writes_what_is_no_hint_is_disconnected() -> None:
    listener = HintListener()
    listener.hear(b"x" * (HINT_BYTES_MAX + 1), REFUSALS_MAX)
    assert listener.refused == ["oversized"] * REFUSALS_MAX and not listener.hints
    assert listener.peer_limits.unwanted == {"alice"}


class ClockListener:
    """A follower that has credited the coordinator, and Alice."""

    def __init__(self) -> None:
        known = {COORDINATOR.peer_id, ALICE.peer_id}
        self.topic, self.heard = Topic(), list[Record]()
        self.view = Network(seniority=lambda always: Seniority(known.__contains__)).view
        ClockGossip(self.view, self.topic).set_listener(self._hear)  # type: ignore[arg-type]

    def _hear(self, record: Record) -> None:
        if record.owner != COORDINATOR.peer_id:
            raise RecordRejected("not-the-coordinator", record.owner)
        self.heard.append(record)


def clock(stage: int = 0) -> bytes:
    return sign(COORDINATOR, replace(CLOCK, stage=stage), time.time() + 60 + stage).encode()


async def test_a_crowd_that_talks_without_end_does_not_drown_the_coordinator_or_members() -> None:
    listener = ClockListener()
    noise = sign(ALICE, CLOCK, time.time() + 60).encode()
    for number in range(2 * int(ALL.burst)):
        listener.topic.take(f"stranger-{number}", noise)
    listener.topic.take(COORDINATOR.peer_id, clock(0))
    listener.topic.take(ALICE.peer_id, clock(1))
    assert len(listener.heard) == 2
    assert set(listener.view.rejections.total) == {"not-the-coordinator", "quota"}


SWARM, ROUND, SIZE = "model", 7, 64
BEGAN = 1_800_000_000.0  # POSIX seconds; any will do
LEADER = generate_identity()
ONE, OTHER = (
    sign(LEADER, LeaderboardRecord(SWARM, ROUND, digest * 64, 1000), BEGAN + 900.0 + number)
    for number, digest in enumerate("ab")
)
WAY_S = (0.1, 0.4)  # of a message, from its sender to each of the others


class Node:
    """One node's gossip of evidence; it is the topic of it, too."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self.hear: Callable[[str, bytes], None]
        config = Config(SwarmConfig(id=SWARM, coordinator=LEADER.peer_id), role="follower")
        known: Any = lambda always: Seniority(lambda peer: True)  # noqa: E731
        network = Network(config, crowd.time.runtime, known)
        self.events, network.view.random = network.events, crowd.random
        network.view.policy.set_round(ROUND + 1)
        network.view.set_member_count(SIZE)
        self.gossip = EvidenceGossip(network.view, self, check_unsigned_evidence)
        crowd.time.runtime.start(self.gossip.run())

    @property
    def found(self) -> bool:
        """Whether it has emitted evidence."""
        return any(isinstance(event, Equivocated) for event in self.events)

    def listen(self, take: Callable[[str, bytes], None]) -> None:
        self.hear = take

    def publish(self, message: bytes) -> None:
        self._crowd.tell(self, message)


class Crowd:
    """Nodes that hear each other."""

    def __init__(self) -> None:
        self.time, self.random, self.told = VirtualTime(BEGAN), Random(1), 0
        self.nodes = [Node(self) for _ in range(SIZE)]

    def tell(self, teller: Node, message: bytes) -> None:
        self.told += 1
        for number, node in enumerate(self.nodes):
            if node is not teller:
                self.time.later(self.random.uniform(*WAY_S), node.hear, f"node-{number}", message)


def test_a_lie_with_several_pairs_is_told_few_times() -> None:
    """Renewed records make other pairs of the same two claims."""
    crowd = Crowd()
    for number, node in enumerate(crowd.nodes):
        one = replace(ONE, expiration=ONE.expiration + number / SIZE)
        crowd.time.later(0.0, node.gossip.on_evidence_found, make_evidence(one, OTHER))
    crowd.time.run(30.0)
    assert 1 <= crowd.told <= 4


def test_evidence_is_told_again_and_by_few() -> None:
    crowd = Crowd()
    crowd.time.later(0.0, crowd.nodes[0].gossip.on_evidence_found, make_evidence(ONE, OTHER))
    crowd.time.run(30.0)
    assert crowd.told == 1 and all(node.found for node in crowd.nodes)
    crowd.time.run(970.0)
    assert 3 <= crowd.told - 1 <= 20
