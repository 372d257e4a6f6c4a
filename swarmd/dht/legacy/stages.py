"""What comes out of a stage, as v0.4 writes it: outputs, rewards, and the coordinator's list of rewards."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import anyio

from swarmd.config_checks import LEGACY_STAGES
from swarmd.core.commands import CollectReports, PublishLeaderboard, PublishOutputs, PublishReport
from swarmd.core.events import LeaderboardPublished, ReportPublished, ReportSeen
from swarmd.core.values import RolloutsRef
from swarmd.dht.legacy import keys
from swarmd.dht.legacy.clock import LegacyClock, Place
from swarmd.dht.legacy.records import leaderboard_of, outputs_of
from swarmd.dht.legacy.rollouts import outputs_in
from swarmd.dht.legacy.session import LegacySession
from swarmd.dht.legacy.telling import RewardReporter
from swarmd.errors import NetworkDown
from swarmd.swarms.rollouts import Rollouts, decode_rollouts

LAST_LOOK_S = 10.0  # before a stage's deadline whoever has a reward counts, even if this node has none yet

log = logging.getLogger(__name__)


class LegacyStages:
    """Publishes a stage's outputs and rewards in v0.4's form, and collects those of others.

    Args:
        session: where all this happens.
        clock: knows when a stage of this node's own is over.
    """

    def __init__(self, session: LegacySession, clock: LegacyClock) -> None:
        self._session = session
        self._clock = clock
        self._scope: anyio.CancelScope | None = None  # of the stage that is collected
        self._publishing = anyio.Lock()  # in the order of the commands, lest an earlier reward replace a later one
        self._newest = ""  # id of the latest command to publish outputs
        self._reported: Place = (-1, -1)  # the last stage that this node has finished
        self._finished = asyncio.Event()  # set then: it is time to look at the others' rewards

    async def publish_report(self, command: PublishReport) -> None:
        """Publish a stage's last outputs and its reward.

        Raises:
            NetworkDown: it may be tried again.
            SwarmdError: the rollouts are not in the blob store, or cannot be read.
        """
        place = (command.round, command.stage)
        async with self._publishing:
            await self._publish_rollouts(place, command.rollouts)
            self._reported = max(place, self._reported)
        self._finished.set()
        self._session.emit(ReportPublished(command.id, command.round, command.stage))

    async def publish_outputs(self, command: PublishOutputs) -> None:
        """Publish what a stage has given so far, unless there is later news. Raises as `publish_report`."""
        self._newest = command.id
        place = (command.round, command.stage)
        async with self._publishing:
            if self._newest == command.id and place > self._reported:
                await self._publish_rollouts(place, command.rollouts)

    async def _publish_rollouts(self, place: Place, rollouts: RolloutsRef) -> None:
        body = await anyio.to_thread.run_sync(self._session.blobs.get, rollouts.digest)
        await self._publish(place, await anyio.to_thread.run_sync(decode_rollouts, body))

    async def _publish(self, place: Place, body: Rollouts) -> None:
        """Outputs, then the sum of the stage's rewards: peers look for outputs once they have seen a reward."""
        round, stage = place
        peer = self._session.peer_id
        outputs: dict[str | None, Any] = {
            question: outputs_of(stage, peer, output) for question, output in outputs_in(body).items()
        }
        if outputs:
            await self._session.publisher.write(keys.outputs(peer, round, stage), outputs)
        await self._session.publisher.write(keys.rewards(round, stage), {peer: body.total})

    async def collect(self, command: CollectReports) -> None:
        """Report the rewards of a stage until another one is collected."""
        if self._scope is not None:
            self._scope.cancel()
        self._scope = anyio.CancelScope()
        self._session.start(self._collect, command, self._scope)

    async def _collect(self, command: CollectReports, scope: anyio.CancelScope) -> None:
        collecting = Collecting(self._session, (command.round, command.stage))
        with scope:
            while True:
                self._finished.clear()
                try:
                    await collecting.look(self._may_count(collecting.place))
                except NetworkDown as error:
                    log.debug("rewards were not read: %s", error)
                with anyio.move_on_after(self._session.config.dht.poll_s):
                    await self._finished.wait()

    def _may_count(self, place: Place) -> bool:
        """Is it time to tell of peers' rewards? They grow until a peer has finished, which v0.4 does not tell.

        v0.4's coordinator goes on when it has finished the stage itself. So what peers have by then counts, or what
        they have shortly before the deadline.
        """
        deadline_at = self._clock.deadline_at(place)
        return self._reported == place or (deadline_at is not None and time.time() > deadline_at - LAST_LOOK_S)

    async def publish_leaderboard(self, command: PublishLeaderboard) -> None:
        """Publish the lists of a round's stages once more, with what has come last. Raises NetworkDown.

        v0.4's list is one stage's; standings over rounds have no place there.
        """
        for stage in range(LEGACY_STAGES):
            found = await self._session.find_rewards(command.round, stage)
            rewards = {peer: latest.value for peer, latest in found.entries.items()}
            if rewards:
                await write_leaderboard(self._session, (command.round, stage), rewards)
        self._session.emit(LeaderboardPublished(command.id, command.round))


class Collecting:
    """One stage whose rewards are watched.

    Args:
        session: where all this happens.
        place: round and stage.
    """

    def __init__(self, session: LegacySession, place: Place) -> None:
        self.place = place
        self._session = session
        self._telling = RewardReporter()
        self._listed: dict[str, float] = {}

    async def look(self, may_count: bool) -> None:
        """Read the rewards, list them, and tell them if it is time for that. Raises NetworkDown."""
        found = await self._session.find_rewards(*self.place)
        rewards = {peer: latest.value for peer, latest in found.entries.items()}
        if may_count:
            self._tell(rewards)
        if self._session.coordinating and rewards and rewards != self._listed:
            await write_leaderboard(self._session, self.place, rewards)
            self._listed = rewards

    def _tell(self, rewards: Mapping[str, float]) -> None:
        due, dropped = self._telling.take(rewards, time.monotonic())
        for peer, reward in due.items():
            self._session.emit(ReportSeen(peer, *self.place, reward))
        for peer, encoded, error in dropped:
            self._session.refuse_once(keys.rewards(*self.place), peer, encoded, error)


async def write_leaderboard(session: LegacySession, place: Place, rewards: Mapping[str, float]) -> None:
    """Write the coordinator's list. Raises NetworkDown."""
    await session.publisher.write(keys.leaderboard(*place), {None: leaderboard_of(rewards)})
