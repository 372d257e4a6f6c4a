"""The level that a node asks for, and what solvers' results make of a proposal's worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.errors import SwarmError
from swarmd.swarms.proposer.problems import NEUTRAL, Level, PassRates, compare

RESULTS = st.lists(st.tuples(st.integers(0, 2), st.floats(-1.2, 1.2)), max_size=60)


def run(level: Level, rewards: list[float], first: int = 0) -> list[int]:
    seen = []
    for round, reward in enumerate(rewards, first):
        level.note(round, reward)
        seen.append(level.level)
    return seen


def test_rising_rewards_raise_the_level_and_falling_ones_lower_it() -> None:
    rising = run(Level(2), [0.0] * 10 + [1.0] * 11)
    assert rising == [2] * 20 + [3], "20 rounds closed, the level is looked at every fifth"
    assert run(Level(2), [1.0] * 10 + [0.0] * 11)[-1] == 1
    assert run(Level(1), [1.0] * 10 + [0.0] * 11)[-1] == 1 and run(Level(5), [0.0] * 10 + [1.0] * 11)[-1] == 5
    assert set(run(Level(2), [0.5, 0.54] * 40)) == {2}, "within the threshold"


def test_it_moves_at_most_once_in_five_rounds() -> None:
    seen = run(Level(1), [number / 10 for number in range(60)])
    moves = [at for at in range(1, 60) if seen[at] != seen[at - 1]]
    assert moves == [20, 25, 30, 35] and seen[-1] == 5


def test_a_round_counts_once_by_its_mean() -> None:
    level = Level(2)
    for round in range(21):
        for reward in (0.0, 1.0) if round < 10 else (0.4, 0.6, 0.5):
            level.note(round, reward)
    assert level.level == 2 and compare([0.5] * 20) == 0


@given(RESULTS, st.integers(0, 60))
def test_it_survives_a_restart_at_any_point(results: list[tuple[int, float]], cut: int) -> None:
    whole, first, round = Level(2), Level(2), 0
    for number, (skipped, reward) in enumerate(results):
        round += skipped
        if number == cut:
            first, before = Level(4), first
            first.load(before.read())
        whole.note(round, reward)
        first.note(round, reward)
    assert whole.read() == first.read()


@pytest.mark.parametrize("memory", [7, {"level": 9}, {"level": 2, "rewards": ["x"]}, {"level": 2, "more": 1}])
def test_what_is_no_memory_is_refused(memory: object) -> None:
    with pytest.raises(SwarmError, match="level"):
        Level(2).load(memory)


def test_the_worth_of_a_proposal() -> None:
    rates = PassRates({"tried": 0.25, "trivial": 1.0, "hopeless": 0.0}, {("lists", 2): 0.6})
    assert rates.worth("tried", "lists", 2) == 0.75
    assert rates.worth("trivial", "lists", 2) == rates.worth("hopeless", "lists", 2) == 0.0
    assert rates.worth("new", "lists", 2) == 0.4
    assert rates.worth("new", "lists", 3) == NEUTRAL
