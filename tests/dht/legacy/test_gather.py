"""How much is gathered from how many, by v0.4's rules."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import anyio.lowlevel
import pytest

from swarmd.core.commands import Gather
from swarmd.core.events import Event, RolloutsGathered
from swarmd.dht.legacy import gather as module
from swarmd.dht.legacy.gather import REWARDS_BEAM, SAMPLES_MAX, LegacyGathering
from swarmd.dht.legacy.records import Output
from swarmd.dht.legacy.search import Latest
from swarmd.errors import NetworkDown, NoSpaceLeft, RecordRejected

pytestmark = pytest.mark.anyio


class Network:
    """A network of many peers, each with so many outputs, in place of a session."""

    def __init__(self, peers: int, outputs: int, answers: bool = True) -> None:
        self.peer_id, self.swarm, self.coordinating = "peer 0", "swarm", False
        self.config = SimpleNamespace(dht=SimpleNamespace(call_s=5.0))
        self.blobs = SimpleNamespace(put=lambda body: "digest")
        self.rewards = {f"peer {number}": Latest(float(number), 0.0) for number in range(peers)}
        self.outputs, self.answers = outputs, answers
        self.looks: list[float] = []
        self.asked: list[str] = []
        self.refused: list[str] = []
        self.events: list[Event] = []
        self.emit = self.events.append

    async def find_rewards(self, round: int, stage: int, beam: int, timeout_s: float) -> Any:
        assert (round, stage, beam) == (4, 0, REWARDS_BEAM) and timeout_s <= 5
        self.looks.append(time.monotonic())
        if not self.answers:
            raise NetworkDown("nobody")
        return SimpleNamespace(entries=self.rewards, answered={1: 1})

    async def find(self, name: str, read: Any, beam: int, timeout_s: float) -> Any:
        assert beam == 20
        self.asked.append(name)
        await anyio.lowlevel.checkpoint()
        made = {str(one): Latest(Output(1.0, f"{name} {one}", "", "", "text"), 0.0) for one in range(self.outputs)}
        return SimpleNamespace(entries=made)

    def refuse(self, error: RecordRejected) -> None:
        self.refused.append(error.reason)

    async def gather(self, wait_s: float = 3.0) -> RolloutsGathered:
        command = Gather("gather", 4, 1, 4, 0, time.time() + wait_s)
        await LegacyGathering(cast(Any, self), command).run()
        return cast(RolloutsGathered, self.events[-1])


async def test_at_most_two_hundred_samples_are_taken() -> None:
    network = Network(peers=30, outputs=20)
    gathered = await network.gather()
    assert sum(ref.groups for ref in gathered.rollouts) == SAMPLES_MAX
    assert len(network.asked) < 29 and not any("peer 0_" in name for name in network.asked)
    assert gathered.missing == 0


async def test_a_peer_without_outputs_is_passed_over_and_missed() -> None:
    network = Network(peers=3, outputs=0)
    gathered = await network.gather()
    assert gathered.rollouts == () and gathered.missing == 2 and len(network.looks) == 1


async def test_a_full_disk_costs_the_rollouts_that_it_has_no_room_for() -> None:
    network = Network(peers=3, outputs=2)
    kept: list[bytes] = []

    def put(body: bytes) -> str:
        if kept:
            raise NoSpaceLeft("the disk is full")
        kept.append(body)
        return "digest"

    network.blobs.put = put
    gathered = await network.gather()
    assert len(gathered.rollouts) == 1 and gathered.missing == 1


async def test_rewards_are_looked_for_again_but_not_beyond_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    monkeypatch.setattr(module, "RETRIES_S", 0.4)
    network = Network(peers=0, outputs=0)
    assert (await network.gather()).rollouts == () and len(network.looks) == 3
    monkeypatch.setattr(module, "RETRIES_S", 60.0)
    network.looks.clear()
    began = time.monotonic()
    assert (await network.gather(1.2)).rollouts == ()
    assert 0.5 < time.monotonic() - began < 1.2


async def test_nobody_at_all_is_a_failure() -> None:
    network = Network(peers=1, outputs=1, answers=False)
    with pytest.raises(NetworkDown):
        await network.gather(1.0)
