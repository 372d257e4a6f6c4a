"""Plays the daemon for network workers under test: starts the real process, speaks frames, waits for events."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from swarmd.config import Config, CoordinatorConfig, DhtConfig, SwarmConfig, encode
from swarmd.core.commands import Command
from swarmd.core.events import Event, LinkUp
from swarmd.core.values import RolloutsRef
from swarmd.dht.identity.identity import create_identity, read_identity
from swarmd.dht.p2p.sockets import socket_place
from swarmd.eventlog.blobs import Blobs
from swarmd.paths import NodeDirectory
from swarmd.worker.messages import (
    Fault,
    FrameReader,
    FromWorker,
    Observed,
    Perform,
    Ping,
    Start,
    Stop,
    ToWorker,
    encode_frame,
)
from tests.forked import NETWORK, ForkedStreams, fork

SWARM = "test-swarm"
E = TypeVar("E", bound=Any)


class Driver:
    """One node's data directory and, while it runs, its network worker.

    Args:
        root: data directory; made, with an identity, when new.
        coordinator: peer id of the coordinator; empty makes this node the coordinator.
        bootstrap: addresses.
        dht: further settings of `DhtConfig`.
    """

    module = "swarmd.dht.worker"

    def __init__(self, root: Path, coordinator: str = "", bootstrap: tuple[str, ...] = (), **dht: Any) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.paths = NodeDirectory(root)
        key = root / "identity.key"
        self.peer_id = (read_identity(key) if key.exists() else create_identity(key)).peer_id
        self.config = Config(
            swarm=SwarmConfig(id=SWARM, coordinator=coordinator),
            name=root.name,
            role="follower" if coordinator else "coordinator",
            dht=DhtConfig(**{"listen": ("/ip4/127.0.0.1/tcp/0",), "bootstrap": bootstrap, "poll_s": 2.0} | dht),
            coordinator=CoordinatorConfig(),
        )
        self.blobs = Blobs(self.paths.blobs)
        self.events: list[tuple[float, Event]] = []
        self.faults: list[Fault] = []
        self.errors = b""
        self._grown = asyncio.Event()
        self._process: ForkedStreams | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def process(self) -> ForkedStreams:
        assert self._process is not None, "the worker was not started"
        return self._process

    async def start(self) -> Driver:
        """Start the worker process and send `Start`."""
        self._process = await fork(NETWORK, self.module)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]
        await self.send(Start(encode(self.config), str(self.paths.root), self.peer_id))
        return self

    async def _read(self) -> None:
        reader: FrameReader[FromWorker] = FrameReader(FromWorker)  # type: ignore[arg-type]
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(65536):
            for message in reader.feed(chunk):
                if isinstance(message, Observed):
                    self.events.append((time.time(), message.event))
                elif isinstance(message, Fault):
                    self.faults.append(message)
            self._grow()
        self._grow()

    def _grow(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(65536):
            self.errors = (self.errors + chunk)[-65536:]

    async def send(self, message: ToWorker) -> None:
        """Send a frame."""
        await self.send_bytes(encode_frame(message))

    async def send_bytes(self, encoded: bytes) -> None:
        """Send bytes as they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(encoded)
        await self.process.stdin.drain()

    async def do(self, command: Command) -> None:
        """Send a command."""
        await self.send(Perform(command))

    def seen(self, kind: type[E], since: int = 0, **wanted: Any) -> list[E]:
        """Events of a kind, with these values, from the `since`th event on."""
        return [
            event
            for _, event in self.events[since:]
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in wanted.items())
        ]

    async def expect(self, kind: type[E], timeout_s: float = 40.0, since: int = 0, **wanted: Any) -> E:
        """Wait for such an event."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.seen(kind, since, **wanted)):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or (self.process.returncode is not None and self.process.stdout.at_eof()):
                raise AssertionError(
                    f"{self.paths.root.name}: no {kind.__name__}{wanted or ''} in {timeout_s} s; "
                    f"status {self.process.returncode}, events {[event for _, event in self.events]}, "
                    f"faults {self.faults}, stderr: {self.errors.decode()[-3000:]}"
                )
            waiter = asyncio.ensure_future(self._grown.wait())
            await asyncio.wait({waiter}, timeout=min(remaining_s, 0.5))
            waiter.cancel()
        return found[-1]

    def time_of(self, event: Event) -> float:
        """When an event arrived, POSIX seconds."""
        return next(at for at, other in self.events if other is event)

    async def address(self) -> str:
        """The node's first address, once it is up."""
        return str((await self.expect(LinkUp)).addresses[0])

    def p2pd(self) -> int:
        """Pid of the worker's p2pd."""
        note = msgspec.json.decode((socket_place(self.paths.sockets) / "p2pd.json").read_bytes())
        return int(note["pid"])

    def put(self, body: object, groups: int = 1, place: tuple[int, int] = (0, 0)) -> RolloutsRef:
        """Put a body into the blob store, as the trainer does."""
        encoded = msgspec.msgpack.encode(body)
        return RolloutsRef(self.peer_id, *place, self.blobs.put(encoded), len(encoded), groups)

    async def stop(self, grace_s: float = 10.0) -> int:
        """An orderly stop. Returns the exit status."""
        if self.process.returncode is None:
            await self.send(Stop(grace_s))
        return await self.wait(grace_s)

    async def wait(self, timeout_s: float = 40.0) -> int:
        """Wait for the worker to end. Returns its exit status."""
        status = await asyncio.wait_for(self.process.wait(), timeout_s)
        await asyncio.gather(*self._tasks)
        return status

    async def ping(self) -> None:
        """Send a ping."""
        await self.send(Ping(1))

    async def kill(self) -> None:
        """kill -9 of the worker alone, p2pd left to itself."""
        self.process.kill()
        await self.wait()

    async def clean(self) -> None:
        """End whatever is left of it, after a test."""
        if self._process is not None and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            await self.wait()


def is_alive(pid: int) -> bool:
    """Does a process run (zombies do not)?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def processes_naming(path: Path) -> list[Path]:
    """Processes with a path in their command line, p2pd's socket directory for one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(path).encode() in (process / "cmdline").read_bytes():
                found.append(process)
    return found


async def until(condition: Any, timeout_s: float = 40.0) -> None:
    """Wait until `condition()` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.02)
