"""Whoever is called in vain rests, each time for longer, until it is heard of."""

from __future__ import annotations

import pytest

from swarmd.dht.limits.unreached import REST, REST_MAX_S, Unreached

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
