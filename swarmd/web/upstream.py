"""The nine addresses of RL Swarm v0.4's web server with its shapes, so that tools written for it go on working.

Not taken over are its faults: the cumulative score adds a round's stages up, `since_round` counts, nothing is forgotten
when this server restarts, and a name is looked up among all peers before anything was polled. Times are POSIX seconds.
"""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
from starlette.requests import Request

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import SwarmdError
from swarmd.uvicorn_server import read_body
from swarmd.web.http.answers import BadRequest, JsonAnswer
from swarmd.web.shapes import CURVES_MAX, Curve, Message, SwarmView
from swarmd.web.sources import SwarmSource
from swarmd.web.views.ledger import PEERS_MAX

IDS_MAX = 1000
BODY_BYTES_MAX = 100 * 1024
HISTORY_POINTS_MAX = 30
HISTORY_LEADERS = 10  # whose history is told
_FORMS = ("Answer", "Identify", "Majority")  # how the stages of a round of three end
_CHOICES = {form: re.compile(f"<{form.lower()}>([^<]*)</{form.lower()}>") for form in _FORMS[1:]}


class Polled(msgspec.Struct, frozen=True):
    """`GET /api/healthz`."""

    message: str
    lastPolled: float | None  # seconds since the source was read last


class RoundAndStage(msgspec.Struct, frozen=True):
    """`GET /api/round_and_stage`; -1 where none is known."""

    round: int
    stage: int


class XY(msgspec.Struct, frozen=True):
    """A point: POSIX seconds, and the sum of rewards so far."""

    x: float
    y: float


class Leader(msgspec.Struct, frozen=True):
    """One row of the stage's leaderboard."""

    id: str
    nickname: str
    score: float
    values: tuple[XY, ...] = ()


class Leaderboard(msgspec.Struct, frozen=True):
    """`GET /api/leaderboard`: the open stage alone."""

    leaders: tuple[Leader, ...]
    total: int


class CumulativeLeader(msgspec.Struct, frozen=True):
    """One row of the whole leaderboard."""

    id: str
    nickname: str
    recordedRound: int
    recordedStage: int
    cumulativeScore: float
    lastScore: float | None  # null where it is not known
    scoreHistory: tuple[XY, ...]


class CumulativeLeaderboard(msgspec.Struct, frozen=True):
    """`GET /api/leaderboard-cumulative`."""

    leaders: tuple[CumulativeLeader, ...]
    total: int


class HistoryOf(msgspec.Struct, frozen=True):
    """One peer's rewards in time."""

    id: str
    nickname: str
    values: tuple[XY, ...]


class RewardsHistory(msgspec.Struct, frozen=True):
    """`GET /api/rewards-history`."""

    leaders: tuple[HistoryOf, ...]


class IdOfName(msgspec.Struct, frozen=True):
    """`GET /api/name-to-id`; null where nobody has the name."""

    id: str | None


class GossipMessage(msgspec.Struct, frozen=True):
    """One line of the feed."""

    id: str
    message: str
    node: str
    nodeId: str


class GossipMessages(msgspec.Struct, frozen=True):
    """`GET /api/gossip`: newest first."""

    messages: tuple[GossipMessage, ...]


class Upstream:
    """Answers out of a source."""

    def __init__(self, source: SwarmSource) -> None:
        self._source = source
        self._read_at = 0.0

    async def _view(self) -> SwarmView:
        view = await self._source.view()
        self._read_at = time.time()
        return view

    async def healthz(self, given: dict[str, Any]) -> JsonAnswer:
        """503 where the source cannot be read."""
        try:
            await self._view()
        except SwarmdError:
            age_s = time.time() - self._read_at if self._read_at else None
            return JsonAnswer(Polled("the source cannot be read", age_s), 503)
        return JsonAnswer(Polled("OK", time.time() - self._read_at))

    async def round_and_stage(self, given: dict[str, Any]) -> RoundAndStage:
        view = await self._view()
        return RoundAndStage(view.round, view.stage)

    async def leaderboard(self, given: dict[str, Any]) -> Leaderboard:
        view = await self._view()
        place = (view.round, view.stage)
        rows = [row for row in view.peers if row.known and (row.last_round, row.last_stage) == place]
        leaders = [Leader(row.id, row.name, row.last_reward) for row in rows if row.last_reward is not None]
        leaders.sort(key=lambda leader: (-leader.score, leader.id))
        return Leaderboard(tuple(leaders), len(leaders))

    async def cumulative(self, given: dict[str, Any]) -> CumulativeLeaderboard:
        view = await self._view()
        rows = [row for row in view.peers if row.known]
        histories = await self._histories([row.id for row in rows[:CURVES_MAX]])
        leaders = tuple(
            CumulativeLeader(
                id=row.id,
                nickname=row.name,
                recordedRound=row.last_round,
                recordedStage=row.last_stage,
                cumulativeScore=row.reward,
                lastScore=row.last_reward,
                scoreHistory=histories.get(row.id, ())[-HISTORY_POINTS_MAX:],
            )
            for row in rows
        )
        return CumulativeLeaderboard(leaders, view.total)

    async def rewards_history(self, given: dict[str, Any]) -> RewardsHistory:
        view = await self._view()
        rows = [row for row in view.peers if row.known][:HISTORY_LEADERS]
        histories = await self._histories([row.id for row in rows])
        return RewardsHistory(tuple(HistoryOf(row.id, row.name, histories.get(row.id, ())) for row in rows))

    async def _histories(self, peers: list[str]) -> dict[str, tuple[XY, ...]]:
        curves = (await self._source.curves(peers)).curves if peers else ()
        return {curve.id: summed(curve) for curve in curves}

    async def name_to_id(self, given: dict[str, Any]) -> IdOfName:
        name = given["name"].casefold()
        view = await self._source.view(PEERS_MAX)
        return IdOfName(next((row.id for row in view.peers if row.name.casefold() == name), None))

    async def id_to_name(self, request: Request) -> JsonAnswer:
        """POST: a JSON list of ids; unknown ones are left out."""
        body = await read_body(request, BODY_BYTES_MAX, 15.0)
        try:
            ids = msgspec.json.decode(body, type=list[str])
        except DECODE_ERRORS as error:
            raise BadRequest(f"the body is no JSON list of ids: {error}") from error
        if len(ids) > IDS_MAX:
            raise BadRequest(f"at most {IDS_MAX} ids at once")
        wanted = frozenset(ids)
        view = await self._source.view(PEERS_MAX)
        return JsonAnswer({row.id: row.name for row in view.peers if row.id in wanted})

    async def gossip(self, given: dict[str, Any]) -> GossipMessages:
        stages = (await self._view()).stages
        gossip = await self._source.gossip(given["since_round"])
        return GossipMessages(
            tuple(GossipMessage(each.id, words_of(each, stages), each.name, each.peer) for each in gossip.messages)
        )


def summed(curve: Curve) -> tuple[XY, ...]:
    """A curve as sums so far."""
    total, points = 0.0, []
    for point in curve.points:
        total += point.reward
        points.append(XY(point.at, total))
    return tuple(points)


def words_of(message: Message, stages: int) -> str:
    """A message as upstream writes it: the question, then what was made of it; of a choice what stands in its tag."""
    form = _FORMS[message.stage] if stages == len(_FORMS) and message.stage < stages else _FORMS[0]
    chosen = _CHOICES[form].search(message.text) if form in _CHOICES else None
    return f"{message.question or message.task}...{form}: {chosen[1].strip() if chosen else message.text}"
