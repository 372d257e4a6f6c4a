"""Files of questions made from data sets: texts stay letter by letter, what does not fit is refused by row and cell.

What is downloaded from the Hub is known and bounded beforehand.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import DatasetRefused, SwarmError
from swarmd.swarms import dataset, jsonl
from swarmd.swarms.dataset import (
    check_download_size,
    is_hub_id,
    load_from_hub,
    read_table_columns,
    split_hub_addresses,
    write_questions_file,
)
from swarmd.swarms.file import FilePlan
from swarmd.swarms.jsonl import load_rows
from swarmd.swarms.options import DatasetColumns, DatasetSource
from tests.hub_double import COMMIT, HubDouble

WRITTEN = ["18", "3.5", "007", "1e3", "1,000", "NA", "null", "True", " x ", "3.50", "-0", "None"]
TABLE: list[dict[str, Any]] = [
    {"question": f"{n} + 1?", "solution": n + 1, "topic": "even" if n % 2 else "odd", "hard": n / 2, "raw": b"1"}
    for n in range(20)
]
COLUMNS = DatasetColumns("question", "solution", "topic")


@pytest.fixture(autouse=True)
def cached_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def kept(home: Path, name: str, **source: Any) -> tuple[dict[str, Any], ...]:
    """The rows of the file of questions that a data set gives."""
    write_questions_file(home, "q.jsonl", DatasetSource(name, **source))
    return load_rows(home, "q.jsonl")[0]


def save(path: Path, rows: list[dict[str, Any]] = TABLE) -> str:
    """Write rows in the form that the name says, "disk" for `save_to_disk`. Returns the name of the data set."""
    path.parent.mkdir(exist_ok=True)
    if path.name == "disk":
        datasets.Dataset.from_list(rows).save_to_disk(path)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return "d" if path.parent.name == "d" else path.name


def answers(cells: list[Any]) -> list[dict[str, Any]]:
    """A row for each cell of the column of answers."""
    return [{"prompt": f"{n}?", "answer": cell} for n, cell in enumerate(cells)]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.json", "a.jsonl", "a.parquet", "d/a.csv", "d/a.jsonl"])
def test_texts_stay_as_they_are_written(tmp_path: Path, name: str) -> None:
    assert kept(tmp_path, save(tmp_path / name, answers(WRITTEN))) == tuple(answers(WRITTEN))


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_numbers_in_json_stay_as_they_are_written(tmp_path: Path, suffix: str) -> None:
    cells = ["18", "3.5", "3.50", "1e3", "true", '"007"', "-0.0", "12345678901234567890123"]
    rows = [f'{{"prompt": "{n}?", "answer": {cell}}}' for n, cell in enumerate(cells)]
    (tmp_path / f"a{suffix}").write_text("\n".join(rows) if suffix == ".jsonl" else f"[{','.join(rows)}]")
    assert [row["answer"] for row in kept(tmp_path, f"a{suffix}")] == [cell.strip('"') for cell in cells]


def test_other_columns_of_csv_are_numbers_only_if_all_of_them_stay_as_they_are_written(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a?", "answer": "1", "whole": "18", "part": "3.5", "mixed": "18", "code": "007", "right": "True"},
        {"prompt": "b?", "answer": "2", "whole": "", "part": "0.25", "mixed": "3.5", "code": "12", "right": "False"},
    ]
    save(tmp_path / "a.csv", rows)
    one, other = kept(tmp_path, "a.csv")
    assert (one["whole"], one["part"], one["right"]) == (18, 3.5, True)
    assert (other["whole"], other["part"], other["right"]) == (None, 0.25, False)
    assert [row["mixed"] for row in (one, other)] == ["18", "3.5"]
    assert [row["code"] for row in (one, other)] == ["007", "12"]


@pytest.mark.parametrize(
    ("name", "cells", "told"),
    [
        ("a.parquet", [3.5, 18.0], r"row 2: .* 'answer' is 18\.0, in a column of numbers with fractions: whether 18"),
        ("d/a.jsonl", [18, 3.5], r"row 1: the column 'answer' is 18\.0"),
        ("a.parquet", [{"a": 1}, {"a": 2}], "row 1: the column 'answer' is not a text"),
        ("a.parquet", ["", "x"], "row 1: the column 'answer' is blank"),
        ("disk", [1.5, float("nan")], "row 2: the column 'answer' is empty"),  # as pandas writes a missing number
    ],
)
def test_what_cannot_be_kept_is_named_by_row_and_cell(tmp_path: Path, name: str, cells: list[Any], told: str) -> None:
    with pytest.raises(SwarmError, match=told):
        kept(tmp_path, save(tmp_path / name, answers(cells)))


@pytest.mark.parametrize(
    ("feature", "cells", "spelt"),
    [
        (datasets.ClassLabel(names=["cat", "dog"]), [1, 0], ["dog", "cat"]),
        (datasets.Value("float32"), [0.1, 2.3], ["0.1", "2.3"]),
    ],
)
def test_a_class_has_its_name_and_a_short_float_its_digits(
    tmp_path: Path, feature: Any, cells: list[Any], spelt: list[str]
) -> None:
    features = datasets.Features({"prompt": datasets.Value("string"), "answer": feature})
    given = datasets.Dataset.from_dict({"prompt": ["a?", "b?"], "answer": cells}, features=features)
    given.save_to_disk(tmp_path / "disk")
    assert [row["answer"] for row in kept(tmp_path, "disk")] == spelt


@pytest.mark.parametrize(
    ("name", "body", "told"),
    [
        (
            "a.csv",
            b"prompt,answer\n1?,2\n3?,1,000\n",
            r"a\.csv, row 2, which ends in line 3: 3 cells, and the header",
        ),
        ("a.csv", b'prompt,answer\n1?,2\n"3?,4\n', "a.csv, row 2"),
        ("a.csv", b"prompt,prompt\n1?,2\n", "two columns with the same name"),
        ("a.csv", b"prompt,answer\n1?,\xe9\n", "not UTF-8"),
        ("a.csv", b"prompt;answer\n1?;2\n", "its cells are separated by ';', not by ','"),
        ("a.tsv", b"prompt,answer\n1?,2\n", r"its cells are separated by ',', not by '\\t'"),
        ("a.csv", b'prompt,answer\n"1?", "2"\n', "row 1, .*blanks before its quotes"),
        ("a.csv", b"", "is empty"),
        ("a.csv", "prompt,answer\n1?,2\n".encode("utf-16"), "is text in UTF-16"),
        ("a.csv", "prompt,answer\n1?,2\n".encode("utf-16-le"), "is not a text"),
        ("a.csv", b"PAR1\0\0", "is not a text"),
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
        ("a.jsonl", b"<!DOCTYPE html><html></html>", "is a web page"),
        ("a.json", b'{"prompt": ["1?"], "answer": ["2"]}', r"row 1: the column 'prompt' is not a text: list \['1\?'\]"),
        ("a.csv", b"prompt, answer\n1?,2\n", "has no column 'answer'; it has: 'prompt', ' answer'"),
        ("a.jsonl", b'{"prompt": "1?", "answer": 1}\n{"prompt": 2', "line 2: not JSON"),
        ("a.json", b'[{"prompt": "1?"}, 3]', "not a list of objects"),
        ("a.json", b"3", "line 1: not JSON"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_told_with_the_row(
    tmp_path: Path, name: str, body: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(body)
    with pytest.raises(SwarmError, match=told):
        kept(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "body"),
    [("a.csv", b"\xef\xbb\xbfprompt,answer\r\n1?,02\r\n"), ("A.CSV", b"prompt,answer\n1?,02\n")],
)
def test_a_mark_of_the_byte_order_and_capitals_in_the_suffix_are_taken(tmp_path: Path, name: str, body: bytes) -> None:
    (tmp_path / name).write_bytes(body)
    assert kept(tmp_path, name) == ({"prompt": "1?", "answer": "02"},)


def test_a_split_is_taken_of_a_single_file(tmp_path: Path) -> None:
    name = save(tmp_path / "a.tsv", answers([f"0{n}" for n in range(9)]))
    rows = kept(tmp_path, name, split="train[2:4]+train[-1:]", columns=DatasetColumns("prompt", "answer"))
    assert [row["answer"] for row in rows] == ["02", "03", "08"]


def test_the_cause_of_an_error_of_datasets_is_told(tmp_path: Path) -> None:
    save(tmp_path / "d" / "a.jsonl", [{"prompt": "1?", "answer": "x"}])
    (tmp_path / "d" / "b.jsonl").write_bytes(b'{"prompt": "1?", "answer": "x"}\n{"prompt": "2?", "ans')
    with pytest.raises(SwarmError, match=r"cannot be loaded: DatasetGenerationError: .*, because of \w+: .*"):
        kept(tmp_path, "d")


CELLS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\n\0"), min_size=1, max_size=12)


@given(st.lists(CELLS, min_size=1, max_size=6), st.sampled_from([".csv", ".tsv", ".jsonl", ".json"]))
def test_every_text_comes_out_of_a_file_as_it_went_in(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], suffix: str
) -> None:
    path = tmp_path_factory.mktemp("texts") / f"a{suffix}"
    save(path, [{"prompt": "a", "answer": cell} for cell in cells])
    assert read_table_columns(path, ("prompt", "answer"))["answer"] == cells


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), CELLS), min_size=1, max_size=5))
def test_other_cells_of_csv_can_be_told_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, cells: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("cells") / "a.csv"
    save(path, [{"prompt": "a", "more": str(cell)} for cell in cells])
    assert [str(cell) for cell in read_table_columns(path, ("prompt",))["more"]] == [str(cell) for cell in cells]


@pytest.mark.parametrize("name", ["d/a.parquet", "disk", "a.parquet"])
def test_every_form_on_disk_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    assert kept(tmp_path, save(tmp_path / name), columns=COLUMNS) == tuple(
        {"prompt": row["question"], "answer": str(row["solution"]), "task": row["topic"], "hard": row["hard"]}
        for row in TABLE
    )


def test_a_hub_name_is_asked_with_subset_split_and_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DatasetSource] = []

    def load(source: DatasetSource) -> datasets.Dataset:
        asked.append(source)
        return datasets.Dataset.from_list(TABLE)

    monkeypatch.setattr(dataset, "load_from_hub", load)
    source = DatasetSource("org/sums", "main", "train[:20]", "v1", COLUMNS, download_bytes=7)
    write_questions_file(tmp_path, "q.jsonl", source)
    write_questions_file(tmp_path, "q.jsonl", source)
    assert asked == [source], "it is loaded once"


def plan_from(home: Path, **options: Any) -> FilePlan:
    config = SwarmConfig("s", kind="file", options={"data": "q.jsonl", **options})
    return FilePlan(config, TrainingConfig(), home)


def test_a_plan_makes_its_file_and_two_nodes_have_the_same_questions(tmp_path: Path) -> None:
    name = save(tmp_path / "d" / "a.parquet")
    columns = {"prompt": "question", "answer": "solution"}
    homes = [tmp_path / node for node in "ab"]
    plans = [plan_from(home, dataset=str(tmp_path / name), columns=columns, split="train[:15]") for home in homes]
    assert plans[0]._digest == plans[1]._digest
    assert (homes[0] / "q.jsonl").read_bytes() == (homes[1] / "q.jsonl").read_bytes()
    assert (homes[0] / "q.jsonl").read_text().count("\n") == 15
    with pytest.raises(SwarmError, match="is not the swarm's"):
        plan_from(tmp_path / "c", dataset=str(tmp_path / name), columns=columns, digest="0" * 64)
    assert not (tmp_path / "c").exists(), "what is another is not kept"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"columns": DatasetColumns("question", "answer")}, "has no column 'answer'; it has: 'question', 'solution'"),
        ({"columns": COLUMNS, "keep": ("harder",)}, "has no column 'harder'"),
        ({"columns": DatasetColumns("question", "raw")}, "'raw' is not a text"),
        ({"columns": COLUMNS, "split": "test"}, 'Unknown split "test"'),
        ({"name": "../x y"}, "and the Hub has no such names"),
        ({"name": "~nobody-of-this-name/x"}, "cannot be loaded: RuntimeError"),
        ({"name": "d/b.txt"}, "b.txt does not end in one of .jsonl"),
        ({"name": "d/none.csv"}, "there is no "),
        ({"revision": "main"}, "swarm.options.revision is for data sets on the Hub"),
        ({"name": "d/b.txt", "subset": "main"}, "swarm.options.subset is for data sets on the Hub"),
    ],
)
def test_what_does_not_fit_is_told_and_nothing_kept(tmp_path: Path, source: dict[str, Any], complaint: str) -> None:
    name = save(tmp_path / "d" / "a.parquet")
    (tmp_path / "d" / "b.txt").touch()
    with pytest.raises(SwarmError) as caught:
        kept(tmp_path, **{"name": name, **source})
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
    name = save(tmp_path / "disk")
    with pytest.raises(SwarmError, match=complaint) as caught:
        kept(tmp_path, name, columns=COLUMNS)
    assert "train[:10000]" in caught.value.fix
    assert not list(tmp_path.glob("*q.jsonl*"))


def test_no_more_rows_are_read_than_the_file_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a gigabyte on the Hub may be more than memory holds."""
    monkeypatch.setattr(jsonl, "FILE_BYTES_MAX", 500)
    read: list[Any] = []

    def count(cell: Any, where: str) -> Any:
        read.append(cell)
        return cell

    monkeypatch.setattr(dataset, "_extract_question", count)
    with pytest.raises(SwarmError, match="beyond the limits at row"):
        kept(tmp_path, save(tmp_path / "disk"), columns=COLUMNS)
    assert len(read) < 12


