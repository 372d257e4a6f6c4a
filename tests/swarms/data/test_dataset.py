"""A file of questions made of a data set: mapped, bounded, kept once, the same on every node."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import SwarmError
from swarmd.swarms import file as dataset
from swarmd.swarms import jsonl
from swarmd.swarms.file import Columns, DatasetSource, FilePlan, is_hub_id, keep_dataset
from swarmd.swarms.jsonl import load_rows

ROWS: list[dict[str, Any]] = [
    {"question": f"{n} + 1?", "solution": n + 1, "topic": "even" if n % 2 else "odd", "hard": n / 2, "raw": b"1"}
    for n in range(20)
]
COLUMNS = Columns("question", "solution", "topic")


@pytest.fixture(autouse=True)
def cached_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def made(rows: list[dict[str, Any]] = ROWS) -> datasets.Dataset:
    return datasets.Dataset.from_list(rows)


def save(home: Path, form: str) -> str:
    """A copy of the data set in one of the forms that `datasets` reads; returns its name."""
    (home / "copy").mkdir()
    if form == "directory":
        made().to_parquet(home / "copy" / "train.parquet")
        return "copy"
    if form == "disk":
        made().save_to_disk(home / "copy")
        return "copy"
    if form == "jsonl":
        lines = [json.dumps({key: value for key, value in row.items() if key != "raw"}) for row in ROWS]
        (home / "copy" / "a.jsonl").write_text("\n".join(lines))
        return "copy/a.jsonl"
    made().to_parquet(home / "copy" / "a.parquet")
    return "copy/a.parquet"


@pytest.mark.parametrize("form", ["directory", "disk", "jsonl", "parquet"])
def test_every_form_on_disk_gives_the_same_rows(tmp_path: Path, form: str) -> None:
    keep_dataset(tmp_path, "q.jsonl", DatasetSource(save(tmp_path, form), columns=COLUMNS))
    rows, _ = load_rows(tmp_path, "q.jsonl")
    assert rows == tuple(
        {"prompt": row["question"], "answer": str(row["solution"]), "task": row["topic"], "hard": row["hard"]}
        for row in ROWS
    )


def test_a_hub_name_is_asked_with_subset_split_and_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load(*named: Any) -> datasets.Dataset:
        asked.append(named)
        return made()

    monkeypatch.setattr(dataset, "load_from_hub", load)
    source = DatasetSource("org/sums", "main", "train[:20]", "v1", COLUMNS, download_bytes=7)
    keep_dataset(tmp_path, "q.jsonl", source)
    keep_dataset(tmp_path, "q.jsonl", source)
    assert asked == [("org/sums", "main", "train[:20]", "v1", 7)], "it is loaded once"


def plan_of(home: Path, **options: Any) -> FilePlan:
    config = SwarmConfig("s", kind="file", options={"data": "q.jsonl", **options})
    return FilePlan(config, TrainingConfig(), home)


def test_a_plan_makes_its_file_and_two_nodes_have_the_same_questions(tmp_path: Path) -> None:
    name = save(tmp_path, "directory")
    columns = {"prompt": "question", "answer": "solution"}
    homes = [tmp_path / node for node in "ab"]
    plans = [plan_of(home, dataset=str(tmp_path / name), columns=columns, split="train[:15]") for home in homes]
    assert plans[0]._digest == plans[1]._digest
    assert (homes[0] / "q.jsonl").read_bytes() == (homes[1] / "q.jsonl").read_bytes()
    assert (homes[0] / "q.jsonl").read_text().count("\n") == 15
    with pytest.raises(SwarmError, match="is not the swarm's"):
        plan_of(tmp_path / "c", dataset=str(tmp_path / name), columns=columns, digest="0" * 64)
    assert not (tmp_path / "c").exists(), "what is another is not kept"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"columns": Columns("question", "answer")}, "has no column 'answer'; it has: question, solution"),
        ({"columns": COLUMNS, "keep": ("harder",)}, "has no column 'harder'"),
        ({"columns": Columns("question", "raw")}, "'raw' is no text"),
        ({"columns": COLUMNS, "split": "test"}, 'Unknown split "test"'),
        ({"dataset": "../x y"}, "and the Hub has no such names"),
        ({"dataset": "~nobody-of-this-name/x"}, "cannot be loaded: RuntimeError"),
        ({"dataset": "copy/b.txt"}, "b.txt is none of .jsonl"),
    ],
)
def test_what_does_not_fit_is_told_and_nothing_kept(tmp_path: Path, source: dict[str, Any], complaint: str) -> None:
    name = save(tmp_path, "directory")
    (tmp_path / "copy" / "b.txt").touch()
    with pytest.raises(SwarmError) as caught:
        keep_dataset(tmp_path, "q.jsonl", DatasetSource(**{"dataset": name, **source}))
    assert complaint in caught.value.message
    assert not list(tmp_path.glob("*q.jsonl*"))


@pytest.mark.parametrize(
    ("bound", "limit", "complaint"),
    [
        ("ROWS_MAX", 19, "has 20 rows, the limit is 19"),
        ("FILE_BYTES_MAX", 500, "beyond the limits at row"),
        ("LINE_BYTES_MAX", 30, "beyond the limits at row 1"),
    ],
)
def test_the_bounds_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, limit: int, complaint: str
) -> None:
    monkeypatch.setattr(jsonl, bound, limit)
    name = save(tmp_path, "disk")
    with pytest.raises(SwarmError, match=complaint) as caught:
        keep_dataset(tmp_path, "q.jsonl", DatasetSource(name, columns=COLUMNS))
    assert "train[:10000]" in caught.value.fix
    assert not list(tmp_path.glob("*q.jsonl*"))


def test_no_more_rows_are_read_than_the_file_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a gigabyte on the Hub may be more than memory holds."""
    monkeypatch.setattr(jsonl, "FILE_BYTES_MAX", 500)
    read: list[Any] = []

    def count(cell: Any, where: str) -> Any:
        read.append(cell)
        return cell

    monkeypatch.setattr(dataset, "_question", count)
    with pytest.raises(SwarmError, match="beyond the limits at row"):
        keep_dataset(tmp_path, "q.jsonl", DatasetSource(save(tmp_path, "disk"), columns=COLUMNS))
    assert len(read) < 12


