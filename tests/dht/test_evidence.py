"""Evidence by gossip: which messages are accepted, sent and refused, and at what rate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from swarmd.config import Config, SwarmConfig
from swarmd.core.commands import NoteEvidence
from swarmd.core.events import Equivocated
from swarmd.core.evidence import APART_ROUNDS, BARRED_ROUNDS
from swarmd.core.values import KnownEvidence
from swarmd.dht import evidence as evidence_module
from swarmd.dht.adapters import HivemindTopic
from swarmd.dht.evidence import (
    ALL,
    KEPT,
    NEWCOMERS_BURST,
    SENDER,
    SIGNER_BURST,
    EvidenceGossip,
    EvidenceMessage,
)
from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.store.seniority import Seniority
from swarmd.dht.wire import names
from swarmd.dht.wire.evidence import Evidence, make_evidence
from swarmd.dht.wire.records import ROUNDS_AHEAD, Payload, sign
from tests.dht.making import ALICE, BOB, CLOCK, COORDINATOR, REPORT, SWARM
from tests.dht.network import Network

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for others to tell something first."""
    monkeypatch.setattr(evidence_module, "SPREAD_S", 0.0)


class Wire:
    """Stands for a node and its p2pd: keeps what is gossiped."""

    def __init__(self) -> None:
        self.attendants: list[Any] = []
        self.sent: list[EvidenceMessage] = []

    @property
    def p2p(self) -> Wire:
        return self

    async def call(self, use: Callable[[Any], Awaitable[None]], timeout_s: float) -> None:
        await use(self)

    async def publish(self, topic: str, message: bytes) -> None:
        assert topic == f"swarmd/{SWARM}/evidence"
        self.sent.append(evidence_module.decode_evidence_message(message))


class Listener:
    """One follower's gossip, and what came of it."""

    def __init__(self, *known: Identity) -> None:
        config = Config(SwarmConfig(id=SWARM, coordinator=COORDINATOR.peer_id), role="follower")
        peers = {COORDINATOR.peer_id, *(each.peer_id for each in known)}
        network = Network(config, seniority=lambda always: Seniority(peers.__contains__))
        self.view, self.events, self.wire = network.view, network.events, Wire()
        self.view.policy.set_round(3)
        self.view.set_member_count(3)
        topic = HivemindTopic(self.wire, names.evidence_topic(SWARM))  # type: ignore[arg-type]
        self.gossip = EvidenceGossip(self.view, topic)

    async def hear(self, message: EvidenceMessage | bytes, sender: str = "somebody") -> None:
        """A message comes by gossip."""
        encoded = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)

        class Life:
            class p2p:
                @staticmethod
                async def subscribe(topic: str) -> Any:
                    yield sender, encoded

        for attend in self.wire.attendants:
            await attend(Life)
        await anyio.sleep(0.01)

    @property
    def found(self) -> list[tuple[str, str, int]]:
        return [(event.kind, event.peer, event.round) for event in self.events if isinstance(event, Equivocated)]

    @property
    def refused(self) -> Counter[str]:
        return self.view.rejections.total


def lie(identity: Identity, round: int = 3) -> Evidence:
    report = replace(REPORT, round=round)
    return pair(identity, report, replace(report, reward=0.9))


def pair(identity: Identity, one: Payload, other: Payload) -> Evidence:
    now = time.time()
    return make_evidence(sign(identity, one, now + 100), sign(identity, other, now + 101))


async def test_evidence_is_told_by_who_found_it_and_kept_once_by_who_hears_it() -> None:
    finder, listener = Listener(ALICE), Listener(ALICE)
    evidence = lie(ALICE)
    finder.gossip.on_evidence_found(evidence)
    finder.gossip.on_evidence_found(evidence)
    await anyio.sleep(0.01)
    assert finder.wire.sent == [EvidenceMessage(evidence)]
    for _ in range(3):
        await listener.hear(finder.wire.sent[0])
    assert finder.found == listener.found == [("report", ALICE.peer_id, 3)]
    event = listener.events[0]
    assert isinstance(event, Equivocated)
    assert (event.first, event.second) == (evidence.first.encode(), evidence.second.encode())
    assert listener.wire.sent == [], "it was heard, so others have heard it too"
    assert listener.gossip.is_banned(ALICE.peer_id, 3) and listener.gossip.is_banned(ALICE.peer_id, 2 + BARRED_ROUNDS)
    assert not listener.gossip.is_banned(ALICE.peer_id, 3 + BARRED_ROUNDS)
    assert not listener.gossip.is_banned(ALICE.peer_id, 2) and not listener.gossip.is_banned(BOB.peer_id, 3)


