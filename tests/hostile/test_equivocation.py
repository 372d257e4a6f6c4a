"""A node that signs two versions of a record is found out; one that is only restarted is not accused."""

import hashlib
import time
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from swarmd.core.commands import (
    Announce,
    CollectReports,
    Gather,
    PublishLeaderboard,
    PublishReport,
)
from swarmd.core.events import (
    Equivocated,
    LeaderboardPublished,
    MemberSeen,
    ReportPublished,
    ReportSeen,
    RolloutsGathered,
    RoundAnnounced,
    RoundPublished,
)
from swarmd.core.values import Standing
from swarmd.dht.identity.identity import Identity, generate_identity, load_identity
from swarmd.dht.wire.bodies import LeaderboardBody, deflate, encode_leaderboard
from swarmd.dht.wire.evidence import decode_evidence
from swarmd.dht.wire.records import ClockRecord, LeaderboardRecord, ReportRecord, SignedRecord, sign
from tests.core.story import Story, coordinator_settings
from tests.dht.driver import SWARM, Driver
from tests.dht.making import DIGEST
from tests.dht.outsider import Outsider
from tests.hostile.swarm import SmallSwarm, small_swarm

pytestmark = pytest.mark.anyio


async def tell(root: Path, driver: Driver, *records: SignedRecord) -> Outsider:
    """Have an outsider store records at one node, of which the others know nothing."""
    outsider = await Outsider(root / f"beside-{driver.paths.root.name}").open(await driver.address())
    for signed in records:
        answer = await outsider.store_signed(signed.content.key, signed)
        assert answer is not None, "it is judged, and kept where nothing later has come by another way"
    return outsider


def report(reward: float, round: int = 0) -> ReportRecord:
    return ReportRecord(SWARM, round, 0, reward, DIGEST, 10, 1)


def key_of(driver: Driver) -> Identity:
    """The private key that a test node signs with."""
    identity = load_identity(driver.paths.root / "identity.key")
    assert isinstance(identity, Identity)
    return identity


async def found(swarm: SmallSwarm, kind: str, peer: str) -> list[Equivocated]:
    """The evidence that every node tells of, checked by what it says itself."""
    events = [await driver.expect(Equivocated, peer=peer) for driver in swarm.drivers]
    for event in events:
        _, charge = decode_evidence(event.first, event.second)
        assert (charge.kind, charge.peer, charge.round) == (kind, peer, event.round)
    return events


async def test_a_member_with_two_reports_is_found_out_and_loses_its_place(tmp_path: Path) -> None:
    liar, now = generate_identity(), time.time()
    one, other = sign(liar, report(1.0), now + 600), sign(liar, report(0.1), now + 601)
    async with small_swarm(tmp_path) as swarm:
        boss, follower = swarm.coordinator, swarm.followers[0]
        await boss.do(Announce("announce/0/0/1", 0, 0, now, now + 60.0))
        await boss.do(CollectReports("collect/0/0", 0, 0))
        for outsider in (await tell(tmp_path, boss, one), await tell(tmp_path, follower, other)):
            await outsider.close()
        (event, *_) = await found(swarm, "report", liar.peer_id)
        assert {event.first, event.second} == {one.encode(), other.encode()}
        await follower.do(Gather("gather/1/0", 1, 0, 0, 0, time.time() + 5.0))
        assert not (await follower.expect(RolloutsGathered)).rollouts
        core = Story.joined(coordinator_settings(min_peers=3))
        core.tell(MemberSeen("otto"), MemberSeen(liar.peer_id))
        core.tell(RoundPublished("announce/0/0/1", 0, 0), *boss.seen(ReportSeen), *boss.seen(Equivocated))
        assert core.state.coordination is not None
        assert not core.state.coordination.reports and core.state.coordination.barred == (liar.peer_id,)


async def test_followers_compare_the_reports_of_a_leaderboard_with_what_they_read(tmp_path: Path) -> None:
    liar, now = generate_identity(), time.time()
    shown, read = sign(liar, report(1.0), now + 600), sign(liar, report(0.1), now + 601)
    async with small_swarm(tmp_path) as swarm:
        boss, follower = swarm.coordinator, swarm.followers[0]
        await (await tell(tmp_path, follower, read)).close()
        standings = (Standing(liar.peer_id, "", 1.0, 1, 0),)
        await boss.do(PublishLeaderboard("leaderboard/0", 0, standings, (shown.encode(),)))
        await boss.expect(LeaderboardPublished)
        await boss.do(Announce("announce/1/0/2", 1, 0, now, now + 60.0))
        events = await found(swarm, "report", liar.peer_id)
        assert {event.first for event in events} == {shown.encode()}


async def test_a_coordinator_with_two_deadlines_is_found_out_and_nobody_stalls(tmp_path: Path) -> None:
    async with small_swarm(tmp_path) as swarm:
        boss, (one, other) = swarm.coordinator, swarm.followers
        assert await swarm.run_round(0) == swarm.peers
        identity, now = key_of(boss), time.time()
        clock = ClockRecord(SWARM, 1, 0, now, now + 60.0, opening=2)
        later = replace(clock, deadline_at=now + 90.0)
        outsiders = [
            await tell(tmp_path, one, sign(identity, clock, now + 2000.0)),
            await tell(tmp_path, other, sign(identity, later, now + 2000.5)),
        ]
        await found(swarm, "clock", boss.peer_id)
        for follower in swarm.followers:
            await follower.expect(RoundAnnounced, round=1, deadline_at=later.deadline_at)
        for outsider in outsiders:
            await outsider.close()


async def test_a_coordinator_with_two_leaderboards_is_found_out(tmp_path: Path) -> None:
    async with small_swarm(tmp_path) as swarm:
        boss, now = swarm.coordinator, time.time()
        identity = key_of(boss)
        boards = [
            encode_leaderboard(LeaderboardBody(0, (Standing(boss.peer_id, "", reward, 1, 0),))) for reward in (1.0, 9.0)
        ]
        records = [
            LeaderboardRecord(SWARM, 0, hashlib.sha256(body).hexdigest(), len(body), deflate(body, 1))
            for body in boards
        ]
        outsiders = [
            await tell(tmp_path, follower, sign(identity, record, now + 600.0))
            for follower, record in zip(swarm.followers, records, strict=True)
        ]
        await boss.do(Announce("announce/1/0/1", 1, 0, now, now + 60.0))
        events = await found(swarm, "leaderboard", boss.peer_id)
        assert len({event.second for event in events}) == 1
        for outsider in outsiders:
            await outsider.close()


async def test_a_node_with_a_new_directory_lets_its_earlier_report_stand(tmp_path: Path) -> None:
    async with small_swarm(tmp_path, followers=1) as swarm:
        boss, (follower,) = swarm.coordinator, swarm.followers
        assert await swarm.run_round(0) == swarm.peers
        await follower.kill()
        follower.paths.records.unlink()
        since = len(follower.events)
        await follower.join()
        await follower.do(PublishReport("report/0/0", 0, 0, 0.9, follower.put(["others"], 1, (0, 0))))
        await follower.expect(ReportPublished, since=since, round=0)
        assert b"it stands" in follower.errors
        await anyio.sleep(2.0)
        assert not any(driver.seen(Equivocated) for driver in swarm.drivers)
        assert {event.reward for event in boss.seen(ReportSeen)} == {0.5}
