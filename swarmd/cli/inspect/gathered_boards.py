"""What a log's whole life says of standings: signed reports added up again, or what a contract said.

Both are `swarmd.eventlog.summaries.Gathered`: of a long log, what came since is read the next time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from swarmd.chain.standings import ChainStandings, KeptChainStandings
from swarmd.core.commands import PublishLeaderboard
from swarmd.core.events import ChainBlock, ChainReorged, ChainUp
from swarmd.core.state import State
from swarmd.core.step import RULES, StateFold
from swarmd.core.values import Standing
from swarmd.dht.wire.bodies import LeaderboardBody, LeaderboardCheck
from swarmd.errors import NotFoundError
from swarmd.eventlog.fold import Base, fold_commit
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.segment import find_log
from swarmd.eventlog.snapshot import decode_state, encode_state
from swarmd.eventlog.summaries import SummaryKind, gather

BOARDS = SummaryKind("leaderboard", RULES * 1000 + 2)  # its fold goes by the rules
CHAIN = SummaryKind("chain", 1, needs_state=False)


class VerifiedBoards(msgspec.Struct, frozen=True, array_like=True):
    """A coordinator's leaderboards, verified.

    Attributes:
        round: of the last one; -1 before any.
        standings: of the last one.
        rounds: how many there were.
        reports: signed ones, in all of them.
        problems: what is wrong, a sentence each.
        partial: of the rounds, those whose reports did not all find room, so that nothing was added up.
    """

    swarm: str = ""
    round: int = -1
    standings: tuple[Standing, ...] = ()
    rounds: int = 0
    reports: int = 0
    problems: tuple[str, ...] = ()
    partial: int = 0


class _KeptBoards(msgspec.Struct, array_like=True):
    """`BoardGathering` as it is kept: `state` encoded, `counted` what the reports add up to."""

    state: bytes
    counted: tuple[Standing, ...]
    boards: VerifiedBoards


class BoardGathering:
    """Folds a coordinator's log and verifies each leaderboard that it led to."""

    def __init__(self) -> None:
        self._fold = StateFold()
        self._check = LeaderboardCheck()
        self._boards = VerifiedBoards()

    def begin(self, base: Base) -> None:
        state = base.state
        self._fold = StateFold(state)
        self._check = LeaderboardCheck(state.coordination.standings if state.coordination else ())
        self._boards = VerifiedBoards(_swarm_of(state))

    def resume(self, kept: bytes | memoryview) -> None:
        read = msgspec.msgpack.decode(kept, type=_KeptBoards)
        self._fold = StateFold(decode_state(read.state))
        self._check = LeaderboardCheck(read.counted)
        self._check.problems += read.boards.problems
        self._check.partial = read.boards.partial
        self._boards = read.boards

    def keep(self) -> bytes:
        state = encode_state(self._fold.state)
        return msgspec.msgpack.encode(_KeptBoards(state, tuple(self._check.standings.values()), self.boards()))

    def take(self, commit: Commit) -> None:
        for command in fold_commit(self._fold, commit):
            if isinstance(command, PublishLeaderboard) and command.round != self._boards.round:
                self._verify(command)

    def _verify(self, command: PublishLeaderboard) -> None:
        boards = self._boards
        swarm = boards.swarm or _swarm_of(self._fold.state)
        self._check.take(LeaderboardBody(command.round, command.standings, command.reports), swarm)
        reports = boards.reports + len(command.reports)
        self._boards = VerifiedBoards(swarm, command.round, command.standings, boards.rounds + 1, reports)

    @property
    def coordinates(self) -> bool:
        """Is the node its swarm's coordinator?"""
        return self._fold.state.coordination is not None

    def boards(self) -> VerifiedBoards:
        """What was found so far."""
        return msgspec.structs.replace(self._boards, problems=tuple(self._check.problems), partial=self._check.partial)


def _swarm_of(state: State) -> str:
    return state.settings.swarm if state.settings else ""


def read_boards(directory: Path) -> VerifiedBoards:
    """The leaderboards of a coordinator's log, verified.

    Raises:
        NotFoundError: there is no log, or it is no coordinator's, or it has closed no round.
        LogDamaged: the log cannot be read.
    """
    log = find_log(directory)
    gathering = BoardGathering()
    gather(log, BOARDS, gathering)
    boards = gathering.boards()
    if boards.rounds == 0:
        if gathering.coordinates:
            raise NotFoundError(f"no round has been closed yet in {log}", "Ask again when the first is over")
        raise NotFoundError(f"the log in {log} closes no round", "Name the data directory of the swarm's coordinator")
    return boards


# --- a swarm with a chain ---


class KeptChain(msgspec.Struct, array_like=True):
    """`ChainGathering` as it is kept: `head` is the newest block that was read, -1 for none."""

    chained: bool = False
    up: ChainUp | None = None
    head: int = -1
    standings: KeptChainStandings | None = None


class ChainGathering:
    """Adds up what a contract said, block by block.

    Attributes:
        standings: of all blocks.
        found: whether the node has a chain at all, and how far it was read.
    """

    def __init__(self) -> None:
        self.standings = ChainStandings()
        self.found = KeptChain()

    def begin(self, base: Base) -> None:
        self.standings, self.found = ChainStandings(), KeptChain()

    def resume(self, kept: bytes | memoryview) -> None:
        self.found = msgspec.msgpack.decode(kept, type=KeptChain)
        self.standings = ChainStandings(self.found.standings)

    def keep(self) -> bytes:
        return msgspec.msgpack.encode(msgspec.structs.replace(self.found, standings=self.standings.keep()))

    def take(self, commit: Commit) -> None:
        found = self.found
        for event in commit.events:
            if isinstance(event, ChainBlock | ChainReorged):
                self.standings.apply(event)
                found.head = event.block.number if isinstance(event, ChainBlock) else event.fork.number
            elif isinstance(event, ChainUp):
                found.up, found.head = event, event.head.number
            found.chained = found.chained or _is_of_chain(event)


def _is_of_chain(event: Any) -> bool:
    settings = getattr(event, "settings", None)
    return isinstance(event, ChainBlock | ChainReorged | ChainUp) or getattr(settings, "chain", None) is not None


def read_chain(directory: Path) -> ChainGathering:
    """What a log says of the chain. Raises NotFoundError, LogDamaged, or ChainError for blocks without an order."""
    gathering = ChainGathering()
    gather(find_log(directory), CHAIN, gathering)
    return gathering
