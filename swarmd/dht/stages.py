"""What comes out of a stage: reports and rollouts published, reports collected, the leaderboard published."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import anyio

from swarmd.core.commands import CollectReports, PublishLeaderboard, PublishReport
from swarmd.core.events import LeaderboardPublished, ReportPublished, ReportSeen
from swarmd.dht import names
from swarmd.dht.bodies import deflate
from swarmd.dht.changes import Changes
from swarmd.dht.leaderboard import Board, encode_board
from swarmd.dht.records import BODY_BYTES_MAX, LeaderboardRecord, ReportRecord, RolloutsRecord, Signed
from swarmd.dht.session import Session
from swarmd.dht.watch import Watch
from swarmd.errors import RecordRejected

CHANGES_MAX = 4  # of one peer's report of one stage; an honest one changes when its node has lost its log
CHANGES_APART_S = 10.0


class Stages:
    """Publishes and collects.

    Args:
        session: where all this happens.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._collecting: CollectReports | None = None
        self._changes: Changes[ReportRecord] = Changes(CHANGES_MAX, CHANGES_APART_S)  # of the stage that is collected

    async def publish_report(self, command: PublishReport) -> None:
        """Publish a stage's rollouts, then the report that names them.

        Raises:
            NetworkDown: it may be tried again.
            SwarmdError: the rollouts are not in the blob store, or too large.
        """
        await self._publish_rollouts(command)
        rollouts = command.rollouts
        report = ReportRecord(
            swarm=self._session.swarm,
            round=command.round,
            stage=command.stage,
            reward=command.reward,
            digest=rollouts.digest,
            size_bytes=rollouts.size_bytes,
            groups=rollouts.groups,
        )
        await self._session.publisher.publish(report)
        self._session.emit(ReportPublished(command.id, command.round, command.stage))

    async def _publish_rollouts(self, command: PublishReport) -> None:
        rollouts = command.rollouts
        if not rollouts.groups:  # nothing to share: the report alone counts
            return
        body = await anyio.to_thread.run_sync(self._session.blobs.get, rollouts.digest)
        _check_size(len(body))
        record = RolloutsRecord(
            swarm=self._session.swarm,
            round=command.round,
            stage=command.stage,
            digest=rollouts.digest,
            size_bytes=len(body),
            groups=rollouts.groups,
            body=await anyio.to_thread.run_sync(deflate, body, self._session.members),
        )
        await self._session.publisher.publish(record)

    async def collect(self, command: CollectReports) -> None:
        """Report every member's report of a stage, and those that were seen before once more."""
        if self._collecting is not None:
            self._session.unwatch(self._name_of(self._collecting))
        self._collecting = command
        self._changes = Changes(CHANGES_MAX, CHANGES_APART_S)
        name = self._name_of(command)
        self._session.watch(Watch(self._session.node, name, self._session.config.dht.poll_s, self._see))

    def _name_of(self, command: CollectReports) -> str:
        return names.reports(self._session.swarm, command.round, command.stage)

    def _see(self, records: Mapping[str, Signed]) -> None:
        for peer, signed in records.items():
            content = signed.content
            if isinstance(content, ReportRecord) and self._is_news(peer, content):
                place = (peer, content.round, content.stage, content.reward, content.digest)
                self._session.emit(ReportSeen(*place, record=signed.encode()))

    def _is_news(self, peer: str, content: ReportRecord) -> bool:
        try:
            return self._changes.take(peer, content)
        except RecordRejected as error:
            self._session.rejections.count(peer, error.reason, error.message)
            return False

    async def publish_leaderboard(self, command: PublishLeaderboard) -> None:
        """Publish standings and reports. Raises NetworkDown."""
        body = encode_board(Board(command.round, command.standings, command.reports))
        _check_size(len(body))
        digest = await anyio.to_thread.run_sync(self._session.blobs.put, body)
        assert digest == hashlib.sha256(body).hexdigest()
        record = LeaderboardRecord(
            swarm=self._session.swarm,
            round=command.round,
            digest=digest,
            size_bytes=len(body),
            body=deflate(body, 1),
        )
        await self._session.publisher.publish(record)
        self._session.emit(LeaderboardPublished(command.id, command.round))


def _check_size(size_bytes: int) -> None:
    if size_bytes > BODY_BYTES_MAX:
        raise RecordRejected("oversized", f"a body of {size_bytes} bytes, peers take at most {BODY_BYTES_MAX}")
