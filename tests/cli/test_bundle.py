"""`swarmd bundle`: what goes in beside the log. Bundles themselves are in tests/backup/test_bundle.py."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from swarmd.cli.bundle import _list_files


def test_files_that_a_running_node_removes_meanwhile_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("blobs/kept", "blobs/gone", "checkpoints/7/model"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    look, list_directory = os.stat, os.scandir

    def lstat(path: Any, *rest: Any, **how: Any) -> os.stat_result:
        if Path(path).name == "gone":
            raise FileNotFoundError(path)
        return look(path, *rest, **how)

    def scandir(path: Any) -> Any:
        if Path(path).name == "7":
            raise FileNotFoundError(path)
        return list_directory(path)

    monkeypatch.setattr(os, "stat", lstat)
    monkeypatch.setattr(os, "scandir", scandir)
    told = {row[0] for row in json.loads(_list_files(tmp_path))}
    assert told == {"blobs", "blobs/kept", "checkpoints", "checkpoints/7"}
