"""Newcomers of a legacy network are told of, whoever invents peers there, and at a bounded rate."""

from __future__ import annotations

from swarmd.dht.legacy.newcomers import MEMBERS_KEPT, NEW_BURST, NEW_PER_S, Newcomers


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_is_told_of_once_as_long_as_it_is_seen() -> None:
    newcomers = Newcomers(Clock())
    assert newcomers.among(["a", "b", "a"]) == ["a", "b"]
    assert newcomers.among(["b", "c"]) == ["c"]


def test_peers_that_somebody_invents_keep_no_newcomer_from_being_told_of_for_ever() -> None:
    clock = Clock()
    newcomers = Newcomers(clock)
    newcomers.among(["honest"])
    invented = [f"invented {number}" for number in range(2 * MEMBERS_KEPT)]
    assert len(newcomers.among(invented)) == MEMBERS_KEPT - 1 and newcomers.among(["newcomer"]) == []
    clock.now += 1.5 / NEW_PER_S
    assert newcomers.among(["newcomer", "honest"]) == ["newcomer"]


def test_the_log_grows_by_so_many_a_day_whoever_is_invented() -> None:
    clock, told = Clock(), 0
    newcomers = Newcomers(clock)
    for number in range(24 * 60):
        told += len(newcomers.among(f"{number}/{each}" for each in range(1000)))
        clock.now += 60.0
    assert told <= NEW_BURST + 24 * 3600 * NEW_PER_S
    assert len(newcomers._seen) == MEMBERS_KEPT
