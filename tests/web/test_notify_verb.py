"""`swarmd notify`: a test message, and what a unit's end looks like from OnFailure=."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.cli.notify import how_it_ended
from swarmd.errors import ExitCode
from tests.web.notifications.test_senders import receiving, script

HEAD = 'name = "alpha"\nrole = "coordinator"\n[swarm]\nid = "test"\n[notify]\n'


def test_a_test_message_goes_out_by_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = script(tmp_path / "take.py", f"open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())")
    with receiving(200) as server:
        (tmp_path / "node.toml").write_text(f'{HEAD}urls = ["{server.url}/x"]\ncommand = {list(argv)}\n')
        assert run_command(["notify", "--config", str(tmp_path / "node.toml")]) == ExitCode.OK
    assert server.texts[0] == "alpha: this is a test"
    assert (tmp_path / "got").read_text() == "alpha: this is a test\n"
    assert capsys.readouterr().out.split("\n")[:2] == [
        "JSON (notify.urls, entry 1): sent",
        f"the program {sys.executable}: sent",
    ]


def test_without_any_way_it_says_which_keys_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.toml").write_text(HEAD)
    assert run_command(["notify", "-c", str(tmp_path / "node.toml")]) == ExitCode.BAD_CONFIG
    assert "notify.urls" in capsys.readouterr().err


def test_of_a_unit_nobody_is_told_where_nobody_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.toml").write_text(HEAD)
    call = ["notify", "-c", str(tmp_path / "node.toml"), "--unit", "swarmd.service"]
    assert run_command(call) == ExitCode.OK
    assert "nobody is told of swarmd.service" in capsys.readouterr().out


def test_a_services_secrets_lie_in_its_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its configuration lies elsewhere, and calls that place its data, as `join` writes it."""
    config, data = tmp_path / "etc" / "node.toml", tmp_path / "lib"
    config.parent.mkdir()
    data.mkdir()
    config.write_text(f'data = "."\n{HEAD}urls = ["file:service.url"]\n')
    call = ["notify", "-c", str(config), "--unit", "swarmd.service"]
    with receiving(200) as server:
        (data / "service.url").write_text(server.url)
        (data / "service.url").chmod(0o600)
        assert run_command([*call, "--data", str(data)]) == ExitCode.OK
    assert "swarmd.service ended" in server.texts[0]
    assert run_command(call) == ExitCode.NO_INPUT, "which is a failure of the unit that calls it"
    assert "service.url" in capsys.readouterr().err


def test_the_end_of_a_unit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONITOR_SERVICE_RESULT", "exit-code")
    monkeypatch.setenv("MONITOR_EXIT_CODE", "exited")
    monkeypatch.setenv("MONITOR_EXIT_STATUS", "78")
    with receiving(200) as server:
        (tmp_path / "node.toml").write_text(f'{HEAD}urls = ["{server.url}"]\n')
        assert run_command(["notify", "-c", str(tmp_path / "node.toml"), "--unit", "swarmd.service"]) == ExitCode.OK
    assert server.texts[0] == (
        "alpha: swarmd.service ended: it ended by itself, exit code 78: the configuration is wrong, or asks for what "
        "this machine has not"
    )
    assert server.posted[0][1]["type"] == "warning"


@pytest.mark.parametrize(
    ("result", "code", "status", "words"),
    [
        ("watchdog", "killed", "ABRT", "it gave no sign of life, by SIGABRT"),
        ("oom-kill", "killed", "KILL", "memory ran out, by SIGKILL"),
        ("exit-code", "exited", "1", "it ended by itself, exit code 1"),
        ("start-limit-hit", "", "", "it failed too often to be started again"),
        ("", "", "", "the service manager does not say how it ended"),
    ],
)
def test_systemds_words_are_put_into_ours(result: str, code: str, status: str, words: str) -> None:
    environ = {"MONITOR_SERVICE_RESULT": result, "MONITOR_EXIT_CODE": code, "MONITOR_EXIT_STATUS": status}
    assert how_it_ended(environ) == words
