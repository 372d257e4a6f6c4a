"""Who takes part, as a node tells its daemon: how many places there are for whom."""

from __future__ import annotations

import pytest

from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.limits.token_bucket import SENDERS_MAX
from swarmd.dht.members import presence
from swarmd.dht.members.presence import RETURNS_BURST, Presences
from swarmd.dht.store.seniority import Rank

UNTIL = 900.0


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
