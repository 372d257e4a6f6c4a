"""Made questions: right by their own working, and split by their numbers."""

from __future__ import annotations

import re

import pytest
import reasoning_gym

from swarmd.swarms.gym.made import MADE_NAMES, register_made
from swarmd.swarms.math.reading import read_number
from swarmd.swarms.plan import split_of

register_made()


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
