"""Whether what Python compiles is kept, in environments that were made in several ways."""

from __future__ import annotations

import os
import py_compile
import sys
import tempfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from swarmd.doctor.finding import Finding
from swarmd.doctor.machine import bytecode
from swarmd.installed import compile_command
from tests.doctor.making import Made


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment whose torch and trl are not compiled, and that has no transformers."""
    place = tmp_path / "site"
    for file in ("torch/__init__.py", "torch/nn/functional.py", "trl/__init__.py"):
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text("x = 1\n")
    sources = [place / file for file in bytecode.LOOKED_AT]
    monkeypatch.setattr(bytecode, "find_sources", lambda: [file for file in sources if file.is_file()])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return place


def found(tmp_path: Path) -> Finding:
    (finding,) = Made(Path(tempfile.mkdtemp(dir=tmp_path)) / "node").find("bytecode").values()
    return finding


def compile_all(site: Path) -> None:
    for file in site.rglob("*.py"):
        py_compile.compile(str(file), cache_from_source(str(file)))


def test_this_environments_files_are_found() -> None:
    sources = bytecode.find_sources()
    assert len(sources) == len(bytecode.LOOKED_AT)


def test_what_is_compiled_is_well(site: Path, tmp_path: Path) -> None:
    compile_all(site)
    assert found(tmp_path).severity == "ok"


def test_what_is_not_compiled_and_can_be_is_noted_with_the_command(site: Path, tmp_path: Path) -> None:
    told = found(tmp_path)
    assert (told.id, told.severity) == ("bytecode.missing", "note")
    assert f"{sys.executable} -m compileall -q {site}" in told.fix and "torch" in told.evidence
    compile_all(site / "torch")
    assert "trl" in found(tmp_path).evidence


def test_where_nothing_can_be_kept_it_is_a_warning(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may = os.access
    closed = site / "torch"
    monkeypatch.setattr(os, "access", lambda place, *rest, **more: place != closed and may(place, *rest, **more))
    told = found(tmp_path)
    assert (told.id, told.severity) == ("bytecode.never", "warning")
    assert f"may not write {site / 'torch' / '__pycache__'}" in told.evidence


def test_a_variable_that_forbids_it_is_named(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert found(tmp_path).fix.startswith("Unset PYTHONDONTWRITEBYTECODE")


def test_an_environment_that_uv_made_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "uv-receipt.toml").touch()
    wanted = "uv tool install --reinstall --compile-bytecode ./swarmd-*.whl"
    assert compile_command(tmp_path / "site", str(tmp_path)) == wanted
