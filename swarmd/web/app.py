"""The application: the table of all endpoints of the HTTP interface, the page's files, and the guard around them.

- Routes and the OpenAPI document are made from one table.
- `/`, `/node`, `/login` and `/static/NAME` are the page's files; nothing else on the disk can be reached.
"""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarmd.errors import SwarmdError
from swarmd.observe.status import Health, Status, check_live, check_productive, check_ready
from swarmd.observe.story import Story
from swarmd.paths import NodeDirectory
from swarmd.uvicorn_server import HttpRefusal
from swarmd.uvicorn_server import json_response as json_answer
from swarmd.web.endpoints import (
    SEQ_MAX,
    Background,
    Endpoint,
    Parameter,
    integer_type,
    make_error_response,
    openapi,
    refusal,
    restart_on_error,
)
from swarmd.web.guard import AccessRules, Login, RequestGuard
from swarmd.web.moments import to_json_value
from swarmd.web.node import NodeLogSource
from swarmd.web.shapes import (
    CURVES_MAX,
    EVENTS_PAGE_MAX,
    OVERVIEW_BUCKETS_MAX,
    PEERS_ANSWERED_MAX,
    ChartsView,
    Curves,
    EventPage,
    Gossip,
    Moment,
    Overview,
    PageSource,
    PeerPage,
    RecipeView,
    StagesView,
    SwarmView,
    TrainingView,
)
from swarmd.web.source import SwarmSource
from swarmd.web.stream import Stream

STATIC = Path(__file__).parent / "static"
PAGES = {"/node": "node.html", "/login": "login.html"}
START = "swarm.html"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}


async def serve_page(request: Request) -> Response:
    """Serve a page, which browsers do not cache; an unknown address shows the start page."""
    return serve_file(request, PAGES.get(request.url.path.rstrip("/"), START), "no-store")


async def serve_static(request: Request) -> Response:
    """Serve a static file; browsers check each time whether it changed."""
    return serve_file(request, request.path_params["name"], "no-cache")


async def answer_unknown_address(request: Request) -> Response:
    return refusal(404, "there is no such address; /api/openapi.json lists all of them")


def serve_file(request: Request, name: str, caching: str) -> Response:
    """Respond with one of the page's files, or 404."""
    known = {str(path.relative_to(STATIC)): path for path in STATIC.rglob("*") if path.is_file()}
    if name not in known or known[name].suffix not in TYPES:
        return refusal(404, "there is no such file")
    body = known[name].read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"cache-control": caching, "etag": tag, "content-type": TYPES[known[name].suffix]}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers)


TIME_MAX = 1e12
EVENT_STREAM = "text/event-stream"
METRICS = "text/plain"

_TIME = Annotated[float, Meta(ge=-TIME_MAX, le=TIME_MAX)]
_ID = Annotated[str, Meta(min_length=1, max_length=128)]
_TEXT = Annotated[str, Meta(max_length=128)]

_FIRST = Parameter("first", integer_type(-SEQ_MAX), "The first event; negative: counted from the end.", default=-100)
_COUNT = Parameter("count", integer_type(1, EVENTS_PAGE_MAX), "How many events.", default=100)
_SEQ = Parameter("seq", integer_type(), "The event's number.", required=True, in_path=True)
_ROUND = Parameter("round", integer_type(), "The round's number.", required=True, in_path=True)
_PEER = Parameter("peer", _ID, "A peer's id; by default the first ten.", many=CURVES_MAX)
_LIMIT = Parameter("limit", integer_type(1, PEERS_ANSWERED_MAX), "How many peers.", default=PEERS_ANSWERED_MAX)
_SINCE = Parameter("since", _TIME, "POSIX seconds; by default where the log begins.")
_UNTIL = Parameter("until", _TIME, "POSIX seconds; by default where the log ends.")
_BUCKETS = Parameter("buckets", integer_type(1, OVERVIEW_BUCKETS_MAX), "Parts of that time.", default=256)
_SINCE_ROUND = Parameter("since_round", integer_type(-1), "The first round of interest.", default=-1)
_BEHIND = Parameter("first", integer_type(), "How many of the first by rank are left out.", default=0)
_FIND = Parameter("find", _TEXT, "Only peers with this in name or id, in any case.", default="")


def swarm_endpoints(source: SwarmSource) -> tuple[Endpoint, ...]:
    """Endpoints of the swarm page."""
    where, rewards = "Where the swarm is and who takes part.", "Rewards of some peers."
    return (
        Endpoint("/api/v1/swarm", where, SwarmView, lambda limit: source.view(limit), (_LIMIT,)),
        Endpoint(
            "/api/v1/swarm/peers",
            "Part of the leaderboard, or of those with a text in name or id.",
            PeerPage,
            source.peers,
            (_BEHIND, _LIMIT._replace(name="count"), _FIND),
        ),
        Endpoint("/api/v1/swarm/curves", rewards, Curves, lambda peer: source.curves(peer), (_PEER,)),
        Endpoint("/api/v1/swarm/gossip", "What peers wrote.", Gossip, source.gossip, (_SINCE_ROUND,)),
    )


