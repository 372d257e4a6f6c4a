"""Reward functions as TRL takes them, named by import path in a node's own configuration."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmd.config import Config, SwarmConfig, TrainingConfig
from swarmd.errors import ManifestError, SwarmError
from swarmd.manifest import check_recipe, recipe_of
from swarmd.swarms.file import FilePlan
from swarmd.swarms.plan import NO_MATERIAL, Score, StageId

FUNCTIONS = """\
seen = []

def right(prompts, completions, solution, **kwargs):
    seen.append({"prompts": prompts, "completions": completions, "solution": solution, **kwargs})
    return [float(c == s) for c, s in zip(completions, solution)]

def short(completions, **kwargs):
    return [None if not c else -len(c) / 10 for c in completions]

async def slow(completions, **kwargs):
    return [0.25] * len(completions)

def breaks(completions, **kwargs):
    raise RuntimeError("no")

def miscounts(completions, **kwargs):
    return [1.0]

def leaves(completions, **kwargs):
    raise SystemExit(3)

def goes_on(completions, **kwargs):
    while True:
        yield 1.0

def by_text(completions, **kwargs):
    return {place: 0.5 for place, _ in enumerate(completions)}

def as_text(completions, **kwargs):
    return "1" * len(completions)

def uses_up(completions, words, **kwargs):
    completions[:] = ["", ""]
    return [float(len(words[0].pop())), 0.0]

def spoken(prompts, completions, **kwargs):
    return [float(p[-1]["role"] == "user" and c[0]["role"] == "assistant") for p, c in zip(prompts, completions)]

NOT_ONE = 3
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_rewards.py").write_text(FUNCTIONS)
    rows = [{"prompt": f"{n} + 1?", "answer": str(n + 1), "hard": n} for n in range(20)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    yield tmp_path
    sys.modules.pop("my_rewards", None)


def plan_of(home: Path, *functions: str, **options: Any) -> FilePlan:
    named = [f"my_rewards:{name}" for name in functions]
    given = {"data": "q.jsonl", "columns": {"answer": "solution"}, "reward_funcs": named, **options}
    return FilePlan(SwarmConfig("s", kind="file", options=given), TrainingConfig(), home)


def score(plan: FilePlan, *completions: str) -> list[Score]:
    return plan.score(next(plan.draw(StageId("a", 0, 0), NO_MATERIAL)), completions)


def test_they_are_called_as_trl_calls_them(home: Path) -> None:
    plan = plan_of(home, "right")
    question = next(plan.draw(StageId("a", 0, 0), NO_MATERIAL))
    text, answer = question.messages[-1].content, str(question.entry["answer"])
    right, wrong = plan.score(question, [answer, "x"])
    assert (right.reward, wrong.reward, right.parts) == (1.0, 0.0, {"right": 1.0})
    assert (right.accuracy, wrong.accuracy) == (1.0, 0.0)
    import my_rewards  # type: ignore[import-not-found]

    (call,) = my_rewards.seen
    assert call["prompts"] == [text, text] and call["completions"] == [answer, "x"]
    assert call["solution"] == call["answer"] == [answer, answer]
    assert call["hard"] == [int(answer) - 1] * 2
    assert call["trainer_state"] is None and call["log_metric"]("x", 1.0) is None


def test_they_add_up_by_weight_and_beside_named_rewards(home: Path) -> None:
    plan = plan_of(home, "short", "slow", reward_weights=[2.0, 4.0], rewards=[{"name": "exact"}], answer="whole")
    (scored,) = score(plan, "12345")
    assert scored.parts == {"exact": 0.0, "short": -1.0, "slow": 1.0}
    assert (scored.reward, scored.accuracy) == (0.0, 0.0)


def test_none_has_no_part_and_none_of_all_counts_as_failed(home: Path) -> None:
    empty, other = score(plan_of(home, "short", "slow"), "", "12345")
    assert (empty.parts, other.parts) == ({"slow": 0.25}, {"short": -0.5, "slow": 0.25})
    assert score(plan_of(home, "short"), "") == [Score(0.0, failed=True)]


@pytest.mark.parametrize("name", ["breaks", "miscounts", "leaves", "goes_on", "by_text", "as_text"])
def test_one_that_breaks_counts_as_nothing_and_never_raises(home: Path, name: str) -> None:
    assert score(plan_of(home, "slow", name), "a", "b") == [Score(0.0, failed=True)] * 2


def test_what_one_changes_of_its_arguments_no_other_sees_nor_the_next_call(home: Path) -> None:
    (home / "q.jsonl").write_text(
        "\n".join(json.dumps({"prompt": f"{n}?", "words": ["one", "three"]}) for n in range(20))
    )
    plan = plan_of(home, "uses_up", "short")
    for _ in range(3):
        assert [each.parts for each in score(plan, "12345", "1")] == [
            {"uses_up": 5.0, "short": -0.5},
            {"uses_up": 0.0, "short": -0.1},
        ]


def test_conversational_ones_get_messages(home: Path) -> None:
    assert score(plan_of(home, "spoken", reward_inputs="messages"), "a")[0].reward == 1.0


def test_rows_need_no_answer_where_nothing_compares(home: Path) -> None:
    (home / "q.jsonl").write_text("\n".join(json.dumps({"prompt": f"{n}?"}) for n in range(20)))
    assert score(plan_of(home, "short"), "12345")[0].reward == -0.5
    with pytest.raises(SwarmError, match="'answer' is missing"):
        plan_of(home)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"reward_funcs": ["my_rewards"]}, "is no import path"),
        ({"reward_funcs": ["os; x:y"]}, "is no import path"),
        ({"reward_funcs": ["my_rewards:nothing"]}, "cannot be imported: AttributeError"),
        ({"reward_funcs": ["no_such_module:f"]}, "cannot be imported: ModuleNotFoundError"),
        ({"reward_funcs": ["my_rewards:NOT_ONE"]}, "is no function"),
        ({"reward_funcs": ["my_rewards:short"] * 2}, "have one name"),
        ({"reward_funcs": ["my_rewards:short"], "reward_weights": [1.0, 2.0]}, "has 2 values for 1"),
        ({"reward_funcs": ["my_rewards:short"], "reward_weights": [math.nan]}, "has what is no number"),
    ],
)
def test_wrong_ones_are_told_when_the_plan_is_made(home: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SwarmError, match=complaint):
        plan_of(home, **options)


def test_no_manifest_carries_or_sets_them() -> None:
    own = {"reward_funcs": ["my_rewards:short"], "reward_weights": [1.0], "reward_inputs": "text"}
    config = Config(SwarmConfig("s", kind="file", options={"data": "q.jsonl", **own}), role="coordinator")
    recipe = recipe_of(config)
    assert recipe.options == {"data": "q.jsonl"}
    for name, value in own.items():
        recipe.options[name] = value
        with pytest.raises(ManifestError, match=f"{name} is for each node to set"):
            check_recipe(recipe)
        del recipe.options[name]
