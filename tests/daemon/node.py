"""A whole daemon with scripted workers, as a child process of the test."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from swarmd.core.events import Event
from swarmd.eventlog.reader import read_commits
from swarmd.observe.control import ControlError, send_request
from swarmd.paths import NodeDirectory

PATIENCE_S = 60.0  # longest wait where no time is what is looked at: other tests run beside
RUNNER = Path(__file__).with_name("run_fake.py")
CONFIG = """
role = "coordinator"
[swarm]
id = "test"
[coordinator]
rounds_max = {rounds}
stage_s = 60
start_s = {start_s}
[workers]
silent_s = {silent_s}
stop_s = {stop_s}
restarts_max = {restarts_max}
[storage]
free_bytes_min = {free_bytes_min}
[logs]
level = "debug"
"""
T = TypeVar("T")


class FakeNode:
    """One data directory and the daemons that run on it."""

    def __init__(self, directory: Path, data: Path | None = None, **settings: float) -> None:
        defaults: dict[str, float] = {
            "rounds": 2,
            "start_s": 60,
            "silent_s": 5.0,
            "stop_s": 2.0,
            "restarts_max": 8,
            "free_bytes_min": 0,
        }
        self.config = directory / "node.toml"
        self.config.write_text(CONFIG.format(**(defaults | settings)))
        self.paths = NodeDirectory(data or directory / "data")
        self.output = directory / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, network: str = "ok", trainer: str = "ok", chain: str = "", **environ: str) -> None:
        modes = [network, trainer, *([chain] if chain else [])]
        argv = [sys.executable, str(RUNNER), str(self.config), str(self.paths.root), *modes]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                argv, stdout=output, stderr=output, start_new_session=True, env=os.environ | environ
            )

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, longest_s: float = PATIENCE_S) -> int:
        assert self.process
        return self.process.wait(longest_s)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def status(self) -> dict[str, Any]:
        """The daemon's status; empty when it does not answer."""
        try:
            answer: dict[str, Any] = json.loads(send_request(self.paths.control, "status"))
        except ControlError:
            return {}
        return answer

    def events(self) -> list[Event]:
        if not self.paths.events.is_dir():
            return []
        return [event for commit in read_commits(self.paths.events) for event in commit.events]

    def events_of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events() if isinstance(event, kind)]

    def lines(self) -> list[dict[str, Any]]:
        """Log lines so far."""
        text = self.output.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def until(self, condition: Callable[[], T], longest_s: float = PATIENCE_S) -> T:
        """Wait for a condition; fails with the daemon's output."""
        end = time.monotonic() + longest_s
        while time.monotonic() < end:
            if met := condition():
                return met
            time.sleep(0.03)
        raise AssertionError(f"not met within {longest_s:g} s; the daemon said:\n{self.output.read_text()[-4000:]}")

    def run_rounds(self) -> None:
        """Start, and wait until the scripted swarm has run its rounds."""
        self.start()
        self.until_finished()

    def until_finished(self) -> None:
        """Wait until the scripted swarm has run its rounds."""
        self.until(lambda: self.status().get("round", {}).get("reason") == "the swarm has run its rounds")

    def worker_pid(self, layer: str) -> int:
        """Pid of a worker that runs and has spoken."""

        def pid() -> int:
            worker = self.status().get(layer, {}).get("worker", {})
            return int(worker["pid"]) if worker.get("answering") else 0

        return self.until(pid)

    def end(self) -> None:
        """Whatever happened, leave nothing behind."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(8)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def fake_node(directory: Path, data: Path | None = None, **settings: float) -> Iterator[FakeNode]:
    node = FakeNode(directory, data, **settings)
    try:
        yield node
    finally:
        node.end()


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
