"""A small swarm of real network workers, whose daemons the test plays, and rounds under attack."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from swarmd.core.commands import Announce, CollectReports, PublishLeaderboard, PublishReport
from swarmd.core.events import (
    LeaderboardPublished,
    MemberSeen,
    ReportPublished,
    ReportSeen,
    RoundAnnounced,
)
from swarmd.core.values import Standing
from swarmd.dht.wire.bodies import read_standings
from tests.dht.driver import SWARM, Driver, until
from tests.dht.outsider import Outsider

STAGE_S = 60.0  # that an announcement states; no test waits for it


class SmallSwarm:
    """A coordinator, its followers, and whoever attacks them."""

    def __init__(self, coordinator: Driver, followers: list[Driver]) -> None:
        self.coordinator = coordinator
        self.followers = followers

    @property
    def drivers(self) -> list[Driver]:
        return [self.coordinator, *self.followers]

    async def start(self, driver: Driver) -> None:
        """Start a node and see it among the others."""
        await driver.join()
        await self.coordinator.expect(MemberSeen, peer=driver.peer_id)

    async def run_round(self, round: int, within_s: float = 25.0) -> set[str]:
        """Announce a round, have everybody publish, collect. Returns the honest peers that were credited in time."""
        now = time.time()
        await self.coordinator.do(Announce(f"announce/{round}/0/1", round, 0, now, now + STAGE_S))
        await self.coordinator.do(CollectReports(f"collect/{round}/0", round, 0))
        credited = [self._take_part(driver, round, within_s) for driver in self.drivers]
        await asyncio.gather(*credited, return_exceptions=True)
        return {event.peer for event in self.coordinator.seen(ReportSeen, round=round)} & self.peers

    async def credit(self, round: int) -> None:
        """Publish standings in which all honest peers have been in every round so far, and have them read."""
        standings = tuple(Standing(peer, "", 1.0, round + 1, round) for peer in sorted(self.peers))
        await self.coordinator.do(PublishLeaderboard(f"leaderboard/{round}", round, standings, ()))
        await self.coordinator.expect(LeaderboardPublished, round=round)

    async def knows(self, round: int) -> None:
        """Until every node has read the standings of a round; followers look for them when the next is announced."""
        for driver in self.drivers:
            await until(lambda path=driver.paths.standings: has_read(path, round))

    @property
    def peers(self) -> set[str]:
        """The honest ones."""
        return {driver.peer_id for driver in self.drivers}

    async def _take_part(self, driver: Driver, round: int, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            await self._report(driver, round)
            await self.coordinator.expect(ReportSeen, within_s, peer=driver.peer_id, round=round)

    async def _report(self, driver: Driver, round: int) -> None:
        await driver.expect(RoundAnnounced, round=round)
        rollouts = driver.put([driver.peer_id, round], 1, (round, 0))
        await driver.do(PublishReport(f"report/{round}/0", round, 0, 0.5, rollouts))
        await driver.expect(ReportPublished, round=round)


def has_read(path: Path, round: int) -> bool:
    """Has a node read the standings of this round?"""
    kept = read_standings(path, SWARM)
    return kept is not None and kept.round >= round


@asynccontextmanager
async def small_swarm(
    root: Path, followers: int = 2, attackers: tuple[Outsider, ...] = (), **dht: Any
) -> AsyncIterator[SmallSwarm]:
    """Registered nodes that know one another; ended after the test, the attackers too."""
    dht = {"poll_s": 1.0} | dht
    coordinator = Driver(root / "coordinator", **dht)
    swarm = SmallSwarm(coordinator, [])
    try:
        await swarm.start(coordinator)
        address = await coordinator.address()
        for number in range(followers):
            follower = Driver(root / f"follower-{number}", coordinator.peer_id, (address,), **dht)
            swarm.followers.append(follower)
            await swarm.start(follower)
        yield swarm
    finally:
        for driver in swarm.drivers:
            await driver.clean()
        for attacker in attackers:
            if hasattr(attacker, "p2p"):  # it has come
                await attacker.close()
