"""Who takes part, as a node tells its daemon: how many places there are for whom."""

from __future__ import annotations

import pytest

from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.limits.token_bucket import SENDERS_MAX
from swarmd.dht.members import presence
from swarmd.dht.members.presence import RETURNS_BURST, Presences
from swarmd.dht.store.seniority import Rank
from swarmd.dht.wire.records import PAST_S

UNTIL = 900.0


def worked() -> Rank:
    return Rank(0, WORK_BITS, True, b"")


def credited() -> Rank:
    return Rank(5, WORK_BITS, True, b"")


@pytest.fixture
def presences(monkeypatch: pytest.MonkeyPatch) -> Presences:
    monkeypatch.setattr(presence, "IDLE_MEMBERS_MAX", 4)
    return Presences(lambda: 0.0)


def test_a_crowd_with_credit_that_leaves_and_comes_back_in_turn_has_no_fresh_burst_each_time(
    presences: Presences,
) -> None:
    peers = [f"peer {number}" for number in range(SENDERS_MAX + 1)]
    told = [presences.note(peer, True, UNTIL, credited) for peer in peers]
    assert all(told)
    returns = 0
    for _ in range(3 * int(RETURNS_BURST)):
        for peer in peers:
            presences.note(peer, False, UNTIL, credited)
            returns += presences.note(peer, True, UNTIL, credited) is True
    assert returns == RETURNS_BURST * len(peers)


def test_who_is_here_is_counted_through_comings_leavings_returns_and_expiry() -> None:
    presences, counts = Presences(lambda: 0.0), []
    for peer, here, until in (
        ("one", True, 100.0),
        ("two", True, 500.0),
        ("two", False, 600.0),
        ("two", True, 700.0),
        ("three", False, 900.0),  # of whom nothing was known
        ("one", True, 800.0),
    ):
        presences.note(peer, here, until, worked)
        counts.append(presences.here)
    assert counts == [1, 2, 1, 2, 2, 2]
    assert presences.forget_gone(700.0 + PAST_S) == [] and presences.here == 2, "one has written another record"
    assert presences.forget_gone(701.0 + PAST_S) == ["two"] and presences.here == 1
    presences.note("four", True, 720.0, worked)
    assert presences.forget_gone(721.0 + PAST_S) == ["four"], "it came with an earlier end than those before"
    assert presences.forget_gone(801.0 + PAST_S) == ["one"] and presences.here == 0