def test_the_users_one_message_is_the_question_and_more_are_refused(tmp_path: Path) -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "1?"}
    save(tmp_path / "disk", [{"prompt": [user], "answer": "1"}])
    assert kept(tmp_path, "disk") == ({"prompt": "1?", "answer": "1"},)
    save(tmp_path / "d" / "a.parquet", [{"prompt": [system, user], "answer": "1"}])
    with pytest.raises(SwarmError, match="more than one message") as caught:
        write_questions_file(tmp_path, "b.jsonl", DatasetSource("d"))
    assert "swarm.options.system" in caught.value.fix


@pytest.mark.parametrize("name", ["../x", "/etc", "a/../b", "a/b/c", "~x", ".x", "", "a b", "a/.."])
def test_what_could_lead_elsewhere_is_no_name_of_the_hub(name: str) -> None:
    assert not is_hub_id(name)
    assert is_hub_id("openai/gsm8k") and is_hub_id("squad")


HOME = f"hf://datasets/org/sums@{COMMIT}"
BOUND = 2000
CARD = "---\nconfigs:\n- config_name: default\n  data_files: {}\ndataset_info:\n  {}\n---\n"


def test_a_client_of_the_hub_downloads_what_is_within_the_bound_and_nothing_else(tmp_path: Path) -> None:
    small = "".join(json.dumps(row) + "\n" for row in answers(list("abcdef"))).encode()
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(small)
    hub = HubDouble(
        {
            "org/small": {"train.jsonl": small},
            "org/large": {"train.jsonl": small, "test.jsonl": small},
            "org/boasting": {
                "README.md": CARD.format("train.jsonl", "download_size: 5000").encode(),
                "train.jsonl": small,
            },
            "org/lying": {"README.md": CARD.format("train.jsonl", "download_size: 10").encode(), "train.jsonl": small},
            "org/elsewhere": {"README.md": CARD.format(secret, "download_size: 10").encode(), "a.jsonl": small},
            "org/packed": {"train.jsonl.gz": b"\x1f\x8b" + b"0" * 20},
        }
    )
    hub.claimed = {"org/large/test.jsonl": 10**13, "org/lying/train.jsonl": 10**12}
    try:
        told = ask(hub, tmp_path)
    finally:
        hub.close()
    assert told.pop("org/small") == "6 rows"
    assert "org/elsewhere cannot be loaded: ValueError: Data files don't belong to org/elsewhere" in told.pop(
        "org/elsewhere"
    )
    assert all(each.startswith("DatasetRefused: ") and "--download-bytes" in each for each in told.values()), "\n".join(
        told.values()
    )
    assert f"org/large has {10**13 + len(small):,} bytes" in told["org/large"] and f"{BOUND:,}" in told["org/large"]
    assert "by its own card, 5,000 bytes" in told["org/boasting"]
    assert f"org/lying has {10**12:,} bytes" in told["org/lying"]
    assert "has packed files, such as train.jsonl.gz" in told["org/packed"]
    assert [file for file in hub.fetched if not file.endswith("README.md")] == ["org/small/train.jsonl"]


