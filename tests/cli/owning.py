"""What tests of one's own swarm stand on: a chain, accounts with coins, and the command line in this process."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from swarmd.cli import run_command
from swarmd.dht.identity.identity import generate_identity
from swarmd.manifest import Manifest, read_manifest
from tests.contracts.chain import connect

STRANGER = generate_identity().peer_id
LISTEN = "/ip4/127.0.0.1/tcp/38331"
COIN_WEI = 10**18


class Said(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Shell:
    """Runs swarmd's commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], root: Path) -> None:
        self._capsys = capsys
        self.root = root

    def __call__(self, *arguments: object) -> Said:
        self._capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        return Said(code, *self._capsys.readouterr())

    def well(self, *arguments: object) -> str:
        """What a command prints that must succeed."""
        said = self(*arguments)
        assert said.code == 0, said
        return said.out

    def fails(self, code: int, *arguments: object) -> str:
        """The error of a command that must end with this code."""
        said = self(*arguments)
        assert said.code == code, said
        assert "Traceback" not in said.err
        return said.err

    def manifest(self, name: str) -> Manifest:
        return read_manifest(self.root / name / "swarm.toml")


class OwnChain:
    """A chain that the test owns."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.w3 = connect(url)

    def say(self, method: str, *params: Any) -> Any:
        return self.w3.provider.make_request(method, list(params))["result"]  # type: ignore[arg-type]

    def fund(self, directory: Path, coins: float = 1.0) -> str:
        """Give coins to the account of a node; returns its address."""
        address = self.address(directory)
        self.say("anvil_setBalance", address, hex(int(coins * COIN_WEI)))
        return address

    def address(self, directory: Path) -> str:
        said = json.loads((directory / "account.json").read_text())["address"]
        return str(self.w3.to_checksum_address(said))

    def sent_by(self, directory: Path) -> int:
        return int(self.w3.eth.get_transaction_count(self.address(directory)))


def files(directory: Path) -> dict[str, bytes]:
    """The contents of a directory's files by name."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
