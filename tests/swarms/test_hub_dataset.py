"""What is downloaded of a data set on the Hub is known and bounded beforehand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from swarmd.errors import DatasetRefused
from swarmd.swarms import file as dataset
from swarmd.swarms.file import check_size, load_from_hub, split_addresses
from swarmd.swarms.options import DatasetSource
from tests.hub_double import COMMIT, HubDouble

HOME = f"hf://datasets/org/sums@{COMMIT}"
BOUND = 2000
ROWS = 6
CARD = "---\nconfigs:\n- config_name: default\n  data_files: {}\ndataset_info:\n  {}\n---\n"


def lines(rows: int = ROWS) -> bytes:
    """A file of questions."""
    return b"".join(json.dumps({"prompt": f"{n} + 1?", "answer": str(n + 1)}).encode() + b"\n" for n in range(rows))


def test_a_client_of_the_hub_downloads_what_is_within_the_bound_and_nothing_else(tmp_path: Path) -> None:
    small = lines()
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
    assert told.pop("org/small") == f"{ROWS} rows"
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
        check_size(Builder(files), "org/sums", 100)


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
        split_addresses("org/sums", [f"{HOME}/train.jsonl", file])


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
    assert sum(dataset.measure_files("org/sums", files[:1200])) == 1200 * 7
    assert [len(each[1]) for each in asked] == [500, 500, 200], "in parts that the Hub takes"
    assert asked[0][0] == "org/sums" and asked[0][2] == {"revision": COMMIT, "repo_type": "dataset"}
    with pytest.raises(DatasetRefused, match=r"does not say how large its file data/1501\.parquet is"):
        list(dataset.measure_files("org/sums", files))


@pytest.mark.parametrize("place", ["cache_dir", "base_path"])
def test_what_is_on_this_machine_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Without a network nobody could say how large it is, and nothing is downloaded."""
    built = Builder(None)
    setattr(built, place, str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *names, **settings: built)
    assert load_from_hub(DatasetSource("org/sums", split="train[:5]", download_bytes=1)) == "the split train[:5]"
    assert built.prepared == 1