def ask(hub: HubDouble, home: Path) -> dict[str, str]:
    """Load all of the Hub's data sets in a process of its own: the libraries read their settings when imported."""
    command = [sys.executable, "-m", "tests.swarms.dataset_loading", str(home), str(BOUND), *hub.datasets]
    settings = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home / "hub"), "NO_PROXY": "127.0.0.1"}
    settings |= {"HF_HUB_DISABLE_XET": "1", "PATH": "/usr/bin:/bin", "HOME": str(home)}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, env=settings, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return told


class Builder:
    """As `datasets.load_dataset_builder` gives one."""

    def __init__(
        self, files: dict[str, list[str]] | None, claimed: int | None = None, cache_dir: str = "/nowhere"
    ) -> None:
        self.config = SimpleNamespace(data_files=files)
        self.info = SimpleNamespace(download_size=None, dataset_size=claimed)
        self.cache_dir = cache_dir
        self.base_path = HOME
        self.prepared = 0

    def download_and_prepare(self) -> None:
        self.prepared += 1

    def as_dataset(self, split: str) -> str:
        return f"the split {split}"


@pytest.mark.parametrize("files", [None, {}, {"train": []}, {"train": [f"{HOME}/{n}" for n in range(4097)]}])
def test_files_that_cannot_be_counted_or_are_too_many_are_refused(files: dict[str, list[str]] | None) -> None:
    with pytest.raises(DatasetRefused, match="files that can be counted, and between 1 and 4096 are taken"):
        check_download_size(Builder(files), "org/sums", 100)


