"""What stands in a column of texts is trained on letter by letter, in any format, or refused with row and cell."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.errors import SwarmError
from swarmd.swarms.file import keep_dataset
from swarmd.swarms.jsonl import load_rows
from swarmd.swarms.options import Columns, DatasetSource
from swarmd.swarms.tables import read_table

WRITTEN = ["18", "3.5", "007", "1e3", "1,000", "NA", "null", "True", " x ", "3.50", "-0", "None"]


@pytest.fixture(autouse=True)
def cached_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def kept(home: Path, name: str, **source: Any) -> tuple[dict[str, Any], ...]:
    keep_dataset(home, "q.jsonl", DatasetSource(name, **source))
    return load_rows(home, "q.jsonl")[0]


def write_separated(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix in (".csv", ".tsv"):
        write_separated(path, rows)
    elif path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.json", "a.jsonl", "a.parquet", "d/a.csv", "d/a.jsonl"])
def test_texts_stay_as_they_are_written(tmp_path: Path, name: str) -> None:
    rows = [{"prompt": f"{n}?", "answer": text} for n, text in enumerate(WRITTEN)]
    save(tmp_path / name, rows)
    assert kept(tmp_path, name.partition("/a.")[0] if "/" in name else name) == tuple(rows)


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
    ("cells", "told"),
    [
        (
            [3.5, 18.0],
            r"row 2: the column 'answer' is 18\.0, in a column of numbers with fractions: whether 18",
        ),
        ([{"a": 1}, {"a": 2}], "row 1: the column 'answer' is no text"),
        (["", "x"], "row 1: the column 'answer' is blank"),
    ],
)
def test_what_cannot_be_kept_is_named_by_row_and_cell(tmp_path: Path, cells: list[Any], told: str) -> None:
    save(tmp_path / "a.parquet", [{"prompt": f"{n}?", "answer": cell} for n, cell in enumerate(cells)])
    with pytest.raises(SwarmError, match=told):
        kept(tmp_path, "a.parquet")


def test_jsons_numbers_in_a_directory_are_refused_where_their_spelling_is_lost(tmp_path: Path) -> None:
    save(tmp_path / "d" / "a.jsonl", [{"prompt": "1?", "answer": 18}, {"prompt": "2?", "answer": 3.5}])
    with pytest.raises(SwarmError, match=r"row 1: the column 'answer' is 18\.0"):
        kept(tmp_path, "d")


def test_a_class_has_its_name_and_a_short_float_its_digits(tmp_path: Path) -> None:
    features = datasets.Features(
        {"prompt": datasets.Value("string"), "answer": datasets.ClassLabel(names=["cat", "dog"])}
    )
    datasets.Dataset.from_dict({"prompt": ["a?", "b?"], "answer": [1, 0]}, features=features).save_to_disk(
        tmp_path / "labels"
    )
    assert [row["answer"] for row in kept(tmp_path, "labels")] == ["dog", "cat"]
    (tmp_path / "q.jsonl").unlink()
    features = datasets.Features({"prompt": datasets.Value("string"), "answer": datasets.Value("float32")})
    datasets.Dataset.from_dict({"prompt": ["a?", "b?"], "answer": [0.1, 2.3]}, features=features).save_to_disk(
        tmp_path / "floats"
    )
    assert [row["answer"] for row in kept(tmp_path, "floats")] == ["0.1", "2.3"]


@pytest.mark.parametrize(
    ("name", "body", "told"),
    [
        (
            "a.csv",
            b"prompt,answer\n1?,2\n3?,1,000\n",
            r"a\.csv, row 2, which ends in line 3: 3 cells, and the header",
        ),
        ("a.csv", b'prompt,answer\n1?,2\n"3?,4\n', "a.csv, row 2"),
        ("a.csv", b"prompt,prompt\n1?,2\n", "two columns of one name"),
        ("a.csv", b"prompt,answer\n1?,\xe9\n", "not UTF-8"),
        ("a.csv", b"prompt;answer\n1?;2\n", "its cells are parted by ';', not by ','"),
        ("a.tsv", b"prompt,answer\n1?,2\n", r"its cells are parted by ',', not by '\\t'"),
        ("a.csv", b'prompt,answer\n"1?", "2"\n', "row 1, .*blanks before its quotes"),
        ("a.csv", b"", "is empty"),
        ("a.csv", "prompt,answer\n1?,2\n".encode("utf-16"), "is text in UTF-16"),
        ("a.csv", "prompt,answer\n1?,2\n".encode("utf-16-le"), "is no text"),
        ("a.csv", b"PAR1\0\0", "is no text"),
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
        ("a.jsonl", b"<!DOCTYPE html><html></html>", "is a web page"),
        ("a.json", b'{"prompt": ["1?"], "answer": ["2"]}', r"row 1: the column 'prompt' is no text: list \['1\?'\]"),
        ("a.csv", b"prompt, answer\n1?,2\n", "has no column 'answer'; it has: 'prompt', ' answer'"),
        ("a.jsonl", b'{"prompt": "1?", "answer": 1}\n{"prompt": 2', "line 2: no JSON"),
        ("a.json", b'[{"prompt": "1?"}, 3]', "no list of objects"),
        ("a.json", b"3", "line 1: no JSON"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_told_with_the_row(
    tmp_path: Path, name: str, body: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(body)
    with pytest.raises(SwarmError, match=told):
        kept(tmp_path, name)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfprompt,answer\r\n1?,2\r\n")
    assert kept(tmp_path, "a.csv") == ({"prompt": "1?", "answer": "2"},)


def test_a_suffix_may_be_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.CSV").write_bytes(b"prompt,answer\n1?,02\n")
    assert kept(tmp_path, "A.CSV") == ({"prompt": "1?", "answer": "02"},)


def test_a_split_is_taken_of_a_single_file(tmp_path: Path) -> None:
    save(tmp_path / "a.tsv", [{"prompt": f"{n}?", "answer": f"0{n}"} for n in range(9)])
    rows = kept(tmp_path, "a.tsv", split="train[2:4]+train[-1:]", columns=Columns("prompt", "answer"))
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
    assert read_table(path, ("prompt", "answer"))["answer"] == cells


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), CELLS), min_size=1, max_size=5))
def test_other_cells_of_csv_can_be_told_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, cells: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("cells") / "a.csv"
    save(path, [{"prompt": "a", "more": str(cell)} for cell in cells])
    assert [str(cell) for cell in read_table(path, ("prompt",))["more"]] == [str(cell) for cell in cells]
