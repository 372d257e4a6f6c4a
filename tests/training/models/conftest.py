"""A model directory that a test may change, and a cache of its own."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def model(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "tiny"))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was converted, hashed or tried out before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
