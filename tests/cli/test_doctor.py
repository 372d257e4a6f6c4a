"""`swarmd doctor` as it is called: what is examined, how it is told, and how it ends."""

import json
import stat
from pathlib import Path

import pytest

from swarmd.cli.doctor import find_config
from swarmd.errors import ExitCode, NotFoundError
from tests.cli.owning import Shell, files

QUICK = ("--only", "config", "--only", "identity", "--only", "directory")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    shell = Shell(capsys, tmp_path)
    shell.well("swarm", "new", "Digits", "--dir", tmp_path / "a")
    return shell


def test_a_node_that_is_well_ends_with_0_and_nothing_is_written(shell: Shell) -> None:
    before = files(shell.root / "a")
    shown = shell.well("doctor", shell.root / "a", *QUICK)
    assert "ok      identity: " in shown and "intact and private" in shown
    assert "(identity.backup)" in shown and "fix: `swarmd identity backup" in shown
    assert shown.rstrip().endswith("1 note")
    assert files(shell.root / "a") == before


def test_warnings_end_with_1_and_errors_with_2(shell: Shell) -> None:
    (shell.root / "a").chmod(0o755)
    said = shell("doctor", shell.root / "a", *QUICK)
    assert said.code == ExitCode.FAILURE and "1 warning, 1 note" in said.out
    key = shell.root / "a" / "identity.key"
    key.chmod(0o644)
    said = shell("doctor", shell.root / "a", *QUICK)
    assert said.code == ExitCode.UNFIT == 2
    assert said.out.startswith("error   Others may read the identity (identity.mode)")
    assert f"fix: Run `chmod 600 {key}`" in said.out and stat.S_IMODE(key.stat().st_mode) == 0o644


def test_json_has_the_same_and_nothing_else(shell: Shell) -> None:
    (shell.root / "a" / "identity.key").chmod(0o644)
    said = shell("doctor", "--config", shell.root / "a" / "config.toml", "--json", "--offline", *QUICK)
    report = json.loads(said.out)
    assert said.code == ExitCode.UNFIT and report["verdict"] == "error" and report["format"] == 1
    assert report["offline"] is True and report["config"].endswith("a/config.toml")
    assert {"check", "id", "severity", "title", "evidence", "fix"} == set(report["findings"][0])
    assert said.err == ""


def test_a_wrong_configuration_is_a_finding(shell: Shell) -> None:
    config = shell.root / "a" / "config.toml"
    config.write_text(config.read_text().replace("[round]", "[rounds]"))
    said = shell("doctor", shell.root / "a", *QUICK)
    assert said.code == ExitCode.UNFIT and "unknown key 'rounds'" in said.out and "Did you mean round?" in said.out
    assert "left out, the configuration cannot be used: directory, identity" in said.out.replace(
        "identity, data", "data, identity"
    )


def test_the_machine_alone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.root)
    assert "(config.absent)" in shell.well("doctor", "--only", "config", "--only", "python")
    monkeypatch.chdir(shell.root / "a")
    assert "config.toml: valid" in shell.well("doctor", "--only", "config")


def test_what_is_named_must_be_there(shell: Shell) -> None:
    assert "there is no config.toml in" in shell.fails(ExitCode.NO_INPUT, "doctor", shell.root)
    assert "there is no configuration file" in shell.fails(ExitCode.NO_INPUT, "doctor", "--config", shell.root / "x")
    assert "Did you mean clock?" in shell.fails(ExitCode.BAD_CONFIG, "doctor", "--only", "clocks")
    with pytest.raises(NotFoundError):
        find_config(shell.root / "gone", None)
