"""The page of the timeline over nodes, `swarmd timeline --page`: lanes by node, arrows, one scrubber over rounds.

Each request first reads what the logs have got since, so the page follows running nodes of this machine. Only the
newest rounds are kept and served.
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

ROUNDS_MAX = 256  # newest rounds kept, if there are few logs
PLACES_MAX = 4096  # rounds times logs kept
REREAD_S = 1.0  # least time between two reads of the logs
PAGES = {"/login": "login.html"}
START = "lanes.html"


class TimelineView(msgspec.Struct, frozen=True):
    """`GET /api/v1/timeline`: nodes and rounds. `clocks`: how far clocks are apart, in sentences. `first` and `last`:
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
    """The number of rounds that a page keeps of each of this many logs."""
    return max(1, min(ROUNDS_MAX, PLACES_MAX // max(logs, 1)))


class LanesSource:
    """The source of the page. `logs`: of different nodes of one swarm, each keeping the newest `rounds_kept` rounds."""

    def __init__(self, logs: Sequence[NodeLog]) -> None:
        self._logs = logs
        self._answers = WorkPool("timeline", 1)  # one thread, because requests replace the timeline that others read
        self._timeline: Timeline | None = None
        self._read_at = 0.0

    async def view(self) -> TimelineView:
        return await self._answers.run_call(self._view)

    async def round(self, round: int) -> TimelineRound:
        """The events of a round. Raises NotFoundError if it is not kept."""
        return await self._answers.run_call(self._round, round)

    def _read(self) -> Timeline:
        """Read all logs up to now."""
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
    """Build the application, ready for a server."""
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
    """Serve the page, or the form that asks for the token."""
    return serve_file(request, PAGES.get(request.url.path.rstrip("/"), START), "no-store")
