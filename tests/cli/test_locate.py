"""One rule for finding one's node: DIR, else the present directory with a config.toml, else ./data."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from swarmd.cli import locate
from swarmd.errors import ConfigError, ExitCode, NeverStarted, NotFoundError
from tests.cli.owning import Shell
from tests.cli.swarm.test_one_swarm import begin_log

APART = """
role = "coordinator"
[swarm]
id = "test"
"""


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, tmp_path)


@pytest.fixture
def made(shell: Shell) -> Path:
    """A node that was never started, which lies in its directory."""
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a")
    return shell.root / "a"


@pytest.fixture
def ran(made: Path) -> Path:
    begin_log(made / "config.toml")
    return made


def apart(root: Path) -> Path:
    """A node whose data lies below its directory."""
    root.mkdir()
    (root / "config.toml").write_text(APART)
    return root


def test_a_directory_that_is_named_comes_first(shell: Shell, ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apart(shell.root / "b")
    monkeypatch.chdir(shell.root / "b")
    assert locate.locate(ran) == (ran / "config.toml", ran)


def test_the_present_directory_comes_before_data(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate.locate(None) == (None, Path("data"))
    monkeypatch.chdir(apart(shell.root / "b"))
    assert locate.locate(None) == (Path("config.toml"), Path("data"))


def test_the_configuration_says_where_the_data_lies(shell: Shell) -> None:
    root = apart(shell.root / "b")
    assert locate.locate(root) == (root / "config.toml", root / "data")
    (root / "events").mkdir()
    assert locate.locate(root) == (root / "config.toml", root), "a restored one holds the log itself"


def test_beside_a_configuration_a_directory_is_the_data(shell: Shell) -> None:
    config = apart(shell.root / "b") / "config.toml"
    assert locate.locate(None, config) == (config, config.parent / "data")
    assert locate.locate(Path("elsewhere"), config) == (config, Path("elsewhere"))


def test_a_log_that_is_not_there_is_told_with_the_next_command(shell: Shell, made: Path) -> None:
    with pytest.raises(NeverStarted) as caught:
        locate.log_of(made)
    assert f"`swarmd run {made}`" in caught.value.fix
    with pytest.raises(NeverStarted) as caught:
        locate.log_of(None, made / "config.toml")
    with pytest.raises(NotFoundError, match="no node here"):
        locate.log_of(None)
    with pytest.raises(NotFoundError, match="no node in nowhere"):
        locate.log_of(Path("nowhere"))


def test_what_starts_a_node_can_be_pasted_though_its_path_has_blanks(shell: Shell) -> None:
    node = shell.root / "my node's"
    shown = shell.well("init", "--dir", node, "--yes", "--no-examine")
    started = shlex.join(["swarmd", "run", str(node)])
    assert f"`{started}`" in shell.fails(ExitCode.NEVER_STARTED, "explain", node)
    assert shlex.join(["swarmd", "run", "--config", str(node / "config.toml")]) in shown
    assert shlex.join(["swarmd", "doctor", str(node)]) in shown


READERS = (
    ("explain",),
    ("replay",),
    ("replay", "--verify"),
    ("report", "--json"),
    ("leaderboard",),
    ("log", "cat"),
    ("log", "verify"),
    ("log", "compact"),
    ("bundle", "--unit", ""),
    ("dashboard",),
    ("backup", "make", "out.tar"),
)


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_every_verb_that_reads_a_log_knows_a_node_that_never_ran(
    words: tuple[str, ...], shell: Shell, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no node here" in shell.fails(ExitCode.NO_INPUT, *words)
    monkeypatch.chdir(made)
    said = shell.fails(ExitCode.NEVER_STARTED, *words)
    assert "was made and never started" in said and "fix: Start it: `swarmd run .`" in said


@pytest.mark.parametrize(
    "words", [("explain",), ("replay", "--verify"), ("log", "verify"), ("log", "tail")], ids=" ".join
)
def test_verbs_find_the_node_in_the_present_directory(
    words: tuple[str, ...], shell: Shell, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ran)
    here = shell.well(*words)
    monkeypatch.chdir(shell.root)
    (ran / "config.toml").unlink()
    ran.rename(shell.root / "data")
    assert shell.well(*words).replace("data", ".") == here.replace("data", ".")


def test_status_knows_a_node_that_was_never_started(shell: Shell, made: Path) -> None:
    said = shell("status", made)
    assert said.code == ExitCode.NEVER_STARTED == 4
    shown = " ".join(said.out.replace("│", " ").split())
    assert "never started" in shown and "swarmd run" in shown and "no log yet" in shown
    told = json.loads(shell("status", made, "--json").out)
    assert told["process"]["state"] == "never started" and f"`swarmd run {made}`" in told["process"]["reason"]
    assert (told["role"], told["healthy"], told["log"]["next_seq"]) == ("coordinator", False, 0)
    begin_log(made / "config.toml")
    assert shell("status", made).code == ExitCode.FAILURE


def test_status_says_where_it_looked(shell: Shell) -> None:
    assert "neither a config.toml nor ./data" in shell.fails(ExitCode.NO_INPUT, "status")
    (shell.root / "empty").mkdir()
    assert "there is no node in" in shell.fails(ExitCode.NO_INPUT, "status", shell.root / "empty")


def test_run_takes_a_directory(shell: Shell, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []
    monkeypatch.setattr("swarmd.daemon.service.run_node", lambda config, data, **named: started.append(data.root) or 0)
    monkeypatch.setattr("swarmd.observe.logging.logs.configure", lambda *given, **named: None)
    root = apart(shell.root / "b")
    shell.well("run", made)
    shell.well("run", "--config", root / "config.toml")
    shell.well("run", made, "--config", root / "config.toml")
    shell.well("run", root, "--data", "other")
    monkeypatch.chdir(root)
    shell.well("run")
    assert started == [made, root / "data", made, Path("other"), Path("data")]


def test_run_without_a_node_says_how_to_make_one(shell: Shell) -> None:
    assert "swarmd init" in shell.fails(ExitCode.NO_INPUT, "run")
    assert "no config.toml in gone" in shell.fails(ExitCode.NO_INPUT, "run", "gone")


def test_the_doctor_examines_a_restored_directory(shell: Shell, ran: Path) -> None:
    config = ran / "config.toml"
    config.write_text(config.read_text().replace('data = "."', 'data = "data"'))
    report = json.loads(shell("doctor", ran, "--offline", "--only", "identity", "--json").out)
    assert report["data"] == str(ran)


def test_a_backup_needs_a_file_to_write(shell: Shell, ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is no file for a backup" in shell.fails(ExitCode.BAD_CONFIG, "backup", "make", ran)
    assert "one node and one file" in shell.fails(ExitCode.BAD_CONFIG, "backup", "make", "a", "b", "c.tar")
    monkeypatch.chdir(ran)
    shell.well("backup", shell.root / "kept.tar", "--without-keys")
    assert (shell.root / "kept.tar").is_file()


def test_a_configuration_that_cannot_be_used_is_told(shell: Shell) -> None:
    root = apart(shell.root / "b")
    (root / "config.toml").write_text("[swarms]\n")
    with pytest.raises(ConfigError, match="unknown key 'swarms'"):
        locate.locate(root)
