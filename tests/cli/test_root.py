"""The command line as a whole: quick, lazy, with one way to tell an error."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import swarmd.cli as cli
from swarmd.errors import ConfigError, ExitCode, SwarmdError
from tests.cli.owning import Shell


def swarmd(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "swarmd", *args]
    return subprocess.run(call, capture_output=True, text=True, timeout=60, env=os.environ | environment)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Puts a verb "probe" on the command line that does what the test says."""

    def install(action: Callable[[], object]) -> None:
        module = ModuleType("probe_verb")
        module.__dict__["probe"] = action
        monkeypatch.setitem(sys.modules, "swarmd.cli.probe", module)
        monkeypatch.setitem(cli.VERBS, "probe", cli.CommandHelp("Do what the test says.", "swarmd probe"))

    return install


def test_help_lists_every_verb() -> None:
    shown = swarmd("--help")
    assert shown.returncode == 0
    assert [name for name in cli.VERBS if f" {name} " not in shown.stdout] == []


@pytest.mark.parametrize("name", sorted(cli.VERBS))
def test_every_verb_has_an_example_that_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = shlex.split(cli.VERBS[name].example.removeprefix("sudo "))
    assert example[:2] == ["swarmd", name]
    command, given = cli.load_command(name), example[2:]
    if hasattr(command, "commands"):
        command, given = command.commands[given[0]], given[1:]
    command.make_context(name, given)
    cli.run_command([name, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"For example: {cli.VERBS[name].example}" in shown


def commands_of(command: Any) -> Iterator[Any]:
    """A command and all below it."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from commands_of(inner)


@pytest.mark.parametrize("name", sorted(cli.VERBS))
def test_no_word_of_a_help_is_taken_for_markup(name: str) -> None:
    for command in commands_of(cli.load_command(name)):
        for text in (command.help or "", *(getattr(param, "help", None) or "" for param in command.params)):
            assert not re.search(r"(?<!\\)\[[a-z][a-z_ ]*\]", text), text


def test_help_loads_no_verb_and_nothing_heavy() -> None:
    program = (
        "import sys; from swarmd.cli import run_command; run_command(['--help'])\n"
        "watched = ('swarmd.', 'torch', 'hivemind', 'transformers')\n"
        "print('LOADED', *(name for name in sys.modules if name.startswith(watched)))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    light = {"swarmd.cli", "swarmd.errors"}
    assert set(shown.stdout.split("LOADED")[1].split()) == light


def test_an_unknown_verb_names_the_nearest(shell: Shell) -> None:
    error, fix = shell.fails(ExitCode.USAGE, "repaly").splitlines()
    assert error == "error: No such command 'repaly'. Did you mean 'replay'?"
    assert fix == "fix: swarmd --help lists what it takes"


def test_a_deliberate_error_is_two_lines_and_its_exit_code(verb: Callable[..., None], shell: Shell) -> None:
    def refuse() -> None:
        raise ConfigError("the key x is wrong", "Remove it")

    verb(refuse)
    assert shell.fails(ExitCode.BAD_CONFIG, "probe") == "error: the key x is wrong\nfix: Remove it\n"


def test_an_unexpected_error_shows_its_traceback(verb: Callable[..., None], shell: Shell) -> None:
    def stumble() -> None:
        raise RuntimeError("seven")

    verb(stumble)
    said = shell("probe")
    assert said.code == ExitCode.FAILURE and "RuntimeError: seven" in said.err
    assert "error: swarmd met an error it does not know" in said.err


def test_a_directory_of_another_user_is_told_with_what_helps(verb: Callable[..., None], shell: Shell) -> None:
    def refuse() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "node/events")

    verb(refuse)
    told = shell.fails(ExitCode.CANNOT_CREATE, "probe")
    assert told.startswith("error: node/events: Permission denied\nfix: Run as the user whose it is, or see that ")


def test_a_daemon_that_ends_by_a_refused_file_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    told: list[SwarmdError] = []

    def run_node(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, "Input/output error", "node/moved.json")

    monkeypatch.setattr("swarmd.cli.run.run_node", run_node)
    monkeypatch.setattr("swarmd.cli.run.set_up_logging", lambda *_, **__: False)
    monkeypatch.setattr("swarmd.cli.run.log_fatal", told.append)
    shell.well("swarm", "new", "demo", "--dir", tmp_path / "node")
    assert cli.run_command(["run", str(tmp_path / "node")]) == ExitCode.FAILURE
    assert [str(each) for each in told] == ["node/moved.json: Input/output error. Check the disk"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("file/data", "cannot be made: Not a directory"), ("data\udcff", "is not UTF-8")],
    ids=["below a file", "not UTF-8"],
)
def test_a_node_without_a_data_directory_says_so(name: str, said: str, tmp_path: Path) -> None:
    """One JSON line and a code that does not have it started again and again."""
    (tmp_path / "file").touch()
    (tmp_path / "node.toml").write_text('role = "coordinator"\n[swarm]\nid = "s"\n')
    ended = swarmd("run", "--config", str(tmp_path / "node.toml"), "--data", str(tmp_path / name))
    assert ended.returncode == ExitCode.CANNOT_CREATE
    assert said in json.loads(ended.stderr)["message"]


@pytest.mark.parametrize(
    "words",
    [
        "swarm new demo --dir link",
        "swarm new demo --dir file/node",
        "swarm scaffold demo --dir file/demo",
        "identity new file/identity.key",
        "local --nodes 1 --dir file",
        "model build --out file",
    ],
)
def test_a_place_that_the_system_refuses_is_told_with_what_helps(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("nowhere/node")
    Path("file").touch()
    assert cli.run_command(words.split()) == ExitCode.CANNOT_CREATE
    assert "fix: Move away what is at " in capsys.readouterr().err


def test_control_c_ends_with_130(verb: Callable[..., None]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    verb(interrupted)
    assert cli.run_command(["probe"]) == 130


@pytest.mark.parametrize("rows", [10, 100_000], ids=["at the end", "in the middle"])
def test_a_reader_that_goes_away_is_told_nothing(rows: int) -> None:
    program = (
        "import sys, types, swarmd.cli as cli\n"
        f"def probe() -> None:\n    sys.stdin.read()\n    for row in range({rows}): print(row)\n"
        "module = types.ModuleType('probe_verb'); module.probe = probe; sys.modules['swarmd.cli.probe'] = module\n"
        "cli.VERBS['probe'] = cli.CommandHelp('', ''); sys.exit(cli.run_command(['probe']))"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    os.close(reader)
    _, stderr = process.communicate(timeout=60)
    assert stderr == b""
    assert process.returncode == ExitCode.FAILURE


def in_shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, in which {} stands for swarmd."""
    called = line.replace("{}", f"{shlex.quote(sys.executable)} -m swarmd")
    return subprocess.run(["sh", "-c", called], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("verb", ["--version", "config show"])
def test_output_that_has_no_room_is_one_line(verb: str) -> None:
    ended = in_shell(f"{{}} {verb} >/dev/full")
    assert ended.returncode == ExitCode.CANNOT_CREATE
    error, fix = ended.stderr.splitlines()
    assert error == "error: standard output, or a file, cannot be written: No space left on device"
    assert fix.startswith("fix: ")


def test_closed_streams_change_no_exit_code(tmp_path: Path) -> None:
    assert in_shell("{} config show >&-").returncode == ExitCode.OK
    absent = shlex.quote(str(tmp_path / "absent"))
    without_key = in_shell(f"{{}} account import {absent} <&-")
    assert without_key.returncode == ExitCode.BAD_DATA and "no key on standard input" in without_key.stderr
    for streams in ("2>&-", ">&- 2>&-", "2>/dev/full"):
        ended = in_shell(f"{{}} config check {absent} {streams}")
        assert (ended.returncode, ended.stdout, ended.stderr) == (ExitCode.NO_INPUT, "", ""), streams


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_what_a_terminal_cannot_show_ends_nothing(encoding: str, tmp_path: Path) -> None:
    file = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xe2\x82\xac.toml")
    Path(file).write_text('role = "coordinator"\n[swarm]\nid = "s"\n')
    ended = swarmd("config", "check", file, PYTHONIOENCODING=encoding)
    assert (ended.returncode, ended.stderr) == (ExitCode.OK, "")
    assert "\\udcff" in ended.stdout and ".toml: valid" in ended.stdout
