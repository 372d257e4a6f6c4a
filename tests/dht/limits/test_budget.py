"""Bounds at the door: for each peer, for each address prefix, in all."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from swarmd.core.events import Event, MemberSeen
from swarmd.dht.limits.budget import RESERVE, ConcurrencyBudget, Flow, PeerBounds, RemotePeer
from swarmd.dht.limits.door import KNOWN_MAX, REFUSALS_MAX, REQUEST_BYTES_MAX, STREAMS, RequestLimits
from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.dht.p2p.address_prefixes import RELAYED, prefix_of
from swarmd.dht.p2p.p2pd_control import Timed
from swarmd.dht.session import Session
from swarmd.errors import RecordRejected

A, B, C = (RemotePeer(name, "10.0.0.1") for name in "abc")
ELSEWHERE = RemotePeer("d", "10.0.0.2")


def test_a_peer_holds_no_more_than_its_own() -> None:
    held = ConcurrencyBudget(PeerBounds(2, 10, 10))
    assert [held.try_acquire(A) for _ in range(3)] == [True, True, False]
    assert held.try_acquire(B)
    held.give_back(A)
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


def test_what_is_given_back_is_forgotten() -> None:
    held = ConcurrencyBudget(PeerBounds(1, 1, 1000))
    for number in range(500):
        caller = RemotePeer(str(number), str(number))
        held.try_acquire(caller)
        held.try_acquire(caller)
        held.give_back(caller)
    assert held.total == 0 and not held._peers and not held._prefixes


def test_a_flow_comes_back_with_time() -> None:
    now = 0.0
    flow = Flow(PeerBounds(1, 10, 100), burst_s=2.0, now=lambda: now)
    assert [flow.try_charge(A) for _ in range(3)] == [True, True, False]
    now = 1.0
    assert flow.try_charge(A) and not flow.try_charge(A)


def test_processor_time_is_owed_until_it_has_come_back() -> None:
    now = 0.0
    flow = Flow(PeerBounds(0.5, 10, 10), burst_s=2.0, now=lambda: now)
    flow.charge(A, 3.0)
    now = 3.0
    assert not flow.has(A)
    now = 5.0
    assert flow.has(A) and flow.has(B)


def test_a_sender_is_charged_below_zero() -> None:
    quota = TokenBuckets(1.0, 1.0, lambda: 0.0)
    quota.charge("a", 5.0)
    assert quota.left("a") == -4.0 and quota.left("b") == 1.0


@pytest.mark.parametrize(
    ("address", "prefix"),
    [
        (b"\x04\x0a\x00\x00\x01\x06\x0f\xa1", "10.0.0.1"),
        (b"\x29" + bytes.fromhex("20010db8000102030405060708090a0b") + b"\x06\x0f\xa1", "2001:db8:1:200::/56"),
        (b"\x29" + bytes(10) + b"\xff\xff\x0a\x00\x00\x01\x06\x0f\xa1", "10.0.0.1"),
        (b"\x29" + bytes.fromhex("20010db8000102030405060708a2020b") + b"\x06\xa2\x02", "2001:db8:1:200::/56"),
        (b"\x04\x0a\x00\x00\x01\x06\x0f\xa1\xa5\x03\x01a\xa2\x02", RELAYED),
        (b"\x29" + bytes(15) + b"\x01\x06\x0f\xa1\xa5\x03\x01a\xa2\x02", RELAYED),
        (b"", "elsewhere"),
    ],
)
def test_the_prefix_of_an_address(address: bytes, prefix: str) -> None:
    assert prefix_of(address) == prefix


def test_a_refused_call_holds_nothing() -> None:
    door = RequestLimits(lambda peer, reason, detail: None)
    for _ in range(3):
        with pytest.raises(RecordRejected):
            door.enter_call(A, "DHTProtocol.rpc_ping", REQUEST_BYTES_MAX["DHTProtocol.rpc_ping"] + 1)
    assert door.calls.total == door.requests.total == 0


def test_whoever_is_refused_again_and_again_is_not_wanted() -> None:
    told: list[tuple[str, str]] = []
    door = RequestLimits(lambda peer, reason, detail: told.append((peer, reason)))
    for _ in range(REFUSALS_MAX - 1):
        door.refusal("a", "calls", "")
    assert not door.unwanted
    door.refusal("a", "calls", "")
    assert door.unwanted == {"a"} and told == [("a", "calls")] * REFUSALS_MAX


def test_whoever_is_out_is_refused_and_disconnected_again_at_once() -> None:
    door = RequestLimits(lambda peer, reason, detail: None)
    door.out["a"] = 60.0
    with pytest.raises(RecordRejected, match="disconnected"):
        door.enter_call(A, "DHTProtocol.rpc_ping", 10)
    assert door.unwanted == {"a"} and door.calls.total == 0
    with pytest.raises(RecordRejected):
        door.enter_stream(A)
    door.enter_call(B, "DHTProtocol.rpc_ping", 10)


def test_a_stream_that_was_closed_makes_room() -> None:
    door = RequestLimits(lambda peer, reason, detail: None)
    for _ in range(int(STREAMS.peer)):
        door.enter_stream(A)
    with pytest.raises(RecordRejected, match="open streams"):
        door.enter_stream(A)
    door.leave_stream(A)
    door.enter_stream(A)


def test_what_others_use_while_a_call_waits_is_not_its_own() -> None:
    async def work() -> str:
        burn(0.01)
        await asyncio.sleep(0)
        return "done"

    async def other() -> None:
        burn(0.2)

    async def main() -> float:
        timed = Timed(work())
        task = asyncio.ensure_future(_run(timed))
        await asyncio.gather(task, other())
        return timed.spent_s

    assert 0.01 <= asyncio.run(main()) < 0.2


def burn(seconds: float) -> None:
    """Use so much processor time."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


def test_an_error_and_a_cancellation_reach_the_call() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        task = asyncio.ensure_future(_run(Timed(work())))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]


async def _run(timed: Timed[Any]) -> None:
    await timed


def test_a_crowd_of_members_does_not_make_the_door_forget_whom_the_swarm_credits() -> None:
    door = RequestLimits(lambda *refusal: None)
    door.is_credited = {"elder"}.__contains__
    door.meet("elder")
    for number in range(KNOWN_MAX + 1):
        door.meet(f"crowd-{number}")
    assert door.caller("elder").known
    assert not door.caller("crowd-0").known and door.caller(f"crowd-{KNOWN_MAX}").known


@pytest.mark.parametrize("worked", [True, False])
def test_a_membership_that_cost_nothing_makes_nobody_known(worked: bool) -> None:
    session, told = Session.__new__(Session), list[Event]()
    session.door, session._observe = RequestLimits(lambda *refusal: None), told.append
    session.emit(MemberSeen("stranger", "", worked))
    assert session.knows("stranger") == worked and len(told) == 1
