"""Plays the daemon for network workers under test."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from swarmd.config import Config, CoordinatorConfig, DhtConfig, SwarmConfig
from swarmd.core.commands import Register
from swarmd.core.events import Event, LinkUp, Registered
from swarmd.core.values import RolloutsRef
from swarmd.dht.identity.identity import create_identity, read_identity
from swarmd.dht.p2p.sockets import socket_directory
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from tests.driver import WorkerDriver
from tests.forked import NETWORK

SWARM = "test-swarm"


class Driver(WorkerDriver):
    """One node's data directory and, while it runs, its network worker.

    Args:
        root: data directory; made, with an identity, when new.
        coordinator: peer id of the coordinator; empty makes this node the coordinator.
        bootstrap: addresses.
        dht: further settings of `DhtConfig`.
    """

    imported = NETWORK
    module = "swarmd.dht.worker"

    def __init__(self, root: Path, coordinator: str = "", bootstrap: tuple[str, ...] = (), **dht: Any) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.paths = NodeDirectory(root)
        self.blobs = BlobStore(self.paths.blobs)
        key = root / "identity.key"
        config = Config(
            swarm=SwarmConfig(id=SWARM, coordinator=coordinator),
            name=root.name,
            role="follower" if coordinator else "coordinator",
            dht=DhtConfig(**{"listen": ("/ip4/127.0.0.1/tcp/0",), "bootstrap": bootstrap, "poll_s": 2.0} | dht),
            coordinator=CoordinatorConfig(),
        )
        super().__init__(root, config, (read_identity(key) if key.exists() else create_identity(key)).peer_id)

    def time_of(self, event: Event) -> float:
        """When an event arrived, POSIX seconds."""
        return next(at for at, other in self.events if other is event)

    async def join(self) -> Driver:
        """Start the worker and become a member; again, if it ran before."""
        since = len(self.events)
        await self.start()
        await self.expect(LinkUp, since=since)
        await self.do(Register("register"))
        await self.expect(Registered, since=since)
        return self

    async def address(self) -> str:
        """The node's first address, once it is up."""
        return str((await self.expect(LinkUp)).addresses[0])

    def p2pd(self) -> int:
        """Pid of the worker's p2pd."""
        note = msgspec.json.decode((socket_directory(self.paths.sockets) / "p2pd.json").read_bytes())
        return int(note["pid"])

    def put(self, body: object, groups: int = 1, place: tuple[int, int] = (0, 0)) -> RolloutsRef:
        """Put a body into the blob store, as the trainer does."""
        encoded = msgspec.msgpack.encode(body)
        return RolloutsRef(self.peer_id, *place, self.blobs.put(encoded), len(encoded), groups)

    async def kill(self) -> None:
        """kill -9 of the worker alone, p2pd left to itself."""
        self.process.kill()
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
