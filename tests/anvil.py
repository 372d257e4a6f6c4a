"""A real Ethereum node for tests: anvil, from npm, on a free port of loopback."""

import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tests.programs import path_of

LINES_KEPT = 200
START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 5.0


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
        ProgramMissing: there is no anvil.
        AnvilFailed: it did not start.
    """
    command = [str(path_of("anvil")), "--host", "127.0.0.1", "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = _Output(process)
    try:
        yield f"http://{output.wait_for_address()}"
    finally:
        process.kill()
        process.wait(STOP_DEADLINE_S)
        output.close()
