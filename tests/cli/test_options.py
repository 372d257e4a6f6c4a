"""What verbs share: where a node lies, and JSON for programs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.cli import options
from swarmd.errors import ExitCode, NeverStarted, NotFoundError
from tests.cli.owning import Shell
from tests.cli.test_one_swarm import begin_log

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


def test_the_present_directory_comes_before_data(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.locate_node(None) == (None, Path("data"))
    monkeypatch.chdir(apart(shell.root / "b"))
    assert options.locate_node(None) == (Path("config.toml"), Path("data"))


def test_the_configuration_says_where_the_data_lies(shell: Shell) -> None:
    root = apart(shell.root / "b")
    assert options.locate_node(root) == (root / "config.toml", root / "data")
    (root / "events").mkdir()
    assert options.locate_node(root) == (root / "config.toml", root), "a restored one holds the log itself"


def test_a_log_that_is_not_there_is_told_with_the_next_command(shell: Shell, made: Path) -> None:
    with pytest.raises(NeverStarted) as caught:
        options.find_log_directory(made)
    assert f"`swarmd run {made}`" in caught.value.fix
    with pytest.raises(NeverStarted) as caught:
        options.find_log_directory(None, made / "config.toml")
    with pytest.raises(NotFoundError, match="no node here"):
        options.find_log_directory(None)
    with pytest.raises(NotFoundError, match="no node in nowhere"):
        options.find_log_directory(Path("nowhere"))


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
    assert "was made and never started, or is just starting" in said and "fix: Start it: `swarmd run .`" in said


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


def test_run_takes_a_directory(shell: Shell, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []
    monkeypatch.setattr("swarmd.cli.run.run_node", lambda config, data, **named: started.append(data.root) or 0)
    monkeypatch.setattr("swarmd.cli.run.set_up_logging", lambda *given, **named: None)
    root = apart(shell.root / "b")
    shell.well("run", made)
    shell.well("run", "--config", root / "config.toml")
    shell.well("run", made, "--config", root / "config.toml")
    shell.well("run", root, "--data", "other")
    monkeypatch.chdir(root)
    shell.well("run")
    assert started == [made, root / "data", made, Path("other"), Path("data")]


def test_a_backup_needs_a_file_to_write(shell: Shell, ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not a file for a backup" in shell.fails(ExitCode.BAD_CONFIG, "backup", "make", ran)
    assert "one node and one file" in shell.fails(ExitCode.BAD_CONFIG, "backup", "make", "a", "b", "c.tar")
    monkeypatch.chdir(ran)
    shell.well("backup", shell.root / "kept.tar", "--without-keys")
    assert (shell.root / "kept.tar").is_file()


@pytest.mark.parametrize("verb", ["identity show", "identity check"])
def test_a_path_that_is_no_text_is_shown_as_far_as_it_is(verb: str, tmp_path: Path, shell: Shell) -> None:
    home = tmp_path / os.fsdecode(b"node-\xff")
    home.mkdir()
    shell.well("identity", "new", home / "identity.key")
    said = json.loads(shell.well(*verb.split(), home / "identity.key", "--json"))
    assert said["file"] == f"{tmp_path}/node-\N{REPLACEMENT CHARACTER}/identity.key"


def test_a_terminal_of_another_encoding_gets_utf8(tmp_path: Path) -> None:
    file = tmp_path / "Zoë.toml"
    file.write_text('role = "coordinator"\n[swarm]\nid = "s"\n', encoding="utf-8")
    words = ["doctor", "--config", str(file), "--only", "python", "--offline", "--json"]
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ended = subprocess.run([sys.executable, "-m", "swarmd", *words], env=env, capture_output=True)
    assert json.loads(ended.stdout.decode("utf-8"))["config"] == str(file)
