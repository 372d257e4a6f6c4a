"""`swarmd reference-server`: what its options mean. How it serves is in tests/training/reference."""

import socket
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.errors import ExitCode

TOKEN = "canary-token-0123456789abcdef"


def test_strangers_are_never_served_without_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("0.0.0.0", "[::]", "192.0.2.1", "reference.example.org"):
        assert run_command(["reference-server", "--listen", f"{host}:0"]) == ExitCode.BAD_CONFIG
        assert "asks for no token" in capsys.readouterr().err


def test_a_token_is_read_from_a_private_file_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "token"
    arguments = ["reference-server", "--token-file", str(path)]
    assert run_command(arguments) == ExitCode.NO_INPUT
    assert "openssl rand" in capsys.readouterr().err
    path.write_text(TOKEN, encoding="utf-8")
    path.chmod(0o644)
    assert run_command(arguments) == ExitCode.NO_PERMISSION
    told = capsys.readouterr().err
    assert "chmod 600" in told and TOKEN not in told
    path.chmod(0o600)
    path.write_text("short", encoding="utf-8")
    assert run_command(arguments) == ExitCode.BAD_DATA
    assert "there is no token" in capsys.readouterr().err
    assert run_command(["reference-server", "--token-file", "credential:absent"]) == ExitCode.NO_INPUT


def test_an_address_in_use_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run_command(["reference-server", "--listen", address]) == ExitCode.BAD_CONFIG
    assert f"{address} cannot be listened on" in capsys.readouterr().err
