"""Where questions come from: generated, a file, a copy of the data set."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from swarmd.config import TaskConfig
from swarmd.errors import SwarmError
from swarmd.swarms.math.plan import Gsm8kPlan, MathHardPlan, MathPlan
from swarmd.swarms.math.questions import DAPO, GSM8K, DatasetSchema, load_question_rows, read_true_answer
from swarmd.swarms.plan import StageId, split_of
from tests.swarms.making import take
from tests.swarms.math.voices import make_plan

ROWS = [(f"What is {n} + {n}?", f"Twice {n} is {2 * n}.\n#### {2 * n:,}") for n in range(600)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in ROWS))
    return path


def save_copy(path: Path, shape: DatasetSchema, rows: list[tuple[str, str]], config: str | None = None) -> None:
    """A data set as it lies on the Hub: a card with its configurations, and Parquet."""
    config = config or shape.config
    (path / config).mkdir(parents=True)
    card = (
        f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: train\n    path: {config}/train-*\n"
        f"  - split: test\n    path: {config}/test-*\n---\n"
    )
    (path / "README.md").write_text(card)
    columns = {shape.question: [q for q, _ in rows], shape.answer: [a for _, a in rows], "source": ["x"] * len(rows)}
    for split in ("train", "test"):
        pyarrow.parquet.write_table(pyarrow.table(columns), path / config / f"{split}-00000-of-00001.parquet")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory to be in, with no network and a cache of its own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", [Gsm8kPlan, MathHardPlan])
def test_generated_pools_are_the_same_on_every_node(kind: type[MathPlan]) -> None:
    plan, again = make_plan(kind), make_plan(kind)
    first = take(plan, 16, StageId("a", 3, 0))
    assert first == take(again, 16, StageId("b", 3, 0))
    assert len({question.reference for question in first}) == 16
    assert {q.reference for q in first}.isdisjoint({q.reference for q in take(plan, 16, StageId("a", 4, 0))})
    assert take(plan, 40, StageId("a", 3, 0))[16:32] == first


@pytest.mark.parametrize("kind", [Gsm8kPlan, MathHardPlan])
def test_generated_questions_are_held_out_by_hash(kind: type[MathPlan]) -> None:
    plan = make_plan(kind, questions=64)
    for task in plan.tasks:
        held = [q.entry["question"] for q in plan.hold_out(task, 12)]
        assert len(held) == 12 and held == [q.entry["question"] for q in make_plan(kind).hold_out(task, 12)]
        assert all(split_of(task, " ".join(text.split())) == "held-out" for text in held)
    drawn = take(plan, 64, StageId("a", 0, 0))
    assert all(split_of(q.task, " ".join(str(q.entry["question"]).split())) == "train" for q in drawn)


def test_the_truth_of_each_generated_question_counts_as_right() -> None:
    for kind in (Gsm8kPlan, MathHardPlan):
        plan = make_plan(kind, questions=48)
        for question in take(plan, 48, StageId("a", 0, 0)):
            truth = question.entry["answer"]
            assert plan.score(question, [f"<answer>{truth}</answer>"])[0].accuracy == 1, question


def test_questions_that_are_too_long_are_left_out() -> None:
    plan = make_plan(questions=32, question_characters=220)
    assert max(len(str(q.entry["question"])) for q in take(plan, 32, StageId("a", 0, 0))) <= 220
    with pytest.raises(SwarmError, match="question_characters"):
        take(make_plan(question_characters=20), 1, StageId("a", 0, 0))


def test_rows_of_a_file(file: Path) -> None:
    plan = make_plan(home=file.parent, data="rows.jsonl")
    drawn = take(plan, 16, StageId("a", 0, 0))
    assert {(q.reference.task, q.reference.seed) for q in drawn} == {("gsm8k", 0)}
    for question in drawn:
        text, worked = ROWS[question.reference.index]
        assert (question.entry["question"], question.entry["answer"]) == (text, worked.split("#### ")[1])
    held = plan.hold_out("gsm8k", 50)
    assert len({q.reference.index for q in held}) == 50
    assert not {q.reference.index for q in held} & {
        q.reference.index for r in range(30) for q in take(plan, 16, StageId("a", r, 0))
    }


def test_a_copy_of_the_data_set(offline: Path) -> None:
    save_copy(offline / "copy", GSM8K, ROWS)
    rows = load_question_rows(GSM8K, "copy", offline, "fixed")
    assert len(rows) == 600 and rows[500] == ("What is 500 + 500?", "1,000")


def test_compat_takes_the_hundred_rows_of_upstream(offline: Path) -> None:
    import datasets

    save_copy(offline / "copy", DAPO, [(q, str(n)) for n, (q, _) in enumerate(ROWS)])
    rows = load_question_rows(DAPO, "copy", offline, "compat")
    expected = datasets.Dataset.from_dict({"n": list(range(600))}).shuffle(seed=42).select(range(100))["n"]
    assert [int(answer) for _, answer in rows] == list(expected)
    assert len(load_question_rows(DAPO, "copy", offline, "fixed")) == 600


def test_rows_without_an_answer_are_left_out(tmp_path: Path) -> None:
    lines = [{"question": q, "answer": a.replace("####", "so")} for q, a in ROWS[:3]]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SwarmError, match="####"):
        make_plan(home=tmp_path, data="bad.jsonl")
    assert read_true_answer(GSM8K, "6\n#### 12 #### 13") == "12"
    assert read_true_answer(GSM8K, None) == read_true_answer(DAPO, "  ") == ""


@pytest.mark.parametrize(
    ("options", "named", "fix"),
    [
        ({"reward": "fixed"}, "swarm.options.reward", "rewards"),
        ({"rewards": "exact"}, "swarm.options.rewards", "fixed, compat"),
        ({"students": 0}, "swarm.options.students", "students = 5"),
        ({"students": 16}, "swarm.options.students", "students = 5"),
        ({"questions": 257}, "swarm.options.questions", "questions = 16"),
        ({"questions": "4"}, "swarm.options.questions", "questions = 16"),
        ({"persona": "PIRAT"}, "PIRATE", "persona"),
        ({"brief": 1}, "swarm.options.brief", "brief"),
        ({"data": "missing.jsonl"}, "missing.jsonl", "data directory"),
        ({"data": "~nobody-of-this-name/x.jsonl"}, "swarm.options.data", "Write the path out"),
        ({"data": "x" * 300}, "swarm.options.data", "Write the path out"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, Any], named: str, fix: str) -> None:
    with pytest.raises(SwarmError) as caught:
        make_plan(home=tmp_path, **options)
    assert named in caught.value.message and fix in caught.value.fix


@pytest.mark.parametrize(
    ("task", "named"),
    [
        (TaskConfig("gsm_symbolik"), "gsm_symbolic"),
        (TaskConfig("propositional_logic"), "several right answers"),
        (TaskConfig("chain_sum", curriculum=True), "curriculum"),
    ],
)
def test_tasks_that_cannot_be_trained_in_stages(task: TaskConfig, named: str) -> None:
    with pytest.raises(SwarmError) as caught:
        make_plan(tasks=(task,))
    assert named in str(caught.value)


def test_tasks_and_rows_exclude_each_other(file: Path) -> None:
    with pytest.raises(SwarmError, match=r"swarm\.tasks"):
        make_plan(home=file.parent, data=file.name, tasks=(TaskConfig("gcd"),))
