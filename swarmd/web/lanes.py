"""The page of the timeline over nodes, `swarmd timeline --page`: lanes by node, arrows, one scrubber over rounds.

Logs are read on whenever somebody asks, so the page follows running nodes of this machine. The newest rounds are kept,
and all answers are about them.
"""

import time
from collections.abc import Sequence

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarmd.errors import NotFoundError
from swarmd.observe.node_log import NodeLog
from swarmd.observe.timeline import Timeline
from swarmd.observe.timeline_words import (
    TimelineEvent,
    TimelineNode,
    describe_clock_gaps,
    describe_event,
    describe_node,
)
from swarmd.web.app import REFUSALS, answer_unknown_address, serve_file, serve_static
from swarmd.web.endpoints import Endpoint, Parameter, WorkPool, integer_type
from swarmd.web.guard import AccessRules, Login, RequestGuard

ROUNDS_MAX = 256  # the newest, that are kept of few logs
PLACES_MAX = 4096  # rounds times logs that are kept
REREAD_S = 1.0  # logs are read on no more often
PAGES = {"/login": "login.html"}
START = "lanes.html"


class TimelineView(msgspec.Struct, frozen=True):
    """`GET /api/v1/timeline`: what there is to see. `clocks`: how far they are apart, in sentences. `first` and `last`:
    rounds that can be asked for; -1 before any has opened."""

    swarm: str
    nodes: tuple[TimelineNode, ...]
    clocks: tuple[str, ...]
    first: int
    last: int


class TimelineRound(msgspec.Struct, frozen=True):
    """`GET /api/v1/timeline/rounds/ROUND`: the events of a round, in causal order."""

    round: int
    events: tuple[TimelineEvent, ...]


def rounds_kept(logs: int) -> int:
    """How many rounds of so many logs a page can show."""
    return max(1, min(ROUNDS_MAX, PLACES_MAX // max(logs, 1)))


class LanesSource:
    """The logs behind the page. `logs`: of nodes of one swarm, each keeping the newest `rounds_kept` rounds."""

    def __init__(self, logs: Sequence[NodeLog]) -> None:
        self._logs = logs
        self._answers = WorkPool("timeline", 1)  # one thread: a timeline is made anew while nobody looks at the last
        self._timeline: Timeline | None = None
        self._read_at = 0.0

    async def view(self) -> TimelineView:
        return await self._answers.run_call(self._view)

    async def round(self, round: int) -> TimelineRound:
        """Raises NotFoundError for a round that is not kept."""
        return await self._answers.run_call(self._round, round)

    def _read(self) -> Timeline:
        """All logs up to now."""
        if self._timeline is not None and time.monotonic() < self._read_at + REREAD_S:
            return self._timeline
        before = [log.next_seq for log in self._logs]
        for log in self._logs:
            log.read()
        self._read_at = time.monotonic()
        if self._timeline is None or before != [log.next_seq for log in self._logs]:
            self._timeline = Timeline(self._logs)
        return self._timeline

    def _view(self) -> TimelineView:
        timeline = self._read()
        nodes = tuple(describe_node(timeline, number) for number in range(len(self._logs)))
        last = max(log.reached for log in self._logs)
        kept = [moments[0].near for moments in timeline.moments if moments]
        first = max(min(kept, default=0), last - rounds_kept(len(self._logs)), min(last, 0))
        swarm = next((log.settings.swarm for log in self._logs if log.settings is not None), "")
        return TimelineView(swarm, nodes, tuple(describe_clock_gaps(timeline)), first, last)

    def _round(self, round: int) -> TimelineRound:
        timeline = self._read()
        events = tuple(describe_event(timeline, each) for each in timeline.merge() if each.near == round)
        if not events:
            raise NotFoundError(f"round {round} is not among those that are kept", "The page says which are")
        return TimelineRound(round, events)


def make_lanes_app(source: LanesSource, rules: AccessRules) -> RequestGuard:
    """The application as a server runs it."""
    round_ = Parameter("round", integer_type(), "The round's number.", required=True, in_path=True)
    endpoints = (
        Endpoint("/api/v1/timeline", "Which nodes and rounds there are.", TimelineView, source.view),
        Endpoint("/api/v1/timeline/rounds/{round}", "The events of a round.", TimelineRound, source.round, (round_,)),
    )
    routes = [
        *(endpoint.to_route() for endpoint in endpoints),
        Route("/login", Login(rules.token).handle_login, methods=["POST"]),
        Route("/api", answer_unknown_address),
        Route("/api/{rest:path}", answer_unknown_address),
        Route("/static/{name:path}", serve_static),
        Route("/{rest:path}", serve_page),
    ]
    return RequestGuard(Starlette(routes=routes, exception_handlers=REFUSALS), rules)


async def serve_page(request: Request) -> Response:
    """The page, or the form that asks for the token."""
    return serve_file(request, PAGES.get(request.url.path.rstrip("/"), START), "no-store")
