"""Limits for each peer, for each address prefix, and for all together."""

import hashlib
import math
import random
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.core.events import Event, MemberSeen, RecordsRejected
from swarmd.dht.gather import WHOLE_MAX
from swarmd.dht.p2p.body_streams import ABSENT, BURST_S, BYTES_PER_S, BodyServer
from swarmd.dht.p2p.limits import (
    KNOWN_MAX,
    NAMED_BURST,
    NAMED_PER_S,
    REFUSALS_MAX,
    REPEAT_S,
    REQUEST_BYTES_MAX,
    RESERVE,
    REST,
    REST_MAX_S,
    ConcurrencyBudget,
    GossipLimits,
    PeerBounds,
    PeerLimits,
    Rate,
    RateBudget,
    RejectionCounter,
    RemotePeer,
    UnreachablePeers,
)
from swarmd.dht.session import Session
from swarmd.dht.store.lookup import BREADTH
from swarmd.dht.store.validator import NEARBY_BYTES, SHOWN_RECORD_BYTES
from swarmd.dht.wire.bodies import deflate
from swarmd.errors import RecordRejected
from tests.dht.network import VirtualTime

pytestmark = pytest.mark.anyio

A, B, C = (RemotePeer(name, "10.0.0.1") for name in "abc")

ELSEWHERE = RemotePeer("d", "10.0.0.2")


def test_a_peer_holds_no_more_than_its_own() -> None:
    held = ConcurrencyBudget(PeerBounds(2, 10, 10))
    assert [held.try_acquire(A) for _ in range(3)] == [True, True, False]
    assert held.try_acquire(B)
    held.release(A)
    assert held.try_acquire(A)


def test_many_ids_behind_one_address_share_its_bound() -> None:
    held = ConcurrencyBudget(PeerBounds(2, 3, 10))
    assert [held.try_acquire(caller) for caller in (A, A, B, C)] == [True, True, True, False]
    assert held.try_acquire(ELSEWHERE)


def test_a_part_of_all_is_kept_for_known_peers() -> None:
    held = ConcurrencyBudget(PeerBounds(4, 4, 4))
    strangers = [held.try_acquire(RemotePeer(str(number), str(number))) for number in range(4)]
    assert strangers == [True] * int(4 * (1 - RESERVE)) + [False]
    assert held.try_acquire(RemotePeer("known", "10.9.9.9", known=True))


def test_processor_time_is_owed_until_it_has_come_back() -> None:
    now = 0.0
    flow = RateBudget(PeerBounds(0.5, 10, 10), burst_s=2.0, now=lambda: now)
    flow.charge(A, 3.0)
    now = 3.0
    assert not flow.has_left(A)
    now = 5.0
    assert flow.has_left(A) and flow.has_left(B)


def test_a_refused_call_holds_nothing() -> None:
    peer_limits = PeerLimits()
    for _ in range(3):
        with pytest.raises(RecordRejected):
            peer_limits.acquire_call_slot(A, "DHTProtocol.rpc_ping", REQUEST_BYTES_MAX["DHTProtocol.rpc_ping"] + 1)
    assert peer_limits.calls.total == peer_limits.requests.total == 0


def test_whoever_is_refused_again_and_again_is_not_wanted() -> None:
    told: list[tuple[str, str]] = []
    peer_limits = PeerLimits(lambda peer, reason, detail: told.append((peer, reason)))
    for _ in range(REFUSALS_MAX - 1):
        peer_limits.count_refusal("a", "calls", "")
    assert not peer_limits.unwanted
    peer_limits.count_refusal("a", "calls", "")
    assert peer_limits.unwanted == {"a"} and told == [("a", "calls")] * REFUSALS_MAX


def test_a_crowd_of_members_does_not_make_the_door_forget_whom_the_swarm_credits() -> None:
    peer_limits = PeerLimits(is_credited={"elder"}.__contains__)
    peer_limits.mark_known("elder")
    for number in range(KNOWN_MAX + 1):
        peer_limits.mark_known(f"crowd-{number}")
    assert peer_limits.remote_peer_of("elder").known
    assert not peer_limits.remote_peer_of("crowd-0").known and peer_limits.remote_peer_of(f"crowd-{KNOWN_MAX}").known


@pytest.mark.parametrize("worked", [True, False])
def test_a_membership_that_cost_nothing_makes_nobody_known(worked: bool) -> None:
    session, told = Session.__new__(Session), list[Event]()
    session.peer_limits, session._observe = PeerLimits(), told.append
    session._emit(MemberSeen("stranger", "", worked))
    assert session.peer_limits.remote_peer_of("stranger").known == worked and len(told) == 1


BODY = bytes(8 << 20)


