"""The leaderboards that a coordinator publishes, as others follow them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from swarmd.dht import names
from swarmd.dht.bodies import check_body, inflate
from swarmd.dht.fetch import fetch_body
from swarmd.dht.leaderboard import Board, decode_board
from swarmd.dht.records import LeaderboardRecord, Signed
from swarmd.dht.session import Session
from swarmd.dht.watch import Watch
from swarmd.errors import RecordRejected, SwarmdError

FETCH_S = 10.0  # for a leaderboard's body

log = logging.getLogger(__name__)


class Standings:
    """Follows the leaderboards.

    Args:
        session: the network.
        take: called with each leaderboard, in the event loop.
    """

    def __init__(self, session: Session, take: Callable[[Board], None]) -> None:
        self._session = session
        self._take = take
        self._name = ""

    def reach(self, round: int) -> None:
        """This round has begun, or would have: look for the leaderboard of the one before until it is there.

        The coordinator has its own, and where a contract keeps the rounds there is none.
        """
        session = self._session
        name = names.leaderboard(session.swarm, round - 1)
        if round < 1 or name == self._name or session.coordinating or not session.coordinator:
            return
        session.unwatch(self._name)
        self._name = name
        session.watch(Watch(session.node, name, session.config.dht.poll_s, self._see))

    def _see(self, records: Mapping[str, Signed]) -> None:
        signed = records.get(self._session.coordinator)
        if signed is not None and isinstance(signed.content, LeaderboardRecord):
            self._session.unwatch(self._name)
            self._session.exchange.read_board(signed)
            self._session.start(self._fetch, signed.content)

    async def _fetch(self, record: LeaderboardRecord) -> None:
        """What cannot be had is left out: the next round brings another."""
        try:
            board = await self._body_of(record)
        except SwarmdError as error:
            log.info("the leaderboard of round %d: %s", record.round, error)
        else:
            self._take(board)

    async def _body_of(self, record: LeaderboardRecord) -> Board:
        session = self._session
        if record.body:
            body = inflate(record.body, record.size_bytes)
        else:
            body = await fetch_body(session.node, session.coordinator, record.digest, record.size_bytes, FETCH_S)
        check_body(body, record.digest, record.size_bytes)
        board = decode_board(body)
        if board.round != record.round:
            raise RecordRejected("malformed", f"it says of itself that it is of round {board.round}")
        return board
