"""Real network workers with real p2pd on loopback, driven over frames as the daemon drives them."""

import asyncio
import random
import shutil
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from swarmd.core.commands import (
    AdmitPeers,
    Announce,
    CollectReports,
    Gather,
    PublishLeaderboard,
    PublishReport,
    ReadClock,
    Register,
)
from swarmd.core.events import (
    CommandFailed,
    LeaderboardPublished,
    LinkDegraded,
    LinkUp,
    MemberLeft,
    MemberSeen,
    NoRoundYet,
    RecordsRejected,
    Registered,
    ReportPublished,
    ReportSeen,
    RolloutsGathered,
    RoundAnnounced,
    RoundPublished,
)
from swarmd.core.values import RolloutsRef, Standing
from swarmd.dht.identity.identity import create_identity
from swarmd.dht.wire.bodies import LeaderboardBody, LeaderboardCheck, read_standings
from swarmd.dht.wire.records import ADMITTED_MAX
from swarmd.errors import ExitCode
from swarmd.worker.messages import StopMessage
from tests.dht.driver import SWARM, Driver, is_alive, processes_naming, until

pytestmark = pytest.mark.anyio

LOOK_S = 60.0  # a node that heard nothing looks for itself after so long


class Swarm:
    """A coordinator and followers that are cleaned up after the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes: list[Driver] = []

    def add(self, driver: Driver) -> Driver:
        self.nodes.append(driver)
        return driver

    async def coordinator(self, **dht: object) -> Driver:
        return await self.add(Driver(self.root / "coordinator", **dht)).join()

    async def twin_of(self, node: Driver, coordinator: Driver, **dht: object) -> Driver:
        """A follower in another data directory, under the same identity."""
        (self.root / "twin").mkdir()
        shutil.copy(node.paths.root / "identity.key", self.root / "twin" / "identity.key")
        return await self.follower("twin", coordinator, **dht)

    async def follower(self, name: str, coordinator: Driver, **dht: object) -> Driver:
        return await self.add(
            Driver(self.root / name, coordinator.peer_id, (await coordinator.address(),), **dht)
        ).join()


@pytest.fixture
async def swarm(tmp_path: Path) -> AsyncIterator[Swarm]:
    made = Swarm(tmp_path)
    yield made
    for node in made.nodes:
        await node.clean()


async def announce(node: Driver, round: int, stage: int = 0, shards: int = 0) -> float:
    """Announce and return when."""
    now = time.time()
    await node.do(Announce(f"announce/{round}/{stage}/1", round, stage, now, now + 60, shards=shards))
    return now


async def publish(node: Driver, round: int, body: object, reward: float = 0.5) -> RolloutsRef:
    ref = node.put(body, 4, (round, 0))
    await node.do(PublishReport(f"report/{round}/0", round, 0, reward, ref))
    await node.expect(ReportPublished, round=round)
    return ref


async def gather(node: Driver, round: int, wait_s: float = 5.0) -> RolloutsGathered:
    await node.do(Gather(f"gather/{round + 1}/0", round + 1, 0, round, 0, time.time() + wait_s))
    return await node.expect(RolloutsGathered, command=f"gather/{round + 1}/0")


async def test_every_announcement_reaches_the_followers_once_and_before_they_look(swarm: Swarm) -> None:
    """`python -m bench announcement` measures how soon."""
    coordinator = await swarm.coordinator()
    followers = [await swarm.follower(name, coordinator, poll_s=LOOK_S) for name in ("one", "two")]
    await asyncio.sleep(1.0)
    for round in range(3):
        await announce(coordinator, round)
        for follower in followers:
            await follower.expect(RoundAnnounced, LOOK_S / 2, round=round)
        await coordinator.expect(RoundPublished, round=round)
        await coordinator.expect(RoundAnnounced, round=round)
    assert len(followers[0].seen(RoundAnnounced)) == 3


async def test_a_client_that_stores_nothing_hears_by_hints(swarm: Swarm) -> None:
    coordinator = await swarm.coordinator()
    client = await swarm.follower("client", coordinator, client_mode=True, poll_s=LOOK_S)
    await asyncio.sleep(1.5)
    for round in range(3):
        await announce(coordinator, round)
        await client.expect(RoundAnnounced, LOOK_S / 2, round=round)
        await coordinator.expect(RoundPublished, round=round)
        await asyncio.sleep(0.3)  # within the bounds on one sender's hints
    assert [event.round for event in client.seen(RoundAnnounced)] == list(range(3))
    ref = await publish(coordinator, 2, random.Random(3).randbytes(500_000))
    assert [found.digest for found in (await gather(client, 2)).rollouts] == [ref.digest]
    await publish(client, 2, ["small"])
    assert [found.peer for found in (await gather(coordinator, 2)).rollouts] == [client.peer_id]


async def test_a_round_from_membership_to_leaderboard(swarm: Swarm) -> None:
    coordinator = await swarm.coordinator()
    one = await swarm.follower("one", coordinator)
    two = await swarm.follower("two", coordinator)
    for peer in (one, two):
        assert (await coordinator.expect(MemberSeen, peer=peer.peer_id)).name == peer.paths.root.name
    await one.do(ReadClock("clock/1"))
    await one.expect(NoRoundYet)
    await announce(coordinator, 0)
    await coordinator.do(CollectReports("collect/0/0", 0, 0))
    small, large = ["question", 1, b"x"], random.Random(1).randbytes(900_000)
    refs = {
        coordinator.peer_id: await publish(coordinator, 0, small, 0.25),
        one.peer_id: await publish(one, 0, large, 0.5),
        two.peer_id: await publish(two, 0, small, 1.0),
    }
    reports = [await coordinator.expect(ReportSeen, peer=peer) for peer in refs]
    assert [report.reward for report in reports] == [0.25, 0.5, 1.0]
    for node in swarm.nodes:
        gathered = await gather(node, 0)
        expected = {peer: msgspec.structs.replace(ref, peer=peer) for peer, ref in refs.items() if peer != node.peer_id}
        assert {ref.peer: ref for ref in gathered.rollouts} == expected
        assert gathered.missing == 0
        assert all(len(node.blobs.get(ref.digest)) == ref.size_bytes for ref in gathered.rollouts)
    standings = tuple(Standing(report.peer, "", report.reward, 1, 0) for report in reports)
    records = tuple(report.record for report in reports)
    check = LeaderboardCheck()
    check.add_leaderboard(LeaderboardBody(0, standings, records), SWARM)
    assert check.problems == []
    await coordinator.do(PublishLeaderboard("leaderboard/0", 0, standings, records))
    await coordinator.expect(LeaderboardPublished, round=0)
    await asyncio.sleep(1.0)
    assert [node.seen(RecordsRejected) for node in swarm.nodes] == [
        [],
        [],
        [],
    ]  # honest nodes refuse one another nothing
    await announce(coordinator, 1)
    async with asyncio.timeout(30):
        for peer in swarm.nodes:
            while (kept := read_standings(peer.paths.standings, SWARM)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert (kept.round, kept.standings) == (0, standings)
    assert await two.stop() == 0
    await coordinator.expect(MemberLeft, peer=two.peer_id)
    await one.expect(MemberLeft, peer=two.peer_id)


async def test_commands_are_done_again_under_the_same_id_without_harm(swarm: Swarm) -> None:
    coordinator = await swarm.coordinator()
    ref = coordinator.put(["body"], 1)
    for _ in range(3):
        await coordinator.do(PublishReport("report/0/0", 0, 0, 0.5, ref))
        await coordinator.do(CollectReports("collect/0/0", 0, 0))
    await coordinator.expect(ReportPublished)
    await coordinator.expect(ReportSeen, reward=0.5)
    since = len(coordinator.events)
    await coordinator.do(PublishReport("report/0/0", 0, 0, 0.5, ref))
    await coordinator.expect(ReportPublished, since=since)
    await asyncio.sleep(0.5)
    assert coordinator.seen(ReportSeen, since) == []
    missing = RolloutsRef(coordinator.peer_id, 0, 0, "f" * 64, 10, 1)
    await coordinator.do(PublishReport("report/1/0", 1, 0, 0.5, missing))
    assert "no blob" in (await coordinator.expect(CommandFailed, command="report/1/0")).reason


async def test_bootstrap_absent_at_first(swarm: Swarm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    coordinator = swarm.add(Driver(swarm.root / "coordinator", listen=(f"/ip4/127.0.0.1/tcp/{port}",)))
    address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{coordinator.peer_id}"
    follower = swarm.add(Driver(swarm.root / "follower", coordinator.peer_id, (address,)))
    await follower.start()
    await follower.expect(LinkDegraded)
    await follower.do(Register("register"))
    await follower.expect(CommandFailed, command="register")
    await asyncio.sleep(1.0)
    await coordinator.start()
    await follower.expect(LinkUp, timeout_s=12.0)
    await follower.do(Register("register"))
    await follower.expect(Registered)
    assert len(follower.seen(LinkDegraded)) == 1


async def test_the_whole_swarm_restarted_has_its_records_again(swarm: Swarm) -> None:
    coordinator = await swarm.coordinator(record_s=900.0)
    one = await swarm.follower("one", coordinator)
    await announce(coordinator, 4)
    await coordinator.expect(RoundPublished)
    ref = await publish(one, 4, ["body"] * 3)
    for node in (one, coordinator):
        await node.stop()
    coordinator = await swarm.coordinator(record_s=30.0)  # shorter lives than before: expirations still only grow
    one = await swarm.follower("one", coordinator)
    await one.do(ReadClock("clock/1"))
    assert (await one.expect(RoundAnnounced)).round == 4
    assert [found.digest for found in (await gather(coordinator, 4)).rollouts] == [ref.digest]
    await announce(coordinator, 5)
    await coordinator.expect(RoundPublished, round=5)
    await one.expect(RoundAnnounced, round=5)


async def test_a_stop_while_p2pd_is_starting_leaves_nothing_behind(swarm: Swarm) -> None:
    node = await swarm.add(Driver(swarm.root / "coordinator")).start()
    await until(lambda: node.paths.sockets.exists())
    await node.send(StopMessage(5.0))
    assert await node.wait() == 0
    assert list(node.paths.sockets.iterdir()) == []
    assert processes_naming(node.paths.sockets) == []


async def test_a_killed_worker_leaves_nothing_that_its_successor_cannot_clear(swarm: Swarm) -> None:
    coordinator = await swarm.coordinator()
    p2pd = coordinator.p2pd()
    sockets = set(coordinator.paths.sockets.iterdir())
    await coordinator.kill()
    began = time.monotonic()
    again = await swarm.coordinator()
    assert time.monotonic() - began < 20.0
    assert not is_alive(p2pd)
    assert not sockets & {path for path in again.paths.sockets.iterdir() if path.suffix == ".sock"}
    await until(lambda: not is_alive(p2pd))


async def test_the_worker_ends_with_its_daemon(swarm: Swarm) -> None:
    coordinator = await swarm.coordinator()
    p2pd = coordinator.p2pd()
    assert coordinator.process.stdin is not None
    coordinator.process.stdin.close()
    await coordinator.wait()
    await until(lambda: not is_alive(p2pd), timeout_s=10.0)


async def test_a_taken_port_is_a_permanent_fault(swarm: Swarm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"
        node = await swarm.add(Driver(swarm.root / "node", listen=(address,))).start()
        status = await node.wait(20.0)
    assert status == ExitCode.BAD_CONFIG
    assert node.faults[-1].permanent and address in node.faults[-1].reason


async def test_a_second_worker_on_the_same_identity_is_refused(swarm: Swarm) -> None:
    coordinator = await swarm.coordinator()
    second = await swarm.add(Driver(swarm.root / "coordinator")).start()
    assert await second.wait(20.0) == ExitCode.IDENTITY_CONFLICT
    assert second.faults[-1].permanent and str(coordinator.process.pid) in second.faults[-1].reason


async def test_a_twin_elsewhere_ends_and_the_elder_goes_on(swarm: Swarm) -> None:
    """The key copied to a second data directory, both joined to a third node: the newcomer ends, for good."""
    coordinator = await swarm.coordinator()
    one = await swarm.follower("one", coordinator)
    twin = await swarm.twin_of(one, coordinator)
    assert await twin.wait(60.0) == ExitCode.IDENTITY_CONFLICT
    assert twin.faults[-1].permanent and "also runs at" in twin.faults[-1].reason
    assert twin.faults[-1].exit_code == ExitCode.IDENTITY_CONFLICT
    await publish(one, 0, ["body"])
    await one.expect(ReportPublished)
    await asyncio.sleep(1.0)
    assert one.process.returncode is None and not one.faults
    assert not coordinator.seen(MemberLeft, peer=one.peer_id)


async def test_a_moved_node_is_no_twin_of_the_one_it_was(swarm: Swarm) -> None:
    """The record that a killed node left behind stays, with a longer life than the new one's records have."""
    coordinator = await swarm.coordinator()
    one = await swarm.follower("one", coordinator, record_s=3000.0, poll_s=0.3)
    await one.kill()
    moved = await swarm.twin_of(one, coordinator, poll_s=0.3)
    await asyncio.sleep(1.5)
    assert moved.process.returncode is None and not moved.faults


