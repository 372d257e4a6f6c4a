"""A dashboard's server in a thread of the test, and logs for it to read."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from swarmd.core.events import Event
from swarmd.core.state import State
from swarmd.http_server import Address
from swarmd.paths import NodeDirectory
from swarmd.uvicorn_server import HttpServer, bind
from swarmd.web.app import make_app
from swarmd.web.guard import AccessRules
from swarmd.web.node import NodeLogSource
from tests.eventlog.making import open_log, write_story

GOLDEN = Path(__file__).parents[1] / "golden"
COORDINATOR = GOLDEN / "coordinator"
FOLLOWER = GOLDEN / "follower"
CHAIN = GOLDEN / "chain"
CRASH = GOLDEN / "crash"
LOCAL = Address("127.0.0.1", 0)
LONG_S = 20.0

T = TypeVar("T")


def copy_of(node: Path, directory: Path) -> Path:
    """A data directory of the test's own with a golden log in it."""
    shutil.copytree(node / "events", directory / "events")
    return directory


def told(directory: Path, events: Sequence[Event], state: State | None = None) -> Path:
    """A data directory whose log holds these events."""
    with open_log(directory / "events") as log:
        write_story(log, events, state or State(), group=1)
    return directory


def empty(directory: Path) -> Path:
    """A data directory whose log has no event yet."""
    open_log(directory / "events").close()
    return directory


class Served:
    """A running server."""

    def __init__(self, endpoint: socket.socket, node: NodeLogSource) -> None:
        self.host, self.port = endpoint.getsockname()[:2]
        self.url = f"http://{self.host}:{self.port}"
        self.node = node
        self.client = httpx.Client(base_url=self.url, timeout=LONG_S, trust_env=False)

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.client.get(path, **given)

    def json(self, path: str, status: int = 200) -> Any:
        """The answer to a GET."""
        answer = self.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()

    def socket(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection((self.host, self.port), timeout=LONG_S)


@contextmanager
def running(node: NodeLogSource, rules: AccessRules | None = None) -> Iterator[socket.socket]:
    """A server of a node's page; gives its socket."""
    endpoint = bind(LOCAL)
    app = make_app(node, rules or AccessRules(LOCAL), node)
    ready = threading.Event()
    server = HttpServer(app, ready.set, app.end_streams)
    thread = threading.Thread(target=server.run, args=([endpoint],), daemon=True)
    thread.start()
    assert ready.wait(LONG_S)
    try:
        yield endpoint
    finally:
        server.should_exit = True
        thread.join(LONG_S)
        assert not thread.is_alive()


@contextmanager
def served(directory: Path, rules: AccessRules | None = None, archive: Path | None = None) -> Iterator[Served]:
    """A server of one data directory; the log's end has been reached when the block begins."""
    node = NodeLogSource(NodeDirectory(directory), archive=archive)
    with running(node, rules) as endpoint:
        server = Served(endpoint, node)
        until(lambda: node.describe_source().read == 1.0)
        try:
            yield server
        finally:
            server.client.close()


def until(condition: Callable[[], T], longest_s: float = LONG_S) -> T:
    """Wait for a condition."""
    end = time.monotonic() + longest_s
    pause = threading.Event()
    while time.monotonic() < end:
        if met := condition():
            return met
        pause.wait(0.02)
    raise AssertionError(f"not met within {longest_s:g} s")


class Listener:
    """A client of the stream, in a thread."""

    def __init__(self, at: Served, after: int | None = None) -> None:
        self.events: list[tuple[str, str, str]] = []  # kind, id, body
        self.ended = threading.Event()
        self._headers = {} if after is None else {"Last-Event-ID": str(after)}
        self._url = f"{at.url}/api/v1/stream"
        self._close = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        until(lambda: self.of("charts") or self.ended.is_set())

    def of(self, kind: str) -> list[tuple[str, str, str]]:
        return [event for event in list(self.events) if event[0] == kind]

    def close(self) -> None:
        self._close.set()

    def _listen(self) -> None:
        fields: dict[str, str] = {}
        try:
            with httpx.stream("GET", self._url, headers=self._headers, timeout=LONG_S, trust_env=False) as answer:
                for line in answer.iter_lines():
                    if self._close.is_set():
                        return
                    name, _, value = line.partition(": ")
                    if name:
                        fields[name] = value
                    elif fields.pop("retry", None) is None and fields:
                        self.events.append((fields.get("event", ""), fields.get("id", ""), fields.get("data", "")))
                    if not name:
                        fields = {}
        except httpx.HTTPError:
            return
        finally:
            self.ended.set()
