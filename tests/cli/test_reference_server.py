"""`swarmd reference-server`: what its options mean. How it serves is in tests/training/reference."""

import socket

import pytest

from swarmd.cli import run_command
from swarmd.errors import ExitCode
from tests.cli.owning import Shell


def test_strangers_are_never_served_without_a_token(shell: Shell) -> None:
    for host in ("0.0.0.0", "[::]", "192.0.2.1", "reference.example.org"):
        assert "asks for no token" in shell.fails(ExitCode.BAD_CONFIG, "reference-server", "--listen", f"{host}:0")


def test_an_address_in_use_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run_command(["reference-server", "--listen", address]) == ExitCode.BAD_CONFIG
    assert f"{address} cannot be listened on" in capsys.readouterr().err
