"""Nodes with a real p2pd each, that know one another."""

from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from swarmd.config import Config, DhtConfig, SwarmConfig
from swarmd.dht.adapters import HivemindNetwork, HivemindRecordStore
from swarmd.dht.identity.identity import Identity, create_identity
from swarmd.dht.p2p.node import DhtNode, NodeRun, NodeSettings
from swarmd.dht.p2p.peers import AddressBook, RejoinLoop
from swarmd.dht.publisher import OwnRecordFile, Publisher
from swarmd.dht.store.lookup import look_up_key
from swarmd.dht.store.validator import Validator, install_guards
from swarmd.dht.swarm_view import SwarmView
from swarmd.worker.runtime import LoopRuntime
from tests.dht.driver import until
from tests.dht.making import SWARM


class Single:
    """A node with its rejoin loop and publisher."""

    def __init__(self, root: Path, coordinator: str = "", bootstrap: tuple[str, ...] = (), call_s: float = 5.0) -> None:
        root.mkdir()
        install_guards()
        self.identity: Identity = create_identity(root / "identity.key")
        self.coordinator = coordinator
        self.downs: list[str] = []
        self.told: list[Any] = []
        view = self.view_of(300.0)
        dht = DhtConfig(listen=("/ip4/127.0.0.1/tcp/0",))
        settings = NodeSettings(root / "identity.key", root / "run", self.identity.peer_id, dht, call_s)
        validator = Validator(view.policy, view.rejections)
        self.node = DhtNode(settings, validator, self.downs.append)
        self.records = HivemindRecordStore(view, self.node, validator)
        self.rejoin = RejoinLoop(self.node, AddressBook(root / "peers.json", bootstrap, self.identity.peer_id))
        self.network = HivemindNetwork(self.node, self.identity)
        self.publisher = self.publish_from(root / "records.bin")

    def view_of(self, record_s: float) -> SwarmView:
        """What the node knows of its swarm; its records live so long."""
        swarm, dht = SwarmConfig(id=SWARM, coordinator=self.coordinator), DhtConfig(record_s=record_s)
        config = Config(swarm, role="follower" if self.coordinator else "coordinator", dht=dht)
        return SwarmView(config, self.identity.peer_id, "nonce", LoopRuntime(), Random(), lambda event: None)

    def publish_from(self, path: Path, record_s: float = 300.0) -> Publisher:
        """A publisher that remembers what a file says."""
        gossip: Any = SimpleNamespace(announce_stored=self.told.append, announce_renewed=self.told.append)
        return Publisher(self.view_of(record_s), self.network, OwnRecordFile(path, SWARM), gossip)

    @property
    def run(self) -> NodeRun:
        assert self.node.p2pd_run is not None
        return self.node.p2pd_run

    async def address(self) -> str:
        await self.node.wait_until_up()
        return (await self.node.addresses())[0]

    async def read(self, name: str) -> dict[str, Any]:
        found = await self.node.call(lambda run: look_up_key(run, name))
        return found.records


Start = Callable[..., Coroutine[Any, Any, Single]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with anyio.create_task_group() as tasks:
        singles: list[Single] = []

        async def begin(*args: Any, **kwargs: Any) -> Single:
            single = Single(tmp_path / str(len(singles)), *args, **kwargs)
            singles.append(single)
            tasks.start_soon(single.node.run)
            await single.node.wait_until_up()
            return single

        yield begin
        tasks.cancel_scope.cancel()
    for number in range(len(singles)):
        assert list((tmp_path / str(number) / "run").iterdir()) == []


async def trio(start: Start) -> tuple[Single, Single, Single]:
    """Three nodes that know one another."""
    one, two = await pair(start)
    three = await start(one.identity.peer_id, (await one.address(), await two.address()))
    await until(lambda: one.node.peer_count == two.node.peer_count == three.node.peer_count == 2)
    return one, two, three


async def pair(start: Start, **kwargs: Any) -> tuple[Single, Single]:
    one = await start()
    two = await start(one.identity.peer_id, (await one.address(),), **kwargs)
    await until(lambda: one.node.peer_count and two.node.peer_count)
    return one, two
