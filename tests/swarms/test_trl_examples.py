"""The examples of docs/FROM-TRL.md are swarms of at most twelve lines, and score as TRL's documents say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from swarmd.config import TrainingConfig, load_config
from swarmd.errors import SwarmError
from swarmd.swarms.file import FilePlan
from swarmd.swarms.plan import Score
from swarmd.swarms.registry import check_kind
from tests.programs import path_of
from tests.swarms.making import take, write_rows

DOCUMENT = Path(__file__).parents[2] / "docs" / "FROM-TRL.md"
LINES_MAX = 12


class Example(NamedTuple):
    config: str
    modules: dict[str, str]  # by file name


def read_examples() -> dict[str, Example]:
    """The examples by the swarm's id: each section with a configuration."""
    found = {}
    for section in re.split(r"^#{2,3} ", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE):
        blocks = re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)
        files = {code.splitlines()[0].removeprefix("# "): code for kind, code in blocks if kind == "python"}
        modules = {name: code for name, code in files.items() if name.endswith(".py")}
        for kind, config in blocks:
            if kind == "toml" and "[swarm]" in config:
                found[re.findall(r'^id = "(.*)"', config, re.MULTILINE)[0]] = Example(config, modules)
    return found


EXAMPLES = read_examples()


def make_example(name: str, home: Path, *rows: dict[str, Any]) -> FilePlan:
    """The example's plan; without rows, with forty that have a prompt and the answer 4."""
    example = EXAMPLES[name]
    (home / "config.toml").write_text(example.config, encoding="utf-8")
    for file, code in example.modules.items():
        (home / file).write_text(code, encoding="utf-8")
    numbered = [{"prompt": f"{n}: what is 2 + 2?", "answer": "4", **row} for n in range(40) for row in rows or ({},)]
    write_rows(home / "questions.jsonl", numbered)
    config = load_config(home / "config.toml")
    check_kind(config.swarm)
    return FilePlan(config.swarm, TrainingConfig(), home)


def rewards_of(plan: FilePlan, *completions: str) -> list[float]:
    (question,) = take(plan, 1)
    return [round(score.reward, 6) for score in plan.score(question, completions)]


def test_each_takes_at_most_twelve_lines() -> None:
    assert len(EXAMPLES) >= 5
    for name, example in EXAMPLES.items():
        assert len(example.config.splitlines()) <= LINES_MAX, name


def test_accuracy_and_format_of_trls_own(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    plan = make_example("deep-math", tmp_path, {"answer": r"\frac{1}{3}"})
    right, wrong = r"My answer is \boxed{\frac{1}{3}}", r"My answer is \boxed{\frac{1}{2}}"
    thought = f"<think>\nIt is a third.\n</think>\n{right}"
    assert rewards_of(plan, right, wrong, thought) == [1.0, 0.0, 1.2]


def test_a_solution_that_cannot_be_read_is_left_to_the_other_function(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    plan = make_example("deep-math", tmp_path, {"answer": "see the appendix"})
    (question,) = take(plan, 1)
    (score,) = plan.score(question, ["<think>Hm.</think> Yes."])
    assert score.parts == {"think_format_reward": 0.2}


def test_length_in_tokens(tmp_path: Path) -> None:
    plan = make_example("longer", tmp_path)
    plan.use_tokenizer(lambda text: [0] * len(text.split()))
    assert rewards_of(plan, "in the sky.", "blue.") == [3.0, 1.0]


def test_soft_overlong_punishment(tmp_path: Path) -> None:
    plan = make_example("overlong", tmp_path)
    plan.use_tokenizer(lambda text: [0] * len(text.split()))
    assert rewards_of(plan, "a " * 80 + "<answer>4</answer>", "a " * 90, "a " * 200) == [0.95, -0.5, -1.0]


def test_a_format(tmp_path: Path) -> None:
    plan = make_example("form", tmp_path)
    told = "<think>The sum is 4.</think><answer>4</answer>"
    assert rewards_of(plan, told, "The sum is 4.") == [1.0, 0.0]


def test_a_reference(tmp_path: Path) -> None:
    plan = make_example("boxed", tmp_path, {"ground_truth": "2"})
    assert rewards_of(plan, r" The solution is \boxed{2}.", r" The solution is \boxed{6}.") == [1.0, 0.0]


def test_several_tasks(tmp_path: Path) -> None:
    plan = make_example("tasks", tmp_path, {"task": "math"}, {"task": "coding", "prompt": "Add two numbers."})
    assert plan.tasks == ("coding", "math")
    scores: dict[str, Score] = {}
    for question in take(plan, 20):
        (scores[question.task],) = plan.score(question, ["def f(): return 4"])
    assert {task: score.parts for task, score in scores.items()} == {
        "math": {"math_reward_func": 1.0},
        "coding": {"coding_reward_func": 1.0},
    }


def play(plan: FilePlan, *turns: str) -> tuple[list[str | None], float]:
    """What the environment of the plan's first question answers, and its reward."""
    (question,) = take(plan, 1)
    episode = plan.open_environment(question)
    episode.reset(question)
    answers = [episode.act(turn) for turn in turns]
    score = episode.reward()
    episode.close()
    return answers, score.reward if isinstance(score, Score) else score


def test_tools(tmp_path: Path) -> None:
    path_of("bubblewrap")
    plan = make_example("calculator", tmp_path, {"answer": "42"})
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'
    assert play(plan, call, "42") == (["<tool_response>\n42\n</tool_response>", None], 1.0)
    assert play(plan, "41") == ([None], 0.0)


def test_an_environment(tmp_path: Path) -> None:
    path_of("bubblewrap")
    plan = make_example("counter", tmp_path, {"target": 7})
    call = '<tool_call>\n{"name": "increment", "arguments": {"step": 5}}\n</tool_call>'
    assert play(plan, call, "Done.") == (["<tool_response>\n5\n</tool_response>", None], -2.0)


def test_an_openenv_server_is_named(tmp_path: Path) -> None:
    (question,) = take(plan := make_example("openenv", tmp_path), 1)
    with pytest.raises(SwarmError, match=r"http://127\.0\.0\.1:8000 cannot be reached|failed at reset"):
        plan.open_environment(question).reset()