def node_endpoints(node: NodeLogSource) -> tuple[Endpoint, ...]:
    """Endpoints of the node page."""
    span, rounds = (_SINCE, _UNTIL, _BUCKETS), "/api/v1/node/rounds/{round}"
    return (
        Endpoint("/api/v1/node/status", "How the node is.", Status, node.redacted_status),
        Endpoint("/api/v1/node/events", "Events in words.", EventPage, node.events, (_FIRST, _COUNT)),
        Endpoint("/api/v1/node/overview", "The log in time.", Overview, node.overview, span),
        Endpoint("/api/v1/node/moments/{seq}", "An event and all that came of it.", Moment, node.moment, (_SEQ,)),
        Endpoint("/api/v1/node/charts", "The statecharts and where they are.", ChartsView, node.charts),
        Endpoint("/api/v1/node/stages", "What was done of each stage.", StagesView, node.stages),
        Endpoint("/api/v1/node/training", "What each trained stage gave.", TrainingView, node.training),
        Endpoint("/api/v1/node/recipe", "What is trained, and how.", RecipeView, node.recipe),
        Endpoint(rounds, "What became of a round, in sentences.", Story, lambda round: node.story(round), (_ROUND,)),
    )


def monitoring_endpoints(node: NodeLogSource) -> tuple[Endpoint, ...]:
    """Metrics and health probes, for monitoring programs."""

    async def serve_metrics(request: Request) -> Response:
        body, content_type = await node.render_metrics(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    def make_health_endpoint(path: str, summary: str, judge: Callable[[Status | None], Health]) -> Endpoint:
        async def answer_probe() -> Response:
            status = None
            with suppress(SwarmdError):
                status = await node.status()
            health = judge(status)
            reasons = [to_json_value(reason) for reason in health.reasons]
            return json_answer(200 if health.ok else 503, {"ok": health.ok, "reasons": reasons})

        return Endpoint(path, f"{summary}; 503 if not.", Health, answer_probe, refusals=(503,))

    return (
        Endpoint("/metrics", "Metrics for Prometheus.", METRICS, serve_request=serve_metrics),
        make_health_endpoint("/livez", "Whether the daemon answers", check_live),
        make_health_endpoint("/readyz", "Whether it can do its part of a stage", check_ready),
        make_health_endpoint(
            "/productivez", "Whether its work came to something of late", partial(judge_productive, node)
        ),
    )


def judge_productive(node: NodeLogSource, status: Status | None) -> Health:
    """Whether a node was productive lately; false until all of its log has been read."""
    if check_live(status).ok:
        here = node.describe_source()
        if here.trouble:
            return Health(False, (f"its log cannot be read to its end: {here.trouble}",))
        if here.read < 1:
            return Health(False, (f"its log is being read: {here.read:.0%} so far",))
    return check_productive(status, node.metrics.progress)


def list_endpoints(swarm: SwarmSource, node: NodeLogSource | None, stream: Stream) -> tuple[Endpoint, ...]:
    """All endpoints of the interface; those of a node only if there is one."""
    of_node = (*node_endpoints(node), *monitoring_endpoints(node)) if node is not None else ()
    return (
        Endpoint("/api/v1/here", "What this server shows.", PageSource, lambda: swarm.describe_source()),
        *swarm_endpoints(swarm),
        *of_node,
        Endpoint("/api/v1/stream", "What happens, as it happens.", EVENT_STREAM, serve_request=stream.open_stream),
    )


def make_app(
    swarm: SwarmSource,
    rules: AccessRules,
    node: NodeLogSource | None = None,
    background: Sequence[Background] = (),
) -> RequestGuard:
    """Build the application, ready for a server.

    Args:
        swarm: the source of the swarm page.
        rules: who may access it.
        node: the source of the node page, if there is one; started and stopped with the application.
        background: further tasks that run as long as the application, for example the notifier.
    """
    stream = Stream(swarm, node)
    endpoints = list_endpoints(swarm, node, stream)
    document = openapi(endpoints)

    async def serve_document(request: Request) -> Response:
        return json_answer(200, document)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with run_background_tasks(node, (stream.run, *background)):
            yield

    routes = [
        *(endpoint.to_route() for endpoint in endpoints),
        Route("/api/openapi.json", serve_document),
        Route("/login", Login(rules.token).handle_login, methods=["POST"]),
        Route("/api", answer_unknown_address),
        Route("/api/{rest:path}", answer_unknown_address),
        Route("/static/{name:path}", serve_static),
        Route("/{rest:path}", serve_page),
    ]
    return RequestGuard(Starlette(routes=routes, lifespan=lifespan, exception_handlers=REFUSALS), rules, stream.end)


@asynccontextmanager
async def run_background_tasks(
    node: NodeLogSource | None, background: Sequence[Background]
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Follow the node's log, if there is one, and run the tasks until the block ends. Yields the tasks."""
    if node is not None:
        await node.start()
    tasks = [asyncio.create_task(restart_on_error(task)) for task in background]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if node is not None:
            await node.stop()


async def _answer_error(request: Request, error: Exception) -> Response:
    match error:
        case SwarmdError():
            return make_error_response(error)
        case HttpRefusal():
            return refusal(error.status, str(error))
        case HTTPException():
            return refusal(error.status_code, f"{error.detail}: {request.method}", dict(error.headers or {}))
        case _:
            return refusal(500, "the server met an error that it does not know; its log has it")


REFUSALS = dict.fromkeys((SwarmdError, HttpRefusal, HTTPException, Exception), _answer_error)


def write_openapi(path: Path) -> None:
    """Write the OpenAPI document of a node's server: `python -m swarmd.web.app docs/openapi.json`."""
    node = NodeLogSource(NodeDirectory(Path()))
    document = openapi(list_endpoints(node, node, Stream(node, node)))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


if __name__ == "__main__":
    write_openapi(Path(sys.argv[1]))