class Taker:
    """A stream writer that counts bytes."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.transport = self

    def write(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)

    async def drain(self) -> None:
        """At once."""

    def close(self) -> None:
        """It has all."""

    async def wait_closed(self) -> None:
        """At once."""


async def test_bodies_that_a_crowd_fetches_are_bounded_for_its_address_and_in_all() -> None:
    digest = hashlib.sha256(BODY).digest()
    blobs = SimpleNamespace(has=lambda name: True, get=lambda name: BODY)
    peer_limits, began, given = PeerLimits(), time.monotonic(), 0
    node: Any = SimpleNamespace(streams={}, peer_limits=peer_limits)
    server = BodyServer(node, cast(Any, blobs), lambda peer: True)

    async def readexactly(size_bytes: int) -> bytes:
        return digest

    async def read(size_bytes: int) -> bytes:
        return b""  # it has closed

    for number in range(100):
        taker, peer = Taker(), f"peer {number}"
        peer_limits.note_connections([(peer, "10.0.0.1" if number < 60 else f"10.0.0.{number}")])
        stream = SimpleNamespace(peer_id=SimpleNamespace(to_base58=lambda peer=peer: peer))
        await server.serve(stream, cast(Any, SimpleNamespace(readexactly=readexactly, read=read)), cast(Any, taker))
        given += max(0, taker.size_bytes - len(ABSENT.to_bytes(8, "big")))
        if number == 59:
            assert len(BODY) <= given <= BYTES_PER_S.prefix * (BURST_S + time.monotonic() - began)
    assert given <= BYTES_PER_S.all * ((1 - RESERVE) * BURST_S + time.monotonic() - began)


TOOK_S = 3.0


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def unreached(now: list[float]) -> UnreachablePeers:
    return UnreachablePeers(lambda: now[0])


def rest_of(unreached: UnreachablePeers, now: list[float], took_s: float) -> float:
    """How many seconds a peer rests after a call in vain; then it is over."""
    began = now[0]
    unreached.record_failure("a", took_s)
    while unreached.is_backing_off("a"):
        now[0] += 1.0
    return now[0] - began


def test_a_peer_costs_a_tenth_of_the_time_at_most_and_less_each_time(
    unreached: UnreachablePeers, now: list[float]
) -> None:
    rests = [rest_of(unreached, now, TOOK_S) for _ in range(6)]
    assert rests[0] == REST * TOOK_S
    assert rests[1:] == [min(2**power * REST * TOOK_S, REST_MAX_S) for power in range(1, 6)]


def test_who_is_heard_of_is_called_again(unreached: UnreachablePeers, now: list[float]) -> None:
    unreached.record_failure("a", TOOK_S)
    unreached.record_contact("a")
    assert not unreached.is_backing_off("a")
    assert rest_of(unreached, now, TOOK_S) == REST * TOOK_S, "and begins anew"


NOISE = random.Random(1).randbytes(40 * 1024)  # of what no compression makes less

FIELDS_BYTES = 700  # of a record of rollouts with an RSA signature


@pytest.mark.parametrize("body_bytes", [12 * 1024, len(NOISE)])
@pytest.mark.parametrize("members", [2, 9, 10, 17, 32, 64, 100, 128, 250])
def test_all_members_behind_one_address_are_answered_at_once(members: int, body_bytes: int) -> None:
    refused: list[str] = []
    peer_limits = PeerLimits(lambda peer, reason, detail: refused.append(reason))
    shown = members if members - 1 <= WHOLE_MAX else math.ceil(members / BREADTH)
    answer = shown * (len(deflate(NOISE[:body_bytes], members)) + FIELDS_BYTES + SHOWN_RECORD_BYTES) + NEARBY_BYTES
    for number in range(members):  # of which p2pd has taken none yet
        peer = f"peer-{number}"
        peer_limits.note_connections([(peer, "10.0.0.0/24")])
        peer_limits.mark_known(peer)
        peer_limits.check_answer_allowed(peer, answer)
        peer_limits.acquire_answer_bytes(peer_limits.remote_peer_of(peer), answer)
    assert not refused


def said(limits: GossipLimits, senders: list[str], known: bool = False) -> int:
    """How many of these messages are taken."""
    taken = 0
    for sender in senders:
        try:
            limits.charge(sender, known)
        except RecordRejected as error:
            assert error.reason == "quota"
        else:
            taken += 1
    return taken


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_a_crowd_leaves_a_reserve_to_those_that_are_known(seconds: float) -> None:
    clock = VirtualTime()
    limits = GossipLimits(Rate(4.0, 1.0), Rate(40.0, 2.0), clock)
    crowd = [f"stranger-{number % 100}" for number in range(400)]
    assert said(limits, crowd) == 40 * (1 - RESERVE)
    clock.now += seconds
    said(limits, crowd)
    assert said(limits, ["member"] * 5, known=True) == 4, "one sender's bound holds for members too"
    assert said(limits, crowd) == 0, "what comes back is members' first"


def test_rejections_are_told_at_once_and_then_once_a_minute() -> None:
    clock = VirtualTime()
    rejections = RejectionCounter(clock)
    rejections.count("a", "stale")
    assert rejections.take_due_events() == [RecordsRejected("a", "stale", 1)]
    for _ in range(5):
        rejections.count("a", "stale")
    rejections.count("b", "stale")
    assert rejections.take_due_events() == [RecordsRejected("b", "stale", 1)]
    clock.now += REPEAT_S
    assert rejections.take_due_events() == [RecordsRejected("a", "stale", 5)]
    assert rejections.take_due_events() == []


def test_refusals_of_ever_new_peers_fill_no_log() -> None:
    now = 0.0
    rejections = RejectionCounter(lambda: now)
    told = []
    for step in range(600):
        now = step * 0.1
        rejections.count(f"peer-{step}", "calls")
        told += rejections.take_due_events()
    named = [event for event in told if event.peer]
    assert len(named) <= NAMED_BURST + NAMED_PER_S * 60 and len(told) - len(named) <= 2
    now = 200.0
    assert sum(event.count for event in told + rejections.take_due_events()) == 600
