"""What tests of one's own swarm stand on: a chain, accounts with coins, and the command line in this process."""

import json
import os
import pty
import select
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from swarmd.cli import run_command
from swarmd.dht.identity.identity import generate_identity
from swarmd.errors import ExitCode
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

    def command(self, directory: Path, *options: object) -> tuple[object, ...]:
        """The command that makes a swarm on this chain."""
        return ("swarm", "new", "Digits", "--dir", directory, "--rpc", self.url, "--listen", LISTEN, *options)

    def make(self, shell: Shell, *options: object) -> Path:
        """The directory of a swarm on this chain, whose first run finds an account without coins."""
        command = self.command(shell.root / "a", *options)
        told = shell.fails(ExitCode.FAILURE, *command)
        assert "has 0 coins" in told and "run the same command again" in told
        self.fund(shell.root / "a")
        shell.well(*command)
        return shell.root / "a"

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


class Terminal:
    """A person at a terminal of their own."""

    def __init__(self, *arguments: object) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            command = [sys.executable, "-m", "swarmd", *map(str, arguments)]
            os.execve(sys.executable, command, os.environ | {"TERM": "dumb", "COLUMNS": "80"})
        self.seen = ""
        self._read_to = 0

    def answer(self, question: str, answer: str) -> None:
        """Wait for a question, then type."""
        until = time.monotonic() + 120.0
        while question not in self.seen[self._read_to :]:
            assert time.monotonic() < until and self._read(), f"{question!r} was not asked:\n{self.seen}"
        self._read_to = len(self.seen)
        os.write(self.descriptor, f"{answer}\n".encode("utf-8", "surrogateescape"))

    def _read(self) -> bool:
        if not select.select([self.descriptor], [], [], 1.0)[0]:
            return True
        try:
            chunk = os.read(self.descriptor, 65536)
        except OSError:  # the other end is closed
            return False
        self.seen += chunk.decode("utf-8", "replace")
        return bool(chunk)

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            continue
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
