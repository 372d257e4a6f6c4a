"""Reading what the coordinator could have read, so that its leaderboards can be compared with it."""

from __future__ import annotations

import logging

from swarmd.core.commands import PublishReport
from swarmd.dht.network_session import NetworkSession
from swarmd.dht.rounds.credit_check import CreditCheck
from swarmd.dht.rounds.shard_counts import find_own_shard
from swarmd.dht.wire import names
from swarmd.dht.wire.leaderboard import LeaderboardBody
from swarmd.dht.wire.records import ReportRecord
from swarmd.errors import NetworkDown

log = logging.getLogger(__name__)


class LeaderboardCheck:
    """Looks at the reports of each stage once, and at each leaderboard.

    Args:
        session: where all this happens.
    """

    def __init__(self, session: NetworkSession) -> None:
        self._session = session
        kept = session.read_standings()
        before = (-1, ()) if kept is None else (kept.round, kept.standings)
        stages, rows = session.config.swarm.stages, session.rows_by_peer
        self._credit = CreditCheck(session.peer_id, stages, *before, rows=rows, steady_min=session.waits.steady_min)

    def published(self, command: PublishReport) -> None:
        """This node's report of a stage is out: look who else has reported."""
        if self._session.follows_leaderboards:
            self._session.start(self._look, command.round, command.stage)

    async def _look(self, round: int, stage: int) -> None:
        session = self._session
        try:
            name = names.reports(session.swarm, round, stage, *await find_own_shard(session, round, stage))
            found = await session.records.find(name)
        except NetworkDown as error:
            log.debug("reports of round %d stage %d were not read: %s", round, stage, error)
            return
        if found.answered:
            reports = {peer: each for peer, each in found.records.items() if isinstance(each.content, ReportRecord)}
            ranks = session.seniority.ranks_of(reports, names.key_id(name))
            peers = [peer for peer in ranks if ranks[peer].awaited or peer == session.peer_id]
            self._credit.note(round, stage, session.runtime.time(), peers)

    def compare(self, board: LeaderboardBody) -> None:
        """Compare a leaderboard, and take over its standings."""
        self._session.learn(board)
        self._session.start(self._compare, board)

    async def _compare(self, board: LeaderboardBody) -> None:
        reporters, whole = await self._session.open_reports(board)
        event = self._credit.read(board.round, board.standings, reporters, whole)
        if event is not None:
            self._session.emit(event)
