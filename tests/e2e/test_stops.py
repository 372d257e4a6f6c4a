"""A real node that is stopped and started again and again leaves nothing. `make soak` does it 200 times."""

from __future__ import annotations

import pytest

from tests.soak.stops import Rhythm, soak

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

STOPS = 4
SEED = 183  # one that has a life of every kind, and only that which is killed, and the one after it, come far


@pytest.mark.soak
def test_stops_at_any_moment_leave_nothing() -> None:
    """SIGTERM, SIGINT and SIGKILL, from the daemon's first instant on; the checks are those of the long run."""
    tally = soak(STOPS, SEED, Rhythm(interrupts=3, kills=4), deep=True)
    assert sum(tally.ends.values()) == STOPS + 1
    assert any(end.startswith("SIGINT") for end in tally.ends) and tally.ends["SIGKILL"] == 1
    assert tally.rounds >= 1
    assert tally.leavings >= 1