def conversation(*messages: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


def test_the_users_one_message_is_the_question_and_more_are_refused(tmp_path: Path) -> None:
    made([{"prompt": conversation(("user", "1?")), "answer": "1"}]).save_to_disk(tmp_path / "a")
    keep_dataset(tmp_path, "a.jsonl", DatasetSource("a"))
    assert load_rows(tmp_path, "a.jsonl")[0] == ({"prompt": "1?", "answer": "1"},)
    made([{"prompt": conversation(("system", "Be brief."), ("user", "1?")), "answer": "1"}]).save_to_disk(
        tmp_path / "b"
    )
    with pytest.raises(SwarmError, match="more than one message") as caught:
        keep_dataset(tmp_path, "b.jsonl", DatasetSource("b"))
    assert "swarm.options.system" in caught.value.fix


def test_an_answer_that_is_no_number_is_none(tmp_path: Path) -> None:
    """As pandas writes a column of numbers of which some are missing."""
    made([{"prompt": "1?", "answer": 1.5}, {"prompt": "2?", "answer": float("nan")}]).save_to_disk(tmp_path / "a")
    with pytest.raises(SwarmError, match="row 2: the column 'answer' is empty"):
        keep_dataset(tmp_path, "a.jsonl", DatasetSource("a"))


@pytest.mark.parametrize("name", ["../x", "/etc", "a/../b", "a/b/c", "~x", ".x", "", "a b", "a/.."])
def test_what_could_lead_elsewhere_is_no_name_of_the_hub(name: str) -> None:
    assert not is_hub_id(name)
    assert is_hub_id("openai/gsm8k") and is_hub_id("squad")
