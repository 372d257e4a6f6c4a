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
    (root / "torn.toml").write_text('role = "coordinator"\n[swarm\nid = "x"\n')
    return root


@pytest.mark.parametrize(
    ("command", "told", "fix"),
    [
        (["run", "--config", MANIFEST], "is the manifest of a swarm", "`swarmd join swarm.toml --dir DIR` makes"),
        (["config", "check", MANIFEST], "is the manifest of a swarm", "`swarmd join swarm.toml --dir DIR` makes"),
        (["join", CONFIG, "--dir", "new"], "is a node's configuration, no manifest", "Name the swarm.toml"),
        (
            ["join", "https://e.org/swarm.toml", "--dir", "new"],
            "https://e.org/swarm.toml is a URL",
            "curl -O https://e.org/s",
        ),
        (["status", "."], "there is no node in .", "Did you mean node?"),
        (["replay"], "there is no node here", "Did you mean node?"),
        (["config", "check", "torn.toml"], "torn.toml is not valid TOML", "Mend that line: [swarm"),
        (["run", "--config", "none.toml"], "there is no configuration file none.toml", "`swarmd init` makes a node"),
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
