"""What a follower makes of each round's leaderboard: whom it credits, beside whose reports could be read in time. Pure.

A node reads a stage's reports once, when its own is out. Of a bounded number of peers it remembers that their reports
were there; the leaderboard, which comes with the signed reports it is made of, then shows whether they count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from swarmd.core.events import LeaderboardSeen
from swarmd.core.peers.observed import StageAccount
from swarmd.core.values import Standing
from swarmd.dht.wire.leaderboard import rows_by_peer

SEEN_MAX = 16  # peers of a stage whose credit is looked at, this node among them
STRANGERS_MAX = 16  # reports of peers without credit, above which a coordinator may have no place for one more
STAGES_KEPT = 256  # of which it is remembered who had reported


class StandingsIndex(Protocol):
    """Finds standings by peer, see `swarmd.dht.wire.leaderboard.rows_by_peer`."""

    def __call__(self, standings: Sequence[Standing], /) -> Mapping[str, Standing]:
        """The same standings by peer; nobody changes them. Raises nothing."""


class SteadyMin(Protocol):
    """Says of a stage for whom it waits."""

    def __call__(self, round: int, stage: int, /) -> int | None:
        """See `AnnouncedWaits.steady_min`. Raises nothing."""


class _Seen(NamedTuple):
    at: float
    peers: tuple[str, ...]


class CreditCheck:
    """Remembers what was read, and compares.

    Args:
        own: this node's peer id.
        stages: in a round.
        round, standings: of the newest leaderboard that an earlier life has read; -1 and nothing for none.
        rows: as `rows_by_peer`.
        steady_min: as `AnnouncedWaits.steady_min`.
    """

    def __init__(
        self,
        own: str,
        stages: int,
        round: int = -1,
        standings: Sequence[Standing] = (),
        rows: StandingsIndex = rows_by_peer,
        steady_min: SteadyMin = lambda round, stage: 0,
    ) -> None:
        self._own = own
        self._stages = stages
        self._round = round
        self._rows = rows
        self._standings = rows(standings)
        self._steady_min = steady_min
        self._in_a_row: dict[str, int] = {}  # rounds in a row up to the last whose stages all have a peer's report
        self._seen: dict[tuple[int, int], _Seen] = {}

    def note(self, round: int, stage: int, at: float, peers: Collection[str]) -> None:
        """Reports of these peers could be read; the first look at a stage counts.

        Those without credit are nobody's to claim a place for, but this node's own while there are places enough.
        """
        credited = sorted(peer for peer in peers if peer in self._standings and peer != self._own)
        strangers = sum(peer not in self._standings for peer in peers)
        own = self._own in peers and (self._own in self._standings or strangers <= STRANGERS_MAX)
        seen = _Seen(at, (*([self._own] if own else []), *credited)[:SEEN_MAX])
        self._seen.setdefault((round, stage), seen)
        for place in list(self._seen)[:-STAGES_KEPT]:
            del self._seen[place]

    def read(
        self, round: int, standings: Sequence[Standing], reporters: Mapping[int, Collection[str]], whole: bool
    ) -> LeaderboardSeen | None:
        """Take a leaderboard into account; None for one that is not newer than the last.

        Args:
            round: the leaderboard's.
            standings: as it states them.
            reporters: owners of its genuine reports, by stage.
            whole: whether these are all reports of the round.
        """
        if round <= self._round:
            return None
        counted = tuple(self._account(round, stage, reporters) for stage in range(self._stages))
        idle = whole and self._round >= 0 and self._is_idle(standings, reporters)
        event = LeaderboardSeen(round, self._round, idle, whole, counted)
        self._count_in_a_row(round, reporters if whole else {})
        self._round, self._standings = round, self._rows(standings)
        self._seen = {place: seen for place, seen in self._seen.items() if place[0] > round}
        return event

    def _account(self, round: int, stage: int, reporters: Mapping[int, Collection[str]]) -> StageAccount:
        credited = frozenset(reporters.get(stage, ()))
        seen = self._seen.get((round, stage), _Seen(0.0, ()))
        left_out = tuple([peer for peer in seen.peers if peer not in credited])
        expected = self._expected(round, stage, credited | {*seen.peers})
        return StageAccount(stage, len(credited), expected, *seen, left_out)

    def _expected(self, round: int, stage: int, reporters: frozenset[str]) -> int:
        """Whom the stage waited for, of those who reported in it: credited in the round before, as far as is known."""
        least = self._steady_min(round, stage)
        if self._round != round - 1 or least is None:
            return 0
        rows = [row for row in self._standings.values() if row.peer in reporters and row.last_round == self._round]
        if not least or least > self._steady_most():
            return len(rows)
        return sum(self._in_a_row.get(row.peer, 0) >= least for row in rows)

    def _steady_most(self) -> int:
        """Half of the most rounds that anybody has: an honest coordinator asks for half of its own at most."""
        return max((row.rounds for row in self._standings.values()), default=0) // 2

    def _count_in_a_row(self, round: int, reporters: Mapping[int, Collection[str]]) -> None:
        before = self._in_a_row if self._round == round - 1 else {}
        in_all = set[str].intersection(*({*reporters.get(stage, ())} for stage in range(self._stages)))
        self._in_a_row = {peer: before.get(peer, 0) + 1 for peer in in_all}

    def _is_idle(self, standings: Sequence[Standing], reporters: Mapping[int, Collection[str]]) -> bool:
        """Whether nobody was credited in the rounds since the last leaderboard: this one's reports explain it all."""
        now = {peer for peers in reporters.values() for peer in peers}
        for row in standings:
            before = self._standings.get(row.peer)
            if row.rounds != (before.rounds if before else 0) + (row.peer in now):
                return False
        return True