async def test_a_spoilt_identity_is_a_permanent_fault(swarm: Swarm) -> None:
    node = swarm.add(Driver(swarm.root / "node"))
    (node.paths.root / "identity.key").chmod(0o644)
    await node.start()
    assert await node.wait() == ExitCode.NO_PERMISSION
    assert node.faults[-1].permanent and "identity" in node.faults[-1].reason


async def test_a_nonsensical_setting_is_a_permanent_fault(swarm: Swarm) -> None:
    node = await swarm.add(Driver(swarm.root / "node", record_s=1e6)).start()
    assert await node.wait() == ExitCode.BAD_CONFIG
    assert "record_s" in node.faults[-1].reason


async def test_a_key_that_was_exchanged_is_a_permanent_fault(swarm: Swarm) -> None:
    """The daemon writes the log of one peer; the worker must not speak as another."""
    node = swarm.add(Driver(swarm.root / "node"))
    key = node.paths.root / "identity.key"
    key.unlink()
    other = create_identity(key).peer_id
    await node.start()
    assert await node.wait() == ExitCode.BAD_DATA
    assert other in node.faults[-1].reason and node.peer_id in node.faults[-1].reason


async def test_the_contracts_list_of_members_takes_effect_while_the_node_runs(swarm: Swarm) -> None:
    coordinator = await swarm.coordinator(poll_s=0.5)
    one = await swarm.follower("one", coordinator, poll_s=0.5)
    await coordinator.do(CollectReports("collect/0/0", 0, 0))
    await coordinator.do(AdmitPeers("admit/1", open=False, peers=("12D3KooWNobody",)))
    await one.do(PublishReport("report/0/0", 0, 0, 0.5, one.put(["body"])))
    await coordinator.expect(RecordsRejected, peer=one.peer_id, reason="not-a-member")
    await one.expect(CommandFailed, command="report/0/0")
    assert not coordinator.seen(ReportSeen)
    too_many = tuple(str(number) for number in range(ADMITTED_MAX + 1))
    await coordinator.do(AdmitPeers("admit/2", open=False, peers=too_many))
    assert "the limit is" in (await coordinator.expect(CommandFailed, command="admit/2")).reason
    await coordinator.do(AdmitPeers("admit/3", open=False, peers=(one.peer_id,)))
    await publish(one, 0, ["body"])
    await coordinator.expect(ReportSeen, peer=one.peer_id)
    await coordinator.do(AdmitPeers("admit/4", open=True))
    await (await swarm.follower("two", coordinator)).expect(Registered)
    assert [failed.command for failed in coordinator.seen(CommandFailed)] == ["admit/2"]
