"""A real coordinator that leaves one follower's reports out is found out by that follower, from what it can read."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from swarmd.core.commands import Announce, CollectReports, PublishLeaderboard, PublishReport
from swarmd.core.events import LeaderboardPublished, LeaderboardSeen, ReportPublished, ReportSeen, RoundAnnounced
from swarmd.core.peers.conduct import LEFT_OUT_MIN, verdict_of, words_of
from swarmd.core.state import State
from swarmd.core.values import Promised, Standing
from tests.core.story import Story, settings
from tests.dht.driver import Driver
from tests.hostile.swarm import STAGE_S, SmallSwarm, small_swarm

pytestmark = pytest.mark.anyio
SEEN_S = 0.2  # the stages here are over in no time


async def test_a_coordinator_that_leaves_one_followers_reports_out_is_found_out(tmp_path: Path) -> None:
    async with small_swarm(tmp_path) as swarm:
        victim, other = swarm.followers
        for round in range(LEFT_OUT_MIN + 1):
            await hold_round(swarm, round, victim)
        seen = [await driver.expect(LeaderboardSeen, round=LEFT_OUT_MIN - 1) for driver in swarm.followers]
        assert all(event.stages[0].reports == 2 for event in seen), "its reports are genuine, and fewer"
        state = judged_by(victim, swarm)
        assert verdict_of(state) == "leaves-out" and "this node's own" in words_of(state)
        assert judged_by(other, swarm).conduct is not None


async def hold_round(swarm: SmallSwarm, round: int, victim: Driver) -> None:
    """Everybody reports, and the leaderboard lacks the victim's report."""
    boss, now = swarm.coordinator, time.time()
    await boss.do(Announce(f"announce/{round}/0/1", round, 0, now, now + STAGE_S))
    await boss.do(CollectReports(f"collect/{round}/0", round, 0))
    for driver in (victim, *(each for each in swarm.drivers if each is not victim)):
        await driver.expect(RoundAnnounced, round=round)
        rollouts = driver.put([driver.peer_id, round], 1, (round, 0))
        await driver.do(PublishReport(f"report/{round}/0", round, 0, 0.5, rollouts))
        await driver.expect(ReportPublished, round=round)
    found = [await boss.expect(ReportSeen, peer=driver.peer_id, round=round) for driver in swarm.drivers]
    await asyncio.sleep(2 * SEEN_S)
    credited = [event for event in found if event.peer != victim.peer_id]
    standings = tuple(Standing(event.peer, "", 0.5 * (round + 1), round + 1, round) for event in credited)
    records = tuple(event.record for event in credited)
    await boss.do(PublishLeaderboard(f"leaderboard/{round}", round, standings, records))
    await boss.expect(LeaderboardPublished, round=round)


def judged_by(driver: Driver, swarm: SmallSwarm) -> State:
    """What the core of a node makes of all that its network worker told, at the times at which it did."""
    promised = Promised(STAGE_S, 1.0, SEEN_S)
    story = Story(settings(peer=driver.peer_id, coordinator=swarm.coordinator.peer_id, promised=promised))
    story.join()
    for at, event in driver.events:
        story.at = at
        if isinstance(event, RoundAnnounced | LeaderboardSeen):
            story.tell(event)
    return story.state
