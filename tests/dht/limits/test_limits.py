"""Bounds on peers that do not answer, on answers, on changes of mind and on gossip."""

from __future__ import annotations

import math
import random

import pytest

from swarmd.dht.limits import RESERVE, REST, REST_MAX_S, GossipLimits, Rate, RequestLimits, Unreached
from swarmd.dht.rounds.gather import WHOLE_MAX
from swarmd.dht.rounds.report_collector import ChangeLimit
from swarmd.dht.store.lookup import BREADTH
from swarmd.dht.store.validator import NEARBY_BYTES, SHOWN_RECORD_BYTES
from swarmd.dht.wire.bodies import deflate
from swarmd.errors import RecordRejected

TOOK_S = 3.0


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def unreached(now: list[float]) -> Unreached:
    return Unreached(lambda: now[0])


def rest_of(unreached: Unreached, now: list[float], took_s: float) -> float:
    """How many seconds a peer rests after a call in vain; then it is over."""
    began = now[0]
    unreached.miss("a", took_s)
    while unreached.rests("a"):
        now[0] += 1.0
    return now[0] - began


def test_a_peer_costs_a_tenth_of_the_time_at_most_and_less_each_time(unreached: Unreached, now: list[float]) -> None:
    rests = [rest_of(unreached, now, TOOK_S) for _ in range(6)]
    assert rests[0] == REST * TOOK_S
    assert rests[1:] == [min(2**power * REST * TOOK_S, REST_MAX_S) for power in range(1, 6)]


def test_who_is_heard_of_is_called_again(unreached: Unreached, now: list[float]) -> None:
    unreached.miss("a", TOOK_S)
    unreached.hear("a")
    assert not unreached.rests("a")
    assert rest_of(unreached, now, TOOK_S) == REST * TOOK_S, "and begins anew"


NOISE = random.Random(1).randbytes(40 * 1024)  # of what no compression makes less

FIELDS_BYTES = 700  # of a record of rollouts with an RSA signature


@pytest.mark.parametrize("body_bytes", [12 * 1024, len(NOISE)])
@pytest.mark.parametrize("members", [2, 9, 10, 17, 32, 64, 100, 128, 250])
def test_all_members_behind_one_address_are_answered_at_once(members: int, body_bytes: int) -> None:
    refused: list[str] = []
    door = RequestLimits(lambda peer, reason, detail: refused.append(reason))
    shown = members if members - 1 <= WHOLE_MAX else math.ceil(members / BREADTH)
    answer = shown * (len(deflate(NOISE[:body_bytes], members)) + FIELDS_BYTES + SHOWN_RECORD_BYTES) + NEARBY_BYTES
    for number in range(members):  # of which p2pd has taken none yet
        peer = f"peer-{number}"
        door.place(peer, "10.0.0.0/24")
        door.meet(peer)
        door.allow_answer(peer, answer)
        door.enter_answer(door.caller(peer), answer)
    assert not refused


@pytest.fixture
def changes(now: list[float]) -> ChangeLimit:
    return ChangeLimit(2, 10.0, lambda: now[0])


def test_a_change_is_taken_when_its_time_has_come(changes: ChangeLimit, now: list[float]) -> None:
    changes.admit("a", 1)
    assert not changes.admit("a", 2)
    now[0] = 10.0
    assert changes.admit("a", 2) and not changes.admit("a", 2)


def test_after_some_changes_no_further_one_is_taken(changes: ChangeLimit, now: list[float]) -> None:
    for number in range(3):
        now[0] = 10.0 * number
        assert changes.admit("a", number)
    now[0] = 1000.0
    with pytest.raises(RecordRejected):
        changes.admit("a", 3)
    assert not changes.admit("a", 2)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


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
    clock = Clock()
    limits = GossipLimits(Rate(4.0, 1.0), Rate(40.0, 2.0), clock)
    crowd = [f"stranger-{number % 100}" for number in range(400)]
    assert said(limits, crowd) == 40 * (1 - RESERVE)
    clock.now += seconds
    said(limits, crowd)
    assert said(limits, ["member"] * 5, known=True) == 4, "one sender's bound holds for members too"
    assert said(limits, crowd) == 0, "what comes back is members' first"
