"""What comes out of a stage: reports and rollouts published, and the leaderboard."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

from swarmd.core.commands import PublishLeaderboard, PublishReport
from swarmd.core.events import LeaderboardPublished, ReportPublished
from swarmd.dht.ports import Bodies, OwnNode, Record
from swarmd.dht.record_store import RecordStore
from swarmd.dht.rounds.clock import Shard, find_own_shard
from swarmd.dht.rounds.publisher import Publisher
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.bodies import LeaderboardBody, encode_board
from swarmd.dht.wire.records import BODY_BYTES_MAX, LeaderboardRecord, ReportRecord, RolloutsRecord
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError
from swarmd.logger import get_logger

FETCH_S = 10.0  # for a leaderboard's body

log = get_logger(__name__)


class Stages:
    """Publishes a stage's reports and rollouts, and leaderboards.

    Args:
        learn: takes each leaderboard over.
    """

    def __init__(
        self,
        view: SwarmView,
        store: RecordStore,
        publisher: Publisher,
        bodies: Bodies,
        node: OwnNode,
        learn: Callable[[LeaderboardBody], None],
    ) -> None:
        self._view = view
        self._store = store
        self._publisher = publisher
        self._bodies = bodies
        self._node = node
        self._learn = learn
        self._remembers = publisher.remembers(ReportRecord)
        self._crowded: tuple[int, int] = (-1, -1)  # (round, stage) whose rollouts found no room with their body

    async def publish_report(self, command: PublishReport) -> None:
        """Publish a stage's rollouts, then the report that names them.

        Raises:
            NetworkDown: it may be tried again.
            SwarmdError: the rollouts are not in the blob store, or too large.
        """
        place = await find_own_shard(self._view, self._store, command.round, command.stage)
        if await self._look_for_other_report(command, place):
            self._view.emit(ReportPublished(command.id, command.round, command.stage))
            return
        await self._publish_rollouts(command, place)
        rollouts = command.rollouts
        report = ReportRecord(
            swarm=self._view.swarm,
            round=command.round,
            stage=command.stage,
            reward=command.reward,
            digest=rollouts.digest,
            size_bytes=rollouts.size_bytes,
            groups=rollouts.groups,
            work=await self._node.work(),
            invitation=self._view.invitation,
            shards=place.shards,
            shard=place.shard,
        )
        await self._publisher.publish(report)
        self._remembers = True
        self._view.emit(ReportPublished(command.id, command.round, command.stage))

    async def _look_for_other_report(self, command: PublishReport, place: Shard) -> bool:
        """Look for another report of this node of this stage that peers hold: it stands then, and nothing is signed.

        Asked by a node that remembers no report of its own: its directory is new and its key is not, or a second node
        runs under it. Two different reports of one stage would cost it its place.
        """
        if self._remembers:
            return False
        name = names.reports(self._view.swarm, command.round, command.stage, *place)
        own = self._view.peer_id
        found = await self._store.find(name, {own: math.inf})  # of all who answer, its own record alone
        standing = found.records[own].content if own in found.records else None
        if not isinstance(standing, ReportRecord) or standing.digest == command.rollouts.digest:
            return False
        log.warning("%s holds another report of this node; it stands, this directory's is not published", name)
        return True

    async def _publish_rollouts(self, command: PublishReport, shard: Shard) -> None:
        rollouts = command.rollouts
        if not rollouts.groups:  # nothing to share: the report alone counts
            return
        body = await self._bodies.get(rollouts.digest)
        _check_size(len(body))
        place = (command.round, command.stage)
        inline = b"" if place == self._crowded else await self._inline(body, shard)
        content = RolloutsRecord(
            swarm=self._view.swarm,
            round=command.round,
            stage=command.stage,
            digest=rollouts.digest,
            size_bytes=len(body),
            groups=rollouts.groups,
            body=inline,
            work=await self._node.work(),
            invitation=self._view.invitation,
            shards=shard.shards,
            shard=shard.shard,
        )
        try:
            await self._publisher.publish(content)
        except (NetworkDown, RecordRejected):
            self._crowded = place  # a small record finds room where a large one does not, and peers fetch the body
            raise

    async def _inline(self, body: bytes, shard: Shard) -> bytes:
        """What of a body travels inside its record.

        In a sharded stage nothing: of a shard's records all are read, of their bodies some. A node that cannot be
        called is not asked for its body, so its record brings it.
        """
        view, bodies = self._view, self._bodies
        to_fetch = not view.config.dht.client_mode
        if shard.shards and to_fetch:
            return b""
        return await bodies.deflate(body, view.members // max(shard.shards, 1), to_fetch)

    async def publish_leaderboard(self, command: PublishLeaderboard) -> None:
        """Publish standings and reports. Raises NetworkDown."""
        board = LeaderboardBody(command.round, command.standings, command.reports)
        self._learn(board)
        body = encode_board(board)
        _check_size(len(body))
        digest = await self._bodies.put(body)
        assert digest == hashlib.sha256(body).hexdigest()
        record = LeaderboardRecord(
            swarm=self._view.swarm,
            round=command.round,
            digest=digest,
            size_bytes=len(body),
            body=await self._bodies.deflate(body, 1),
        )
        await self._publisher.publish(record)
        self._view.emit(LeaderboardPublished(command.id, command.round))


def _check_size(size_bytes: int) -> None:
    if size_bytes > BODY_BYTES_MAX:
        raise RecordRejected("oversized", f"a body of {size_bytes} bytes, peers take at most {BODY_BYTES_MAX}")


class LeaderboardFollower:
    """Follows the leaderboards.

    Args:
        take: called with each leaderboard, in the event loop.
    """

    def __init__(
        self, view: SwarmView, store: RecordStore, bodies: Bodies, take: Callable[[LeaderboardBody], None]
    ) -> None:
        self._view = view
        self._store = store
        self._bodies = bodies
        self._take = take
        self._name = ""

    def reach(self, round: int) -> None:
        """This round has begun, or would have: look for the leaderboard of the one before until it is there.

        The coordinator has its own, and where a contract keeps the rounds there is none.
        """
        view, store = self._view, self._store
        name = names.leaderboard(view.swarm, round - 1)
        follows = bool(view.coordinator) and not view.coordinating and view.config.chain is None
        if round < 1 or name == self._name or not follows:
            return
        store.unwatch(self._name)
        self._name = name
        store.watch(name, self._see)

    def _see(self, records: Mapping[str, Record]) -> None:
        record = records.get(self._view.coordinator)
        if record is not None and isinstance(record.content, LeaderboardRecord):
            self._store.unwatch(self._name)
            self._view.runtime.start(self._fetch(record.content))

    async def _fetch(self, record: LeaderboardRecord) -> None:
        """What cannot be had is left out: the next round brings another."""
        try:
            board = await self._body_of(record)
        except SwarmdError as error:
            log.info("the leaderboard of round %d: %s", record.round, error)
        else:
            self._take(board)

    async def _body_of(self, record: LeaderboardRecord) -> LeaderboardBody:
        view, bodies = self._view, self._bodies
        if record.body:
            body = await bodies.inflate(record.body, record.size_bytes)
        else:
            body = await bodies.fetch(view.coordinator, record.digest, record.size_bytes, FETCH_S)
        await bodies.check(body, record.digest, record.size_bytes)
        board = bodies.open_board(body)
        if board.round != record.round:
            raise RecordRejected("malformed", f"it says of itself that it is of round {board.round}")
        return board
