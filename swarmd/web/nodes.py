"""The page of several nodes, `swarmd dashboard A B host:port`: a row for each with its rewards and what needs
attention.

- A node of this machine is asked through its daemon's control socket; if no daemon answers, its log is folded, and
  again only when the log has grown. A node elsewhere is asked for its status over HTTP.
- Nodes are asked only while somebody looks, at most every `REREAD_S`, each in its own thread. An answer waits `FIRST_S`
  for them; the row of a slower node shows its last status, or that it is being asked.
- The page is read-only: each row links to the node's own page.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import ControlError, SwarmdError
from swarmd.http_client import HttpFailed, HttpRequest, send_request
from swarmd.observe.control import ask_status
from swarmd.observe.status import Status, describe_layer_problem
from swarmd.paths import NodeDirectory
from swarmd.web.app import REFUSALS, answer_unknown_address, serve_file, serve_static
from swarmd.web.endpoints import Endpoint
from swarmd.web.guard import AccessRules, Login, RequestGuard

NODES_MAX = 64
REREAD_S = 5.0  # least time between two requests to a node
FIRST_S = 0.5  # longest time that an answer waits for nodes
ASK_S = 5.0  # longest wait for one node
STATUS_BYTES_MAX = 4 * 1024 * 1024
ATTENTION_MAX = 4  # sentences per node
PAGES = {"/login": "login.html"}
START = "nodes.html"


class StagePoint(msgspec.Struct, frozen=True, array_like=True):
    """One trained stage: [round, stage, reward, held-out accuracy]."""

    round: int
    stage: int
    reward: float
    held_out: float | None


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as it was at `at` (POSIX seconds; 0: it has not answered yet)."""

    place: str  # directory or address
    url: str = ""  # of its own page; empty if it has none
    name: str = ""
    peer: str = ""
    swarm: str = ""
    role: str = ""
    state: str = "being asked"  # of its process, or "unreachable"
    healthy: bool = False
    at: float = 0.0
    round: int = -1
    stage: int = -1
    reward_total: float = 0.0
    attention: tuple[str, ...] = ()  # what is wrong, and what to do
    points: tuple[StagePoint, ...] = ()  # its latest stages, the oldest first
    taught_by: dict[str, int] = {}  # by peer id, tokens of other nodes that this one was trained on
    generated: int = 0  # tokens
    trained: int = 0  # of `generated`, those trained on


class NodesView(msgspec.Struct, frozen=True):
    """`GET /api/v1/nodes`: all nodes, in the order in which they were given."""

    nodes: tuple[NodeRow, ...]


@dataclass(eq=False)
class LocalNode:
    """A node of this machine. `read`: returns its status, from its log if no daemon answers. `url`: of its own page, if
    the daemon serves one."""

    paths: NodeDirectory
    read: Callable[[], Status]
    url: str = ""
    _kept: tuple[object, Status] | None = field(default=None, init=False)

    @property
    def place(self) -> str:
        return str(self.paths.root)

    def ask(self) -> tuple[Status, str]:
        """Return its status and the URL of its page. Raises SwarmdError, OSError."""
        reply = ask_status(self.paths.control, ASK_S)
        if reply.status is not None:
            return reply.status, self.url
        files = sorted(self.paths.events.glob("*.seg")) if self.paths.events.is_dir() else []
        key = (reply.mute, [(path.name, path.stat().st_size) for path in files])
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self.read()
        return self._kept[1], ""


@dataclass(eq=False)
class RemoteNode:
    """A node on another machine with its page at `url`."""

    url: str
    token: str = ""

    @property
    def place(self) -> str:
        return self.url.removeprefix("http://")

    def ask(self) -> tuple[Status, str]:
        """As `LocalNode.ask`. Raises ControlError."""
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        request = HttpRequest("GET", f"{self.url}/api/v1/node/status", headers=headers)
        try:
            code, body = send_request(request, time.monotonic() + ASK_S, STATUS_BYTES_MAX)
        except HttpFailed as error:
            raise ControlError(f"its page does not answer: {error}", "Is it on, and web.listen reachable?") from error
        if code == 401:
            raise ControlError("it wants a token", "Give the file of its token with --token-file")
        try:
            return msgspec.json.decode(body, type=Status), self.url
        except DECODE_ERRORS as error:
            raise ControlError(f"it answers {code}, without a status", "Is it a swarmd of this version?") from error


def describe_row(place: str, url: str, status: Status) -> NodeRow:
    """Make a node's row from its status."""
    tokens = status.tokens
    return NodeRow(
        place=place,
        url=url,
        name=status.name,
        peer=status.peer,
        swarm=status.swarm,
        role=status.role,
        state=status.process.state,
        healthy=status.healthy,
        at=status.at,
        round=status.round.round,
        stage=status.round.stage,
        reward_total=status.reward_total,
        attention=list_attention(status),
        points=tuple(StagePoint(each.round, each.stage, each.reward, each.held_out) for each in status.rewards),
        taught_by={each.peer: each.tokens for each in tokens.taught_by if each.peer} if tokens else {},
        generated=tokens.generated if tokens else 0,
        trained=tokens.trained if tokens else 0,
    )


def list_attention(status: Status) -> tuple[str, ...]:
    """The problems that need attention; if the node does not run, only that."""
    if not status.process.healthy:
        return (describe_layer_problem("process", status.process),)
    found = [describe_layer_problem(name, layer) for name, layer in status.layers.items() if not layer.healthy]
    if status.credit is not None and status.credit.state == "not credited":
        found.append(status.credit.words)
    if status.tokens is not None and status.tokens.difference:
        found.append(status.tokens.words)
    return (*found, *status.notes)[:ATTENTION_MAX]


class NodesSource:
    """Asks the nodes behind the page; see the module's docstring."""

    def __init__(self, nodes: Sequence[LocalNode | RemoteNode]) -> None:
        self._nodes = nodes
        self._rows = [NodeRow(place=node.place) for node in nodes]
        self._asked_at = [-math.inf] * len(nodes)
        self._asking: dict[int, asyncio.Future[None]] = {}
        self._threads = ThreadPoolExecutor(min(len(nodes), NODES_MAX), "nodes")

    async def view(self) -> NodesView:
        """All rows, including answers that come within `FIRST_S`."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        for number in range(len(self._nodes)):
            if number not in self._asking and now >= self._asked_at[number] + REREAD_S:
                self._asked_at[number] = now
                self._asking[number] = loop.run_in_executor(self._threads, self._ask, number)
        if self._asking:
            await asyncio.wait(list(self._asking.values()), timeout=FIRST_S)
        self._asking = {number: asking for number, asking in self._asking.items() if not asking.done()}
        return NodesView(tuple(self._rows))

    def _ask(self, number: int) -> None:
        """Ask one node. If it does not answer, its row keeps the last values."""
        node = self._nodes[number]
        try:
            status, url = node.ask()
            self._rows[number] = describe_row(node.place, url, status)
        except (SwarmdError, OSError) as error:
            kept = self._rows[number]
            self._rows[number] = msgspec.structs.replace(
                kept, state="unreachable", healthy=False, attention=(str(error),)
            )


def make_nodes_app(source: NodesSource, rules: AccessRules) -> RequestGuard:
    """Build the application, ready for a server."""
    endpoint = Endpoint("/api/v1/nodes", "How each node is, and what it earns.", NodesView, source.view)
    routes = [
        endpoint.to_route(),
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
