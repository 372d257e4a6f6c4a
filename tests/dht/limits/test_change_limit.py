"""A peer's word on a stage may change a few times, and not too fast."""

from __future__ import annotations

import pytest

from swarmd.dht.limits.change_limit import ChangeLimit
from swarmd.errors import RecordRejected


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def changes(now: list[float]) -> ChangeLimit[int]:
    return ChangeLimit(2, 10.0, lambda: now[0])


def test_a_change_is_taken_when_its_time_has_come(changes: ChangeLimit[int], now: list[float]) -> None:
    changes.admit("a", 1)
    assert not changes.admit("a", 2)
    now[0] = 10.0
    assert changes.admit("a", 2) and not changes.admit("a", 2)


def test_after_some_changes_no_further_one_is_taken(changes: ChangeLimit[int], now: list[float]) -> None:
    for number in range(3):
        now[0] = 10.0 * number
        assert changes.admit("a", number)
    now[0] = 1000.0
    with pytest.raises(RecordRejected):
        changes.admit("a", 3)
    assert not changes.admit("a", 2)
