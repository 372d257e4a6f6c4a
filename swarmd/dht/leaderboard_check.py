"""Reading what the coordinator could have read, so that its leaderboards can be compared with it."""

from __future__ import annotations

import logging
import time

from anyio import to_thread

from swarmd.core.commands import PublishReport
from swarmd.core.standings import REPORTS_BYTES_MAX
from swarmd.dht import names
from swarmd.dht.credit_check import CreditCheck
from swarmd.dht.leaderboard import Board, open_report, read_standings
from swarmd.dht.lookup import lookup
from swarmd.dht.records import ReportRecord
from swarmd.dht.session import Session
from swarmd.errors import NetworkDown, RecordRejected

VERIFIED_MAX = 1024  # signatures of one leaderboard that are looked at; of a longer one nothing is said
ROOM_BYTES = 4096  # a leaderboard that has less room left may lack reports, see `swarmd.core.standings`

log = logging.getLogger(__name__)


class LeaderboardCheck:
    """Looks at the reports of each stage once, and at each leaderboard.

    Args:
        session: where all this happens.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        kept = read_standings(session.paths.standings, session.swarm)
        before = (-1, ()) if kept is None else (kept.round, kept.standings)
        self._credit = CreditCheck(session.peer_id, session.config.swarm.stages, *before)

    def published(self, command: PublishReport) -> None:
        """This node's report of a stage is out: look who else has reported."""
        if not self._session.coordinating and self._session.coordinator:
            self._session.start(self._look, command.round, command.stage)

    async def _look(self, round: int, stage: int) -> None:
        name = names.reports(self._session.swarm, round, stage)
        try:
            found = await self._session.node.call(lambda life: lookup(life, name))
        except NetworkDown as error:
            log.debug("%s was not read: %s", name, error)
            return
        if found.answered:
            reports = {peer: each for peer, each in found.records.items() if isinstance(each.content, ReportRecord)}
            ranks = self._session.seniority.ranks_of(reports, names.key_id(name))
            peers = [peer for peer in ranks if ranks[peer].awaited or peer == self._session.peer_id]
            self._credit.note(round, stage, time.time(), peers)

    def take(self, board: Board) -> None:
        """Compare a leaderboard, and take over its standings."""
        self._session.learn(board)
        self._session.start(self._compare, board)

    async def _compare(self, board: Board) -> None:
        reporters, whole = await to_thread.run_sync(open_reports, board, self._session.swarm)
        event = self._credit.read(board.round, board.standings, reporters, whole)
        if event is not None:
            self._session.emit(event)


def open_reports(board: Board, swarm: str) -> tuple[dict[int, set[str]], bool]:
    """Owners of a leaderboard's genuine reports by stage, and whether these are all that the round has."""
    reporters: dict[int, set[str]] = {}
    for encoded in board.reports[:VERIFIED_MAX]:
        try:
            signed, report = open_report(encoded, swarm)
        except RecordRejected:
            continue
        if report.round == board.round:
            reporters.setdefault(report.stage, set()).add(signed.owner)
    size_bytes = sum(map(len, board.reports))
    return reporters, len(board.reports) <= VERIFIED_MAX and size_bytes + ROOM_BYTES <= REPORTS_BYTES_MAX
