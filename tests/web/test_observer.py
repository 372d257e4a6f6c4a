"""A swarm seen through the DHT alone: real nodes, real records, an observer that writes none."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from swarmd.core.commands import CollectReports, PublishLeaderboard, PublishReport, Register
from swarmd.core.events import (
    LeaderboardPublished,
    LinkDown,
    LinkUp,
    MemberSeen,
    Registered,
    ReportPublished,
    ReportSeen,
    RolloutsGathered,
)
from swarmd.core.values import RolloutsRef, Standing
from swarmd.dht.identity.identity import create_identity
from swarmd.manifest import Manifest
from swarmd.swarms.rollouts import Group, Rollouts, encode_rollouts
from swarmd.web.observer import DhtSwarmSource
from swarmd.web.shapes import SwarmView
from swarmd.web.stream import Stream
from tests.dht.driver import SWARM, Driver
from tests.dht.test_worker import announce
from tests.test_manifest import unsigned

pytestmark = pytest.mark.anyio

WORDS = "<think>two and two</think> 4 <script>alert(1)</script>"
LONG_S = 40.0


async def node(root: Path, name: str, coordinator: Driver | None = None) -> Driver:
    """A real network worker that is registered; it gives the first address that it listens on."""
    if coordinator is None:
        driver = Driver(root / name, poll_s=0.5)
    else:
        driver = Driver(root / name, coordinator.peer_id, (await coordinator.address(),), poll_s=0.5)
    await driver.start()
    await driver.address()
    await driver.do(Register("register"))
    await driver.expect(Registered)
    return driver


@pytest.fixture
async def swarm(tmp_path: Path) -> AsyncIterator[tuple[Driver, Driver]]:
    coordinator = await node(tmp_path, "coordinator")
    follower = await node(tmp_path, "bob", coordinator)
    await coordinator.expect(MemberSeen, peer=follower.peer_id)
    yield coordinator, follower
    for driver in (follower, coordinator):
        await driver.clean()


def manifest_of(coordinator: Driver, address: str) -> Manifest:
    made = unsigned(id=SWARM, creator=coordinator.peer_id, bootnodes=(address,))
    assert made.rounds is not None
    return replace(made, rounds=replace(made.rounds, coordinator=coordinator.peer_id))


def made(place: Path) -> Path:
    place.mkdir()
    return place


@asynccontextmanager
async def observing(manifest: Manifest, place: Path, *rpc: str) -> AsyncIterator[DhtSwarmSource]:
    observed = DhtSwarmSource(manifest, made(place), rpc=rpc)
    running = asyncio.ensure_future(observed.run())
    try:
        yield observed
        assert not running.done(), "the observer ended"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(observed: DhtSwarmSource, wanted) -> SwarmView:  # type: ignore[no-untyped-def]
    """The first view of which `wanted` holds."""
    deadline = time.monotonic() + LONG_S
    while not wanted(seen := await observed.view()):
        assert time.monotonic() < deadline, seen
        await asyncio.sleep(0.05)
    return seen


async def report(driver: Driver, round: int, reward: float) -> None:
    """Publish a stage with one group, as a trainer makes it."""
    group = Group("chain_sum", "digest", 7, round, (WORDS, "5"))
    body = encode_rollouts(Rollouts(1, SWARM, driver.peer_id, round, 0, (group,)))
    ref = RolloutsRef(driver.peer_id, round, 0, driver.blobs.put(body), len(body), 1)
    await driver.do(PublishReport(f"report/{round}/0", round, 0, reward, ref))
    await driver.expect(ReportPublished, round=round)


async def test_a_swarm_is_followed_without_taking_part(swarm: tuple[Driver, Driver], tmp_path: Path) -> None:
    coordinator, follower = swarm
    address = await coordinator.address()
    await announce(coordinator, 3)
    async with observing(manifest_of(coordinator, address), tmp_path / "observer") as observed:
        seen = await until(observed, lambda view: view.round == 3 and view.total == 2)
        assert (seen.source, seen.coordinator, seen.swarm) == ("dht", coordinator.peer_id, SWARM)
        await report(follower, 3, 0.75)
        seen = await until(observed, lambda view: view.reports == 1)
        assert (seen.peers[0].id, seen.peers[0].name, seen.peers[0].reward) == (follower.peer_id, "bob", 0.75)
        await announce(coordinator, 4)
        await until(observed, lambda view: view.round == 4)
        deadline = time.monotonic() + LONG_S
        while not (messages := (await observed.gossip()).messages):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert messages[0].peer == follower.peer_id and messages[0].text == WORDS
        (curve,) = [each for each in (await observed.curves([])).curves if each.id == follower.peer_id]
        assert [(point.round, point.reward) for point in curve.points] == [(3, 0.75)]
    assert [event.peer for event in coordinator.seen(MemberSeen)].count(follower.peer_id) == 1
    members = {event.peer for event in coordinator.seen(MemberSeen)}
    assert members == {coordinator.peer_id, follower.peer_id}, "the observer is no member"


async def test_what_was_before_it_came_is_in_the_leaderboard(swarm: tuple[Driver, Driver], tmp_path: Path) -> None:
    coordinator, follower = swarm
    address = await coordinator.address()
    await announce(coordinator, 8)
    await coordinator.do(CollectReports("collect/8/0", 8, 0))
    await report(follower, 8, 0.5)
    seen = await coordinator.expect(ReportSeen, peer=follower.peer_id)
    standing = Standing(follower.peer_id, "bob", 6.5, 9, 8)
    await coordinator.do(PublishLeaderboard("leaderboard/8", 8, (standing,), (seen.record,)))
    await coordinator.expect(LeaderboardPublished, round=8)
    await announce(coordinator, 9)
    async with observing(manifest_of(coordinator, address), tmp_path / "observer") as observed:
        view = await until(observed, lambda view: view.peers and view.peers[0].known)
        assert (view.peers[0].reward, view.peers[0].rounds) == (6.5, 9)
        await report(follower, 9, 0.25)
        view = await until(observed, lambda view: view.reports == 1)
        assert (view.peers[0].reward, view.peers[0].rounds, view.peers[0].last_round) == (6.75, 10, 9)


async def test_a_swarm_that_nobody_answers_for_is_said_to_be_out_of_reach(tmp_path: Path) -> None:
    nowhere = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWGVLkJVYVE3tyMKXPmDCR3Ci3Ukyi63gYfymrEjVrWFMh"
    async with observing(unsigned(bootnodes=(nowhere,)), tmp_path / "observer") as observed:
        view = await observed.view()
        assert (view.round, view.total) == (-1, 0)
        assert any("not reached" in note for note in view.notes)


async def test_what_peers_share_comes_by_itself(tmp_path: Path) -> None:
    observed: Any = DhtSwarmSource(unsigned(id=SWARM, bootnodes=()), made(tmp_path / "observer"))
    answer, asked = observed.messages_since, asyncio.Event()

    async def note(count: int) -> Any:
        found = await answer(count)
        asked.set()
        return found

    observed.messages_since = note
    stream = Stream(observed, None)
    running, feed = asyncio.create_task(stream.run()), stream.feed_client(None)
    try:
        async with asyncio.timeout(LONG_S):
            await anext(feed)
            await asked.wait()  # what comes now is new
            group = Group("chain_sum", "digest", 7, 0, (WORDS, "5"))
            body = encode_rollouts(Rollouts(1, SWARM, "anna", 0, 0, (group,)))
            ref = RolloutsRef("anna", 0, 0, observed._blobs.put(body), len(body), 1)
            observed.observe(RolloutsGathered("gather/1/0", 1, 0, (ref,)))
            while b"event: gossip" not in (told := await anext(feed)):
                continue
            assert msgspec.json.encode(WORDS) in told
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await feed.aclose()


async def test_an_observer_that_hears_no_coordinator_says_so(tmp_path: Path) -> None:
    creator = create_identity(tmp_path / "creator.key").peer_id
    observed = DhtSwarmSource(replace(unsigned(id=SWARM, creator=creator), bootnodes=()), made(tmp_path / "observer"))
    observed.observe(LinkUp(4, (), "connected to 4 peers, but nothing was heard"))
    note = "This observer is isolated: connected to 4 peers, but nothing was heard. What is shown may be old."
    assert note in (await observed.view()).notes
    for event in (LinkUp(3), LinkDown("p2pd ended")):
        observed.observe(event)
        assert not any("isolated" in each for each in (await observed.view()).notes)
