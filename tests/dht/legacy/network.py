"""A legacy network for tests: swarmd's real network workers and v0.4's nodes, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from swarmd.core.commands import Register
from swarmd.core.events import LinkUp, Registered
from swarmd.core.values import RolloutsRef
from swarmd.dht.identity.rsa import create_rsa_identity
from swarmd.swarms.rollouts import Group, Quoted, Rollouts, decode_rollouts, encode_rollouts
from tests.dht.driver import SWARM, Driver

SCRIPT = Path(__file__).with_name("v04.py")


class LegacyDriver(Driver):
    """`Driver` for a node with `dht.records = "legacy"`."""

    def __init__(self, root: Path, coordinator: str = "", bootstrap: tuple[str, ...] = (), **dht: Any) -> None:
        root.mkdir(parents=True, exist_ok=True)
        key = root / "identity.key"
        if not key.exists():
            create_rsa_identity(key)
        super().__init__(root, coordinator, bootstrap, **{"records": "legacy", "poll_s": 1.0} | dht)
        self.config = replace(self.config, swarm=replace(self.config.swarm, stages=3))

    def publishable(self, round: int, stage: int, total: float, groups: list[Group]) -> RolloutsRef:
        """Put a body into the blob store, as the trainer does."""
        body = encode_rollouts(Rollouts(1, SWARM, self.peer_id, round, stage, tuple(groups), total))
        return RolloutsRef(self.peer_id, round, stage, self.blobs.put(body), len(body), len(groups))

    def body_of(self, ref: RolloutsRef) -> Rollouts:
        """A gathered body."""
        return decode_rollouts(self.blobs.get(ref.digest))


def group_of(index: int, question: str, texts: list[str], choice: int, answer: str = "4", prompt: str = "") -> Group:
    """A group with its question in words."""
    return Group("gsm8k", "digest", 7, index, tuple(texts), quoted=Quoted(question, answer, prompt, choice))


class V04:
    """A v0.4 node in a process of its own."""

    def __init__(self, identity: Path) -> None:
        self._identity = identity
        self._process: asyncio.subprocess.Process | None = None
        self.peer_id = ""
        self.address = ""

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def start(self, *bootstrap: str) -> V04:
        """Start it and wait until it has joined."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(str(SCRIPT), str(self._identity), *bootstrap),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        began = await self._answer(40.0)
        self.peer_id, self.address = began["peer"], began["addresses"][0]
        return self

    async def _answer(self, timeout_s: float) -> Any:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), timeout_s)
        assert line, "the v0.4 node has ended"
        return json.loads(line)

    async def do(self, order: str, **parts: Any) -> Any:
        """Have it do something. Raises ValueError with what went wrong there."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": order, **parts}).encode() + b"\n")
        await self.process.stdin.drain()
        answer = await self._answer(40.0)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["ok"]

    async def clean(self) -> None:
        """End it with all its processes."""
        if self._process is not None and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()


class Network:
    """Nodes of both kinds that are cleaned up after the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes: list[LegacyDriver | V04] = []

    async def v04(self, name: str, *bootstrap: str) -> V04:
        node = V04(self.root / f"{name}.pem")
        self.nodes.append(node)
        return await node.start(*bootstrap)

    async def ours(self, name: str, coordinator: str = "", *bootstrap: str, **dht: Any) -> LegacyDriver:
        node = LegacyDriver(self.root / name, coordinator, bootstrap, **dht)
        self.nodes.append(node)
        await node.start()
        await node.expect(LinkUp)
        await node.do(Register("register"))
        await node.expect(Registered)
        return node

    async def clean(self) -> None:
        for node in self.nodes:
            await node.clean()
