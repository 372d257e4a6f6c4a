"""A trainer worker as the daemon sees it: a process that exchanges frames."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import TypeVar

from swarmd.config import Config, encode
from swarmd.worker.messages import FrameReader, FromWorker, ObservedMessage, StartMessage, ToWorker, encode_frame
from tests.forked import ALL, Forked, order_fork, start_server

LOAD_S = 90.0
Kind = TypeVar("Kind")


class Worker:
    """A running trainer worker, forked from a process that has imported all; whole nodes have theirs executed."""

    def __init__(self, config: Config, directory: Path, errors: Path) -> None:
        self.errors = errors
        with errors.open("wb") as told:
            server = start_server(*ALL)
            pipes = order_fork(server, "swarmd.training.worker", (), os.environ, stderr=told.fileno())
        self.process = Forked(pipes)
        self._reader: FrameReader[FromWorker] = FrameReader(FromWorker)  # type: ignore[arg-type]
        self._unread: list[FromWorker] = []
        self.seen: list[FromWorker] = []
        self.send(StartMessage(encode(config), str(directory), "peer"))

    def send(self, message: ToWorker) -> None:
        os.write(self.process.stdin.fileno(), encode_frame(message))

    def receive(self, within_s: float) -> FromWorker:
        """The next message."""
        deadline = time.monotonic() + within_s
        while not self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert chunk, f"no message within {within_s} s: {self.errors.read_text()[-3000:]}"
            self._unread += self._reader.read_messages(chunk)
        self.seen.append(self._unread.pop(0))
        return self.seen[-1]

    def expect(self, kind: type[Kind], within_s: float = 60.0) -> Kind:
        """The next message of a kind, or the next observed event of that kind."""
        deadline = time.monotonic() + within_s
        while True:
            message = self.receive(max(0.1, deadline - time.monotonic()))
            found = message.event if isinstance(message, ObservedMessage) else message
            if isinstance(found, kind):
                return found

    def end(self, within_s: float = 20.0) -> int:
        return self.process.wait(within_s)
