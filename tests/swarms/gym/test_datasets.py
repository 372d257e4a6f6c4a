"""Data sets that are copies of each other give the questions that those made anew would give."""

from __future__ import annotations

import re

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from swarmd.swarms.gym_tasks import MADE_NAMES, Datasets, make_pattern, make_task
from swarmd.swarms.math.texts import read_number
from swarmd.swarms.plan import split_of

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


@pytest.mark.parametrize("name", MADE_NAMES)
def test_the_working_leads_to_the_answer(name: str) -> None:
    data = reasoning_gym.create_dataset(name, seed=5, size=300)
    for entry in data:
        working = entry["metadata"]["working"]
        for line in working:
            sum, _, result = line.partition("=")
            assert eval(sum) == int(result)
        assert working[-1].endswith(f"={entry['answer']}")
        assert read_number(entry["answer"]) is not None and int(entry["answer"]) >= 0


def test_a_story_about_somebody_else_is_the_same_question() -> None:
    texts: dict[str, set[str]] = {}
    for entry in reasoning_gym.create_dataset("made_stories", seed=5, size=3000):
        numbers = tuple(re.findall(r"\d+", entry["question"]))
        assert sorted(numbers) == sorted(entry["metadata"]["canonical"].split()[1:])
        texts.setdefault(entry["metadata"]["canonical"], set()).add(entry["question"])
    assert any(len(told) > 1 for told in texts.values())
    assert len(texts) > 800
    assert {split_of("made_stories", canonical) for canonical in texts} == {"train", "dev", "held-out"}


def test_an_item_is_a_function_of_seed_and_index() -> None:
    one, other = (reasoning_gym.create_dataset("made_stories", seed=seed, size=20) for seed in (7, 9))
    assert one[2] == {**other[0], "metadata": {**other[0]["metadata"], "source_index": 2}}
