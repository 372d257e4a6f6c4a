"""Plays the daemon for a worker under test: starts the real process, speaks frames, waits for events."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from swarmd.config import Config, encode
from swarmd.core.commands import Command
from swarmd.core.events import Event
from swarmd.worker.messages import (
    FaultMessage,
    FrameReader,
    FromWorker,
    ObservedMessage,
    PerformMessage,
    PingMessage,
    PongMessage,
    ProgressMessage,
    StartMessage,
    StopMessage,
    ToWorker,
    encode_frame,
)
from tests.forked import ForkedStreams, fork

E = TypeVar("E", bound=Any)


class WorkerDriver:
    """One node's data directory, which is made, and, while it runs, a worker of the node."""

    imported: ClassVar[Sequence[str]]  # what the worker imports that takes long
    module: str

    def __init__(self, root: Path, config: Config, peer: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.config = config
        self.peer_id = peer
        self.events: list[tuple[float, Event]] = []  # with the time of arrival
        self.faults: list[FaultMessage] = []
        self.progress: list[ProgressMessage] = []
        self.pongs = 0
        self.errors = b""
        self._grown = asyncio.Event()
        self._process: ForkedStreams | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def process(self) -> ForkedStreams:
        assert self._process is not None, "the worker was not started"
        return self._process

    async def start(self) -> Self:
        """Start the worker process and send `Start`."""
        self._process = await fork(self.imported, self.module)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]
        await self.send(StartMessage(encode(self.config), str(self.root), self.peer_id))
        return self

    async def _read(self) -> None:
        reader: FrameReader[FromWorker] = FrameReader(FromWorker)  # type: ignore[arg-type]
        while chunk := await self.process.stdout.read(65536):
            for message in reader.read_messages(chunk):
                if isinstance(message, ObservedMessage):
                    self.events.append((time.time(), message.event))
                elif isinstance(message, FaultMessage):
                    self.faults.append(message)
                elif isinstance(message, ProgressMessage):
                    self.progress.append(message)
                elif isinstance(message, PongMessage):
                    self.pongs += 1
            self._grow()
        self._grow()

    def _grow(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def _read_errors(self) -> None:
        while chunk := await self.process.stderr.read(65536):
            self.errors = (self.errors + chunk)[-65536:]

    async def send(self, message: ToWorker) -> None:
        """Send a frame."""
        self.process.stdin.write(encode_frame(message))
        await self.process.stdin.drain()

    async def do(self, command: Command) -> None:
        """Send a command."""
        await self.send(PerformMessage(command))

    async def ping(self) -> None:
        """Send a ping."""
        await self.send(PingMessage(1))

    def seen(self, kind: type[E], since: int = 0, **wanted: Any) -> list[E]:
        """Events of a kind, with these values, from the `since`th event on."""
        return [
            event
            for _, event in self.events[since:]
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in wanted.items())
        ]

    async def expect(self, kind: type[E], timeout_s: float = 40.0, since: int = 0, **wanted: Any) -> E:
        """Wait for such an event; gives the last."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.seen(kind, since, **wanted)):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or (self.process.returncode is not None and self.process.stdout.at_eof()):
                raise AssertionError(
                    f"{self.root.name}: no {kind.__name__}{wanted or ''} in {timeout_s} s; "
                    f"status {self.process.returncode}, events {[event for _, event in self.events]}, "
                    f"faults {self.faults}, stderr: {self.errors.decode()[-3000:]}"
                )
            await self.wait_for_more(min(remaining_s, 0.5))
        return found[-1]

    async def wait_for_more(self, within_s: float) -> None:
        """Wait until something has been said, or so long."""
        waiter = asyncio.ensure_future(self._grown.wait())
        await asyncio.wait({waiter}, timeout=within_s)
        waiter.cancel()

    def place_of(self, event: Event) -> int:
        """How many events came before this one."""
        return next(place for place, (_, other) in enumerate(self.events) if other is event)

    async def stop(self, grace_s: float = 10.0) -> int:
        """An orderly stop. Returns the exit status."""
        if self.process.returncode is None:
            await self.send(StopMessage(grace_s))
        return await self.wait(grace_s)

    async def wait(self, timeout_s: float = 40.0) -> int:
        """Wait for the worker to end. Returns its exit status."""
        status = await asyncio.wait_for(self.process.wait(), timeout_s)
        await asyncio.gather(*self._tasks)
        return status

    async def clean(self) -> None:
        """End whatever is left of it, after a test."""
        if self._process is not None and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            await self.wait()