async def test_what_the_log_holds_is_not_told_again() -> None:
    listener = Listener(ALICE)
    await listener.gossip.note_evidence(NoteEvidence("evidence/1", (KnownEvidence("report", ALICE.peer_id, 3),)))
    await listener.hear(EvidenceMessage(lie(ALICE)))
    assert listener.events == [] and listener.gossip.is_banned(ALICE.peer_id, 3)


async def test_forged_unrelated_and_huge_evidence_is_refused_and_counted() -> None:
    listener, good = Listener(ALICE), lie(ALICE)
    forged = replace(good, second=replace(good.second, signature=bytes(64)))
    await listener.hear(EvidenceMessage(forged), "a")
    await listener.hear(EvidenceMessage(pair(ALICE, REPORT, replace(REPORT, stage=1))), "b")
    await listener.hear(EvidenceMessage(pair(BOB, CLOCK, replace(CLOCK, round=1))), "c")
    await listener.hear(b"\xc1", "d")
    await listener.hear(bytes(evidence_module.MESSAGE_BYTES_MAX + 1), "e")
    expected = {"bad-signature": 1, "no-evidence": 1, "not-the-coordinator": 1, "malformed": 1, "oversized": 1}
    assert dict(listener.refused) == expected and listener.events == []
    for _ in range(int(SENDER.burst) + 5):
        await listener.hear(b"\xc1", "h")
    assert listener.refused["quota"] >= 4
    await listener.hear(EvidenceMessage(good), "i")
    assert listener.found == [("report", ALICE.peer_id, 3)]


async def test_a_flood_of_true_evidence_is_bounded() -> None:
    listener = Listener(ALICE)
    crowd = [generate_identity() for _ in range(int(NEWCOMERS_BURST) + 8)]
    for number, identity in enumerate(crowd):
        await listener.hear(EvidenceMessage(lie(identity)), str(number))
    assert len(listener.found) == NEWCOMERS_BURST and listener.refused["full"] == 8
    await listener.hear(EvidenceMessage(lie(ALICE)), "a member's is taken all the same")
    assert listener.found[-1][1] == ALICE.peer_id
    for number in range(1, int(SIGNER_BURST) + 4):
        listener.view.policy.round = 3 + number * APART_ROUNDS
        await listener.hear(EvidenceMessage(lie(ALICE, listener.view.policy.round)), f"later-{number}")
    assert sum(peer == ALICE.peer_id for _, peer, _ in listener.found) == SIGNER_BURST
    assert len(listener.gossip._pairs) <= KEPT


async def test_evidence_that_the_core_has_no_room_for_is_not_logged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many signers would push each other out, and whatever is told again would be news each time."""
    monkeypatch.setattr(evidence_module, "EQUIVOCATIONS_KEPT", 2)
    liars = [generate_identity() for _ in range(5)]
    listener = Listener(*liars)
    lies = [lie(each) for each in liars]
    for evidence in lies * 3:
        await listener.hear(EvidenceMessage(evidence))
    assert listener.found == [("report", each.peer_id, 3) for each in liars]
    await listener.gossip.note_evidence(
        NoteEvidence("c", (KnownEvidence("report", liars[0].peer_id, 3 + APART_ROUNDS),))
    )
    listener.view.policy.round = 3 + 2 * APART_ROUNDS
    await listener.hear(EvidenceMessage(lie(liars[0], 2 + 2 * APART_ROUNDS)), "another")
    assert len(listener.found) == len(liars)
    await listener.hear(EvidenceMessage(lie(liars[1], 2 + 2 * APART_ROUNDS)), "another")
    assert len(listener.found) == len(liars) + 1, "later lies of another are news"


async def test_evidence_about_rounds_that_are_far_off_is_refused_and_counted() -> None:
    """Kept, it would outlast all other evidence and take its place, for ever."""
    listener = Listener(ALICE)
    await listener.hear(EvidenceMessage(lie(ALICE, 2**31 - 1)))
    assert listener.events == [] and listener.refused == {"wrong-round": 1}
    await listener.hear(EvidenceMessage(lie(ALICE, 3 + ROUNDS_AHEAD)))
    assert listener.found == [("report", ALICE.peer_id, 3 + ROUNDS_AHEAD)]


async def test_a_crowd_that_talks_without_end_does_not_drown_a_members_evidence() -> None:
    listener = Listener(ALICE, BOB)
    for number in range(2 * int(ALL.burst)):
        await listener.hear(b"\xc1", f"stranger-{number}")
    await listener.hear(EvidenceMessage(lie(ALICE)), BOB.peer_id)
    assert listener.found == [("report", ALICE.peer_id, 3)]
