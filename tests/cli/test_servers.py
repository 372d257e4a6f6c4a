"""`swarmd signer` and `swarmd reference-server`: what their options mean. How they serve is in tests/chain
and tests/training/reference.
"""

import socket

import pytest

from swarmd.cli import run_command
from swarmd.errors import ConfigError, ExitCode
from swarmd.http_server import parse_listen
from tests.cli.owning import Shell


@pytest.mark.parametrize(
    "text", ["", "3000", ":3000", "127.0.0.1", "127.0.0.1:", "h:65536", "h:-1", "::1:3000", "a b:1"]
)
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_listen(text, 3000)


def test_a_contract_that_is_no_address_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--rpc", "http://127.0.0.1:1", "--chain-id", "1", "--contract", "0x11", "--org", "o")
    assert run_command(["signer", *options]) == ExitCode.BAD_CONFIG
    assert capsys.readouterr().err.startswith("error: --contract: '0x11' is not an address\nfix: Write it as 0x")


@pytest.mark.parametrize(
    ("named", "told"),
    [
        (("--org", ""), "no organisation is named"),
        (("--org", "o", "--org", " "), "no organisation is named"),
        (("--org", "o", "--peer", ""), "--peer '' is not a peer id"),
        (("--org", "o", "--peer", "Qm1,Qm2"), "--peer 'Qm1,Qm2' is not a peer id"),
    ],
    ids=["no org", "blank org", "no peer", "list of peers"],
)
def test_a_name_that_no_request_can_have_is_told(
    named: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a variable of the shell that is not set. With `--listen none` no signer starts where it is not told."""
    monkeypatch.setattr("swarmd.cli.servers.disable_core_dumps", lambda: None)
    options = ("--rpc", "http://127.0.0.1:1", "--chain-id", "1", "--contract", f"0x{'12' * 20}", "--listen", "none")
    assert run_command(["signer", *options, *named]) == ExitCode.BAD_CONFIG
    assert told in capsys.readouterr().err


# --- the reference server ---


def test_strangers_are_never_served_without_a_token(shell: Shell) -> None:
    for host in ("0.0.0.0", "[::]", "192.0.2.1", "reference.example.org"):
        assert "asks for no token" in shell.fails(ExitCode.BAD_CONFIG, "reference-server", "--listen", f"{host}:0")


def test_an_address_in_use_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run_command(["reference-server", "--listen", address]) == ExitCode.BAD_CONFIG
    assert f"{address} cannot be listened on" in capsys.readouterr().err
