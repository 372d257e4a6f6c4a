"""Inputs of another kind than is wanted: the error names what was given, and what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.dht.addresses import suggest_address

MANIFEST = "swarm.toml"
CONFIG = "node/config.toml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a node in it, and files that are wrong in some way."""
    root = tmp_path_factory.mktemp("made")
    assert run_command(["swarm", "new", "mine", "--dir", str(root / "node")]) == 0
    (root / "node" / MANIFEST).rename(root / MANIFEST)
    (root / "utf16.toml").write_text('role = "coordinator"', encoding="utf-16")
    (root / "torn.toml").write_text('role = "coordinator"\n[swarm\nid = "x"\n')
    return root


@pytest.mark.parametrize(
    ("command", "told", "fix"),
    [
        (["run", "--config", MANIFEST], "is the manifest of a swarm", "`swarmd join swarm.toml --dir DIR` makes"),
        (["config", "check", MANIFEST], "is the manifest of a swarm", "`swarmd join swarm.toml --dir DIR` makes"),
        (["join", CONFIG, "--dir", "new"], "is a node's configuration, no manifest", "Name the swarm.toml"),
        (["join", "https://example.org/swarm.toml", "--dir", "new"], "there is no manifest", "curl -O"),
        (["status", "."], "there is no node in .", "Did you mean node?"),
        (["replay"], "there is no node here", "Did you mean node?"),
        (["config", "check", "torn.toml"], "torn.toml is not valid TOML", "Mend that line: [swarm"),
        (["config", "check", "utf16.toml"], "cannot be read: 'utf-8' codec", "Save it in UTF-8"),
        (["run", "--config", "none.toml"], "there is no configuration file none.toml", "`swarmd init` makes a node"),
        (["swarm", "new", "\udcdcn", "--dir", "new"], "has characters that cannot be shown", "in UTF-8"),
        (["swarm", "new"], "Missing argument 'name'", "Write it as `swarmd swarm new NAME --dir DIRECTORY`"),
        (["swarm", "new", "x", "--dir", "new", "--announce", "a.example:4001"], "is no address", "/dns4/a.example/tcp"),
    ],
)
def test_what_was_given_and_what_would_do_are_named(
    made: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    told: str,
    fix: str,
) -> None:
    monkeypatch.chdir(made)
    assert run_command(command) != 0
    said = capsys.readouterr().err
    error, _, remedy = said.partition("\nfix: ")
    assert told in error and fix in remedy
    assert not (made / "new").exists()


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ("Qwen/Qwen3-0.6B@main", 'training.model = "Qwen/Qwen3-0.6B" and training.revision = "main"'),
        ("https://huggingface.co/Qwen/Qwen3-0.6B", 'training.model = "Qwen/Qwen3-0.6B"'),
        ("hf:Qwen/Qwen3-0.6B", 'training.model = "Qwen/Qwen3-0.6B"'),
        ("", 'an id is "user/model"'),
    ],
)
def test_a_model_that_is_written_in_another_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, fix: str
) -> None:
    (tmp_path / "c.toml").write_text(f'role = "coordinator"\n[swarm]\nid = "s"\n[training]\nmodel = "{model}"\n')
    assert run_command(["config", "check", str(tmp_path / "c.toml")]) != 0
    assert fix in capsys.readouterr().err.partition("\nfix: ")[2]


@pytest.mark.parametrize(
    ("options", "told", "fix"),
    [
        ('data = "q.csv"', "line 1: no JSON in UTF-8", "swarm.options.dataset"),
        ('data = "q.json"', "line 1: list, not an object", "swarm.options.dataset"),
        ('data = "other.jsonl"', "'prompt' is missing; it has: 'question'", "Every row"),
        ('data = "new.jsonl"\ndataset = "data/none.csv"', "there is no ", "docs/swarms/file.md"),
        ('data = "new.jsonl"\ndataset = "https://example.org/q.csv"', "there is no ", "docs/swarms/file.md"),
    ],
)
def test_questions_that_a_start_would_refuse_are_refused_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, told: str, fix: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "q.csv").write_text("prompt,answer\n1?,2\n")
    (tmp_path / "data" / "q.json").write_text('[{"prompt": "1?", "answer": "2"}]')
    (tmp_path / "data" / "other.jsonl").write_text('{"question": "1?", "answer": "2"}')
    swarm = f'[swarm]\nid = "s"\nkind = "file"\nstages = 1\n[swarm.options]\n{options}\n'
    (tmp_path / "c.toml").write_text(f'role = "coordinator"\n{swarm}')
    assert run_command(["config", "check", str(tmp_path / "c.toml")]) != 0
    error, _, remedy = capsys.readouterr().err.partition("\nfix: ")
    assert told in error and fix in remedy


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("example.org:4001", "/dns4/example.org/tcp/4001"),
        ("https://example.org/", "/dns4/example.org/tcp/38331"),
        ("192.0.2.7", "/ip4/192.0.2.7/tcp/38331"),
        ("/ip4/nonsense", "/ip4/0.0.0.0/tcp/38331"),
    ],
)
def test_a_host_is_written_as_an_address(given: str, written: str) -> None:
    assert suggest_address(given).endswith(written)
