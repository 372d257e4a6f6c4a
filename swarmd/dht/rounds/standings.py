"""The leaderboards that a coordinator publishes, as others follow them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarmd.dht.network_session import NetworkSession
from swarmd.dht.ports import Record
from swarmd.dht.wire import names
from swarmd.dht.wire.leaderboard import LeaderboardBody
from swarmd.dht.wire.records import LeaderboardRecord
from swarmd.errors import RecordRejected, SwarmdError
from swarmd.logger import get_logger

FETCH_S = 10.0  # for a leaderboard's body

log = get_logger(__name__)


class LeaderboardFollower:
    """Follows the leaderboards.

    Args:
        session: the network.
        take: called with each leaderboard, in the event loop.
    """

    def __init__(self, session: NetworkSession, take: Callable[[LeaderboardBody], None]) -> None:
        self._session = session
        self._take = take
        self._name = ""

    def reach(self, round: int) -> None:
        """This round has begun, or would have: look for the leaderboard of the one before until it is there.

        The coordinator has its own, and where a contract keeps the rounds there is none.
        """
        session = self._session
        name = names.leaderboard(session.swarm, round - 1)
        if round < 1 or name == self._name or not session.follows_leaderboards:
            return
        session.unwatch(self._name)
        self._name = name
        session.watch(name, self._see)

    def _see(self, records: Mapping[str, Record]) -> None:
        record = records.get(self._session.coordinator)
        if record is not None and isinstance(record.content, LeaderboardRecord):
            self._session.unwatch(self._name)
            self._session.start(self._fetch, record.content)

    async def _fetch(self, record: LeaderboardRecord) -> None:
        """What cannot be had is left out: the next round brings another."""
        try:
            board = await self._body_of(record)
        except SwarmdError as error:
            log.info("the leaderboard of round %d: %s", record.round, error)
        else:
            self._take(board)

    async def _body_of(self, record: LeaderboardRecord) -> LeaderboardBody:
        session = self._session
        if record.body:
            body = await session.bodies.inflate(record.body, record.size_bytes)
        else:
            body = await session.bodies.fetch(session.coordinator, record.digest, record.size_bytes, FETCH_S)
        await session.bodies.check(body, record.digest, record.size_bytes)
        board = session.open_board(body)
        if board.round != record.round:
            raise RecordRejected("malformed", f"it says of itself that it is of round {board.round}")
        return board
