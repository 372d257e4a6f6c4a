"""A model of one's own makes a swarm: the manifest names its weights, and those who join are handed the directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from swarmd.cli import models
from swarmd.config import DIGEST, load_config
from swarmd.errors import ExitCode, HubUnreachable, ModelError
from swarmd.training.models.files import digest_weights
from swarmd.training.models.source import EMBEDDED_DIR
from tests.cli.owning import Shell
from tests.e2e.models import make_model

COMMIT = "c" * 40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("made"))


@pytest.fixture
def tiny(made: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shell.root)
    return Path(shutil.copytree(made, shell.root / "models" / "tiny"))


def base(shell: Shell, model: str, more: str = "") -> Path:
    path = shell.root / "base.toml"
    path.write_text(f'role = "coordinator"\n[swarm]\nid = "x"\n[training]\nmodel = "{model}"\n{more}')
    return path


def new(shell: Shell, model: str, more: str = "") -> tuple[object, ...]:
    return ("swarm", "new", "Own", "--dir", shell.root / "a", "--config", base(shell, model, more))


@pytest.mark.parametrize("named", ["models/tiny", "./models/tiny"])
def test_a_model_directory_is_handed_out_beside_the_manifest(named: str, shell: Shell, tiny: Path) -> None:
    """`models/tiny` looks like an id of the Hub, and members would fetch somebody else's model of that name."""
    said = shell.well(*new(shell, named))
    assert f"and the directory {tiny}" in said
    recipe = shell.manifest("a").recipe
    assert (recipe.model, recipe.revision) == ("./tiny", DIGEST + digest_weights(tiny))
    first = load_config(shell.root / "a" / "config.toml").training
    assert (first.model, first.revision) == (str(tiny), recipe.revision)
    assert f"model ./tiny ({recipe.revision})" in shell.well("swarm", "check", shell.root / "a" / "swarm.toml")

    handed = shell.root / "handed"
    handed.mkdir()
    shutil.copy(shell.root / "a" / "swarm.toml", handed)
    refused = shell.fails(ExitCode.BAD_DATA, "join", handed / "swarm.toml", "--dir", shell.root / "b")
    assert "tiny, which is not beside" in refused
    shutil.copytree(tiny, handed / "tiny")
    shell.well("join", handed / "swarm.toml", "--dir", shell.root / "b")
    joined = load_config(shell.root / "b" / "config.toml").training
    assert (joined.model, joined.revision) == (str(handed / "tiny"), recipe.revision)
    doctor = shell("doctor", shell.root / "b", "--offline", "--only", "model", "--only", "directory", "--json").out
    assert "model.other" not in doctor and "directory.recipe" not in doctor

    shutil.copy(EMBEDDED_DIR / "model.safetensors", handed / "tiny")
    assert "begin from other weights" in shell.well("join", handed / "swarm.toml", "--dir", shell.root / "c")
    doctor = shell("doctor", shell.root / "b", "--offline", "--only", "model", "--json").out
    assert "model.other" in doctor and digest_weights(EMBEDDED_DIR)[:16] in doctor


def test_a_shipped_model_is_named_with_its_weights(shell: Shell) -> None:
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a")
    recipe = shell.manifest("a").recipe
    assert (recipe.model, recipe.revision) == ("embedded", DIGEST + digest_weights(EMBEDDED_DIR))
    shell.well("join", shell.root / "a" / "swarm.toml", "--dir", shell.root / "b")
    joined = load_config(shell.root / "b" / "config.toml").training
    assert (joined.model, joined.revision) == ("embedded", recipe.revision)


def test_a_model_of_the_hub_is_named_with_its_commit(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ask_hub", lambda name, revision, shipped: COMMIT)
    shell.well(*new(shell, "org/name"))
    assert shell.manifest("a").recipe.revision == COMMIT


def test_a_revision_that_is_named_stays(shell: Shell) -> None:
    shell.well(*new(shell, "org/name", 'revision = "v1"'))
    assert shell.manifest("a").recipe.revision == "v1"


def test_where_the_hub_cannot_be_asked_it_is_said_that_no_commit_is_named(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(name: str, revision: str, shipped: tuple[str, ...]) -> str:
        raise HubUnreachable("the Hub cannot be asked")

    monkeypatch.setattr(models, "ask_hub", unreachable)
    assert "names no commit of org/name" in shell.well(*new(shell, "org/name"))
    assert shell.manifest("a").recipe.revision == ""


def test_a_model_that_the_hub_does_not_have_makes_no_swarm(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, revision: str, shipped: tuple[str, ...]) -> str:
        raise ModelError("the Hub shows none of this name")

    monkeypatch.setattr(models, "ask_hub", absent)
    assert "shows none" in shell.fails(ExitCode.NO_INPUT, *new(shell, "org/name"))
    assert not (shell.root / "a").exists()


def test_what_a_start_refuses_makes_no_swarm_and_no_valid_configuration(shell: Shell, tiny: Path) -> None:
    (tiny / "chat_template.jinja").unlink()
    assert "has no chat template" in shell.fails(ExitCode.BAD_CONFIG, *new(shell, "./models/tiny"))
    assert "has no chat template" in shell.fails(ExitCode.BAD_CONFIG, "config", "check", shell.root / "base.toml")
    (tiny / "config.json").unlink()
    (tiny / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    for command in (new(shell, "./models/tiny"), ("config", "check", shell.root / "base.toml")):
        assert "holds adapters of 'org/base'" in shell.fails(ExitCode.NO_INPUT, *command)
    assert not (shell.root / "a").exists()


def test_a_gguf_file_makes_no_swarm(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.root)
    (shell.root / "own.gguf").write_bytes(b"GGUF")
    refused = shell.fails(ExitCode.BAD_DATA, *new(shell, "own.gguf"))
    assert "no manifest names a GGUF file" in refused and "Name the directory" in refused
