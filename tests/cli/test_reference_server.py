"""`swarmd reference-server`: what its options mean. How it serves is in tests/training/reference."""

import socket
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.errors import ExitCode
from tests.cli.owning import Shell

TOKEN = "canary-token-0123456789abcdef"


def test_strangers_are_never_served_without_a_token(shell: Shell) -> None:
    for host in ("0.0.0.0", "[::]", "192.0.2.1", "reference.example.org"):
        assert "asks for no token" in shell.fails(ExitCode.BAD_CONFIG, "reference-server", "--listen", f"{host}:0")


def test_a_token_is_read_from_a_private_file_only(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "token"
    arguments = ["reference-server", "--token-file", str(path)]
    assert "openssl rand" in shell.fails(ExitCode.NO_INPUT, *arguments)
    path.write_text(TOKEN, encoding="utf-8")
    path.chmod(0o644)
    told = shell.fails(ExitCode.NO_PERMISSION, *arguments)
    assert "chmod 600" in told and TOKEN not in told
    path.chmod(0o600)
    path.write_text("short", encoding="utf-8")
    assert "there is no token" in shell.fails(ExitCode.BAD_DATA, *arguments)
    assert run_command(["reference-server", "--token-file", "credential:absent"]) == ExitCode.NO_INPUT


def test_an_address_in_use_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run_command(["reference-server", "--listen", address]) == ExitCode.BAD_CONFIG
    assert f"{address} cannot be listened on" in capsys.readouterr().err