@pytest.mark.parametrize(
    "file",
    [
        "/etc/passwd",
        "https://elsewhere.example/a.jsonl",
        f"hf://datasets/org/other@{COMMIT}/a.jsonl",
        f"zip://a.jsonl::{HOME}/b.bin",
        f"{HOME}/a.jsonl::{HOME}/b.bin",
        f"{HOME}",
    ],
)
def test_files_that_are_not_the_data_sets_own_are_refused(file: str) -> None:
    with pytest.raises(DatasetRefused, match="has files from elsewhere, or in archives"):
        split_hub_addresses("org/sums", [f"{HOME}/train.jsonl", file])


def test_a_file_whose_size_the_hub_does_not_tell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    asked: list[tuple[Any, ...]] = []

    def tell(self: HfApi, *names: Any, **settings: Any) -> list[RepoFile]:
        asked.append((*names, settings))
        make: Any = RepoFile
        return [make(path=path, size=7, oid="0") for path in names[1] if path != "data/1501.parquet"]

    monkeypatch.setattr(HfApi, "get_paths_info", tell)
    files = [f"{HOME}/data/{n}.parquet" for n in range(1600)]
    assert sum(dataset.iter_file_sizes("org/sums", files[:1200])) == 1200 * 7
    assert [len(each[1]) for each in asked] == [500, 500, 200], "in parts that the Hub takes"
    assert asked[0][0] == "org/sums" and asked[0][2] == {"revision": COMMIT, "repo_type": "dataset"}
    with pytest.raises(DatasetRefused, match=r"does not say how large its file data/1501\.parquet is"):
        list(dataset.iter_file_sizes("org/sums", files))


@pytest.mark.parametrize("place", ["cache_dir", "base_path"])
def test_what_is_on_this_machine_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Without a network nobody could say how large it is, and nothing is downloaded."""
    built = Builder(None)
    setattr(built, place, str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *names, **settings: built)
    assert load_from_hub(DatasetSource("org/sums", split="train[:5]", download_bytes=1)) == "the split train[:5]"
    assert built.prepared == 1
