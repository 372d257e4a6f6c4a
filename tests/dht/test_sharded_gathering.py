"""Gathering from a large swarm: a sample of shards is read, until enough peers are found."""

import hashlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from swarmd.config import Config, DhtConfig, SwarmConfig
from swarmd.dht import gather
from swarmd.dht.wire import names
from swarmd.dht.wire.names import shard_of
from swarmd.dht.wire.records import ClockRecord, ReportRecord, RolloutsRecord, SignedRecord
from swarmd.errors import NetworkDown
from tests.dht.driver import SWARM
from tests.dht.test_gathering import Swarm, body_of

pytestmark = pytest.mark.anyio

WANTED = 4
SHARDS = 4


class LargeSwarm(Swarm):
    """A swarm with shards, whose members the node knows by its standings."""

    def __init__(self, root: Path, shards: int = SHARDS) -> None:
        swarm, dht = SwarmConfig(id=SWARM, coordinator="boss"), DhtConfig(gather_peers=WANTED)
        super().__init__(root, Config(swarm, role="follower", dht=dht))
        self.shards = shards
        self.failing: set[str] = set()
        self.view.set_member_count(10_000)
        self.store.keep(SimpleNamespace(owner="boss", content=ClockRecord(SWARM, 1, 0, 0.0, 1.0, shards=shards)))

    async def body(self, peer: str, *rest: Any) -> bytes:
        """A body, or that there is none."""
        self.asked.append(peer)
        if peer in self.failing:
            raise NetworkDown("it is away")
        if peer not in self.answering:
            await anyio.sleep_forever()
        return body_of(peer)

    def join_many(self, count: int, answering: bool = True) -> list[str]:
        """So many peers of which the swarm knows, each in its shard; nobody looks at their signatures."""
        peers = [f"12D3Koo{self.shards}{len(self.store.kept)}{number}" for number in range(count)]
        for peer in peers:
            body = body_of(peer)
            place = (self.shards, shard_of(SWARM, peer, 0, 0, self.shards))
            said = (hashlib.sha256(body).hexdigest(), len(body), 1)
            self._keep(peer, ReportRecord(SWARM, 0, 0, 0.5, *said, 1, b"", *place))
            self._keep(peer, RolloutsRecord(SWARM, 0, 0, *said, b"", 1, b"", *place))
        if answering:
            self.answering.update(peers)
        always = set(peers)
        self.view.seniority._always = always.__contains__  # listed: they need no work
        return peers

    def _keep(self, peer: str, content: Any) -> None:
        record = SignedRecord(peer, msgspec.msgpack.encode(content), time.time() + 60.0, b"")
        self.store.keep(record)


@pytest.fixture
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LargeSwarm:
    return made(tmp_path, monkeypatch, SHARDS)


def made(root: Path, monkeypatch: pytest.MonkeyPatch, shards: int) -> LargeSwarm:
    swarm = LargeSwarm(root, shards)
    monkeypatch.setattr(swarm.bodies, "fetch", swarm.body)
    monkeypatch.setattr(gather, "LOOK_AGAIN_S", 0.01)
    return swarm


async def test_one_shard_is_read_where_it_holds_enough_peers(swarm: LargeSwarm) -> None:
    swarm.join_many(64)
    with anyio.fail_after(60.0):
        gathered = await swarm.gather()
    assert len(gathered) >= WANTED and len(swarm.asked) <= 2 * WANTED
    keys = {name for name in swarm.store.read if name != names.clock_key(SWARM)}
    assert len(keys) == 2 and all("/4/" in key for key in keys), "the reports and the rollouts of one shard"


async def test_more_shards_are_read_until_there_are_enough_peers(swarm: LargeSwarm) -> None:
    peers = swarm.join_many(WANTED)
    with anyio.fail_after(60.0):
        assert await swarm.gather() == set(peers)


async def test_no_more_than_so_many_shards_are_read_however_many_peers_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = made(tmp_path, monkeypatch, 4 * gather.READ_MAX)
    with anyio.fail_after(60.0):
        assert await swarm.gather() == set()
    assert len({name for name in swarm.store.read if "/reports/" in name}) == gather.READ_MAX


async def test_others_take_the_places_of_those_that_give_nothing(swarm: LargeSwarm) -> None:
    peers = swarm.join_many(64)
    swarm.failing = set(peers[::2])
    with anyio.fail_after(60.0):
        gathered = await swarm.gather()
    assert len(gathered) >= WANTED and not gathered & swarm.failing


async def test_others_take_the_places_of_those_that_have_no_membership(swarm: LargeSwarm) -> None:
    peers = swarm.join_many(64)
    strangers = set(peers[::2])

    async def must_be_member(peer: str) -> None:
        if peer in strangers:
            raise NetworkDown(f"no membership of {peer} is to be had")

    swarm.must_be_member = must_be_member
    with anyio.fail_after(60.0):
        gathered = await swarm.gather()
    assert len(gathered) >= WANTED and not gathered & strangers
    assert not strangers & set(swarm.asked), "nobody who is no member is asked for a body"


async def test_whoever_is_away_for_a_while_is_tried_again_where_nobody_else_is_left(
    swarm: LargeSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = swarm.join_many(WANTED)

    async def body(peer: str, *rest: Any) -> bytes:
        swarm.failing = {peers[0]} - {peer for peer in swarm.asked if swarm.asked.count(peer) > gather.FAILURES_MAX}
        return await swarm.body(peer, *rest)

    monkeypatch.setattr(swarm.bodies, "fetch", body)
    with anyio.fail_after(60.0):
        assert await swarm.gather() == set(peers)
