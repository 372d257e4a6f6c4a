"""What a node may come to use, against what is free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from swarmd.config import StorageConfig
from swarmd.doctor.machine import disk
from swarmd.paths import NodeDirectory

STORAGE = StorageConfig()
BOUNDS = STORAGE.log_bytes_max + STORAGE.blob_bytes_max
THERE = 3 * disk.MIB


@pytest.mark.parametrize(
    ("free", "found"),
    [
        (BOUNDS + STORAGE.free_bytes_min - THERE, []),
        (BOUNDS + STORAGE.free_bytes_min - THERE - 1, ["disk.budget"]),
        (STORAGE.free_bytes_min, ["disk.budget"]),
        (STORAGE.free_bytes_min - 1, ["disk.full"]),
    ],
)
def test_what_the_node_has_already_is_not_asked_for_again(
    free: int, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = NodeDirectory(tmp_path)
    data.events.mkdir(parents=True)
    data.blobs.mkdir(parents=True)
    (data.blobs / "there").write_bytes(bytes(THERE))
    monkeypatch.setattr(disk, "free_bytes", lambda place: free)
    monkeypatch.setattr(disk, "_size_of", lambda path: path.stat().st_size if path.is_file() else 0)
    monkeypatch.setattr(disk, "INODES_MIN", 0)
    assert [each.id for each in disk.list_of_room(tmp_path, data, STORAGE, 0)] == found


def test_a_checkpoint_that_is_removed_meanwhile_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, list_directory = NodeDirectory(tmp_path), os.scandir
    data.events.mkdir()
    (data.checkpoints / "7").mkdir(parents=True)

    def scandir(path: Any) -> Any:
        if Path(path).name == "7":
            raise FileNotFoundError(path)
        return list_directory(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(disk, "free_bytes", lambda place: 2 * BOUNDS)
    monkeypatch.setattr(disk, "INODES_MIN", 0)
    assert disk.list_of_room(tmp_path, data, STORAGE, 0) == []
