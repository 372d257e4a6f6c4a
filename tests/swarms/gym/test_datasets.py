"""Data sets that are copies of each other give the questions that those made anew would give."""

from __future__ import annotations

from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from swarmd.swarms.gym import gym_tasks
from swarmd.swarms.gym.gym_tasks import DATASET_SIZE, FEW, Datasets, GymTask, is_alike, make_pattern, make_task

SLOW = {"acre", "futoshiki", "sokoban", "zebra_puzzles"}  # seconds for a data set or a question
MADE_ANEW = {"aiw", "calendar_arithmetic", "gsm_symbolic", "knight_swap", "list_functions", "manipulate_matrix"}
ASKED = (0, 12_345)
# Those of swarmd itself are registered when a plan is made, so not in every process that collects these tests.
TASKS = {name for name, (made, _) in DATASETS.items() if made.__module__.startswith("reasoning_gym.")} - {"composite"}


@pytest.mark.parametrize("name", sorted(TASKS - SLOW - MADE_ANEW))
def test_a_copy_asks_what_a_data_set_made_anew_asks(name: str) -> None:
    """Also after others were asked, with which it shares what does not depend on the seed."""
    task, given = make_task(name, {}), Datasets()
    for seed in (11, 2**31 - 1):
        fresh = task.make(seed)
        for index in ASKED:
            asked, expected = given.take(task, seed)[index], fresh[index]
            assert asked["question"] == expected["question"]
            assert asked["answer"] == expected["answer"]


@pytest.mark.parametrize("name", sorted(MADE_ANEW))
def test_where_the_seed_decides_more_than_questions_each_is_made(name: str) -> None:
    assert make_pattern(make_task(name, {})) is None


def count_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each data set that is made from now on."""
    made: list[int] = []
    make = GymTask.make

    def count(task: GymTask, seed: int, size: int = DATASET_SIZE) -> Any:
        made.append(size)
        return make(task, seed, size)

    monkeypatch.setattr(GymTask, "make", count)
    return made


def test_where_each_is_made_none_of_all_questions_is_made_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of `acre` takes four seconds and more."""
    made = count_made(monkeypatch)
    assert make_pattern(make_task("acre", {})) is None
    assert made == [FEW, FEW]


def test_a_task_is_made_twice_for_any_number_of_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_made(monkeypatch)
    task, given = make_task("spell_backward", {}), Datasets()
    taken = [given.take(task, seed) for seed in range(100, 200)]
    assert made.count(DATASET_SIZE) == 2
    assert [each.seed for each in taken] == [each.config.seed for each in taken] == list(range(100, 200))
    assert len({id(each.words) for each in taken}) == 1


def test_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_tasks, "KEPT", 2)
    task, given = make_task("chain_sum", {}), Datasets()
    first, second = given.take(task, 1), given.take(task, 2)
    assert given.take(task, 1) is first
    given.take(task, 3)
    assert given.take(task, 1) is first
    assert given.take(task, 2) is not second


def test_what_cannot_be_compared_is_made_anew() -> None:
    class Strange:
        def __eq__(self, other: object) -> bool:
            raise ValueError("not to be compared")

    task = make_task("chain_sum", {})
    one, other = task.make(0), task.make(1)
    assert is_alike(one, other)
    one.strange, other.strange = Strange(), Strange()
    assert not is_alike(one, other)
