"""Plays the daemon for a chain worker under test: starts the real process, speaks frames, waits for events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any, TypeVar

from swarmd.config import ChainConfig, Config, SwarmConfig, encode
from swarmd.core.commands import Command
from swarmd.core.events import Event
from swarmd.worker.messages import (
    Fault,
    FrameReader,
    FromWorker,
    Observed,
    Perform,
    Ping,
    Pong,
    Progress,
    Start,
    Stop,
    ToWorker,
    encode_frame,
)
from tests.forked import CHAIN, ForkedStreams, fork

E = TypeVar("E", bound=Any)


class ChainDriver:
    """One node's data directory and, while it runs, its chain worker."""

    def __init__(self, root: Path, chain: ChainConfig | None, peer: str = "me", stages: int = 1) -> None:
        self.root = root
        self.peer = peer
        self.config = Config(swarm=SwarmConfig(id="test-swarm", kind="test", stages=stages), chain=chain)
        self.events: list[Event] = []
        self.faults: list[Fault] = []
        self.progress: list[Progress] = []
        self.pongs = 0
        self.errors = b""
        self._grown = asyncio.Event()
        self._process: ForkedStreams | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def process(self) -> ForkedStreams:
        assert self._process is not None, "the worker was not started"
        return self._process

    async def start(self) -> ChainDriver:
        """Start the worker process and send `Start`."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._process = await fork(CHAIN, "swarmd.chain.worker")
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]
        await self.send(Start(encode(self.config), str(self.root), self.peer))
        return self

    async def _read(self) -> None:
        reader: FrameReader[FromWorker] = FrameReader(FromWorker)  # type: ignore[arg-type]
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(65536):
            for message in reader.feed(chunk):
                if isinstance(message, Observed):
                    self.events.append(message.event)
                elif isinstance(message, Fault):
                    self.faults.append(message)
                elif isinstance(message, Progress):
                    self.progress.append(message)
                elif isinstance(message, Pong):
                    self.pongs += 1
            self._grown.set()
        self._grown.set()

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(65536):
            self.errors = (self.errors + chunk)[-65536:]

    async def send(self, message: ToWorker) -> None:
        """Send a frame."""
        assert self.process.stdin is not None
        self.process.stdin.write(encode_frame(message))
        await self.process.stdin.drain()

    async def do(self, command: Command) -> None:
        """Send a command."""
        await self.send(Perform(command))

    async def ping(self) -> None:
        """Send a ping."""
        await self.send(Ping(1))

    def seen(self, kind: type[E], since: int = 0, **wanted: Any) -> list[E]:
        """Events of a kind, with these values, from the `since`th event on."""
        return [
            event
            for event in self.events[since:]
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in wanted.items())
        ]

    async def expect(self, kind: type[E], since: int = 0, timeout_s: float = 60.0, **wanted: Any) -> E:
        """Wait for such an event."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.seen(kind, since, **wanted)):
            left_s = deadline - time.monotonic()
            assert left_s > 0 and self.process.returncode is None, (
                f"no {kind.__name__}{wanted or ''}; status {self.process.returncode}, events {self.events}, "
                f"faults {self.faults}, stderr: {self.errors.decode()[-3000:]}"
            )
            self._grown.clear()
            waiter = asyncio.ensure_future(self._grown.wait())
            await asyncio.wait({waiter}, timeout=min(left_s, 0.2))
            waiter.cancel()
        return found[0]

    async def expect_figure(self, name: str, timeout_s: float = 60.0) -> dict[str, float]:
        """Wait for progress with a figure of this name; gives all figures of it."""
        deadline = time.monotonic() + timeout_s
        while not (found := [each.figures for each in self.progress if name in each.figures]):
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"no {name} in {self.progress[-3:]}, stderr: {self.errors.decode()[-3000:]}"
            self._grown.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._grown.wait(), min(left_s, 0.2))
        return found[0]

    async def stop(self, grace_s: float = 5.0) -> int:
        """An orderly stop. Returns the exit status."""
        await self.send(Stop(grace_s))
        return await self.wait(grace_s)

    async def wait(self, timeout_s: float = 60.0) -> int:
        """Wait for the worker to end. Returns its exit status."""
        status = await asyncio.wait_for(self.process.wait(), timeout_s)
        await asyncio.gather(*self._tasks)
        return status

    async def clean(self) -> None:
        """End whatever is left of it, after a test."""
        if self._process is not None and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            await self.wait()
