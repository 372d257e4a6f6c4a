"""The daemons of a local swarm as child processes: started, watched, stopped with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from swarmd.cli.local_swarm.layout import LocalNode

OUTPUT_BYTES_MAX = 8 * 1024 * 1024  # a longer daemon.log is set aside as daemon.log.1 when the node starts
TAIL_BYTES = 16 * 1024
KILLED_S = 5.0  # longest wait for a killed daemon to be gone


class DaemonProcess:
    """`swarmd run` of one node, in a session of its own, so that a terminal's Ctrl-C reaches only who started it."""

    def __init__(self, place: LocalNode) -> None:
        self.place = place
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        """What is run."""
        return [sys.executable, "-m", "swarmd", "run", "--config", str(self.place.config)]

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def exit_code(self) -> int | None:
        """None while it runs or was never started; negative the signal that ended it."""
        return self._process.poll() if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the daemon; what it prints goes to the end of its daemon.log."""
        self._set_output_aside()
        with self.place.output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    def _set_output_aside(self) -> None:
        output = self.place.output
        if output.exists() and output.stat().st_size > OUTPUT_BYTES_MAX:
            output.replace(output.with_suffix(".log.1"))

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.running and self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def wait(self, longest_s: float) -> bool:
        """Wait for its end. False when it still runs after `longest_s`."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, longest_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_lines(self, count: int = 8) -> list[str]:
        """The end of what the daemon printed."""
        try:
            with self.place.output.open("rb") as output:
                output.seek(max(0, os.fstat(output.fileno()).st_size - TAIL_BYTES))
                return output.read().decode("utf-8", "replace").splitlines()[-count:]
        except FileNotFoundError:
            return []


def stop_all(daemons: Sequence[DaemonProcess], longest_s: float) -> None:
    """Ask all to end, wait for all together, kill what is left. Their `exit_code` tells how each ended."""
    until = time.monotonic() + longest_s
    for daemon in daemons:
        daemon.send(signal.SIGTERM)
    late = [daemon for daemon in daemons if not daemon.wait(until - time.monotonic())]
    for daemon in late:
        daemon.send(signal.SIGKILL)
    for daemon in late:
        daemon.wait(KILLED_S)
