"""A real Ethereum node for tests: anvil, from npm, on a free port of loopback."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

NODE_MODULES = Path(__file__).resolve().parent.parent / "contracts" / "node_modules"
LINES_KEPT = 200
START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 5.0


class AnvilMissing(Exception):
    """There is no anvil; the message says how to get it."""


def find_anvil() -> Path:
    """The binary that SWARMD_ANVIL names, else the one that npm installed. Raises AnvilMissing."""
    named = os.environ.get("SWARMD_ANVIL")
    found = [Path(named)] if named else sorted(NODE_MODULES.glob("@foundry-rs/anvil-*/bin/anvil"))
    for path in found:
        if os.access(path, os.X_OK) and path.is_file():
            return path
    raise AnvilMissing(
        f"SWARMD_ANVIL={named} is no program"
        if named
        else "tests of the chain need anvil: run `make contracts-setup` (Linux on x86-64), or name it in SWARMD_ANVIL"
    )


class AnvilFailed(Exception):
    """anvil ended, or said nothing, before it listened; the message has what it printed."""


class _Output:
    """Reads what anvil prints, so that it never waits for a reader, and keeps the last lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.address = ""
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._started = Event()
        self._thread = Thread(target=self._read, args=(process,), daemon=True)
        self._thread.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as printed:
            for line in printed:
                self.lines.append(line)
                if line.startswith("Listening on "):
                    self.address = line.removeprefix("Listening on ").strip()
                    self._started.set()
        self._started.set()

    def wait_for_address(self) -> str:
        self._started.wait(START_DEADLINE_S)
        if not self.address:
            raise AnvilFailed(f"anvil did not start:\n{''.join(self.lines)}")
        return self.address

    def close(self) -> None:
        self._thread.join(STOP_DEADLINE_S)


@contextmanager
def running_anvil(*options: str, port: int = 0) -> Iterator[str]:
    """Runs anvil, with ten funded and unlocked accounts, until the block ends; gives the URL of its endpoint.

    Args:
        options: of anvil's command line, beyond host and port.
        port: 0 for any free one.

    Raises:
        AnvilMissing: there is no binary.
        AnvilFailed: it did not start.
    """
    command = [str(find_anvil()), "--host", "127.0.0.1", "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = _Output(process)
    try:
        yield f"http://{output.wait_for_address()}"
    finally:
        process.kill()
        process.wait(STOP_DEADLINE_S)
        output.close()
