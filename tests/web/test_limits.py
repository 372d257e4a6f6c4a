"""What is too much or too slow is refused, and the server goes on: bodies, heads, addresses, connections, patience."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from swarmd import uvicorn_server
from swarmd.errors import NotFoundError
from swarmd.uvicorn_server import BoundedProtocol
from swarmd.web import guard
from swarmd.web.guard import FORM_BYTES_MAX
from swarmd.web.node import NodeLogSource
from swarmd.web.shapes import Moment
from tests.web.serving import FOLLOWER, LONG_S, Served, copy_of, served, until

HOST = b"Host: localhost\r\n"
MUCH = 2**25  # bytes; kernels take a few millions that nobody reads


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(copy_of(FOLLOWER, tmp_path_factory.mktemp("limits"))) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    """A server with little patience."""
    monkeypatch.setattr(uvicorn_server, "SILENT_S", 0.4)
    monkeypatch.setattr(guard, "REQUEST_S", 0.8)
    with served(copy_of(FOLLOWER, tmp_path)) as running:
        yield running


def well(server: Served) -> bool:
    return server.get("/api/v1/here").status_code == 200


def ended(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            received += chunk
    return received


# --- sizes ---


@pytest.mark.parametrize("size", [FORM_BYTES_MAX + 1, 10 * FORM_BYTES_MAX])
def test_a_large_body_is_refused(server: Served, size: int) -> None:
    answer = server.client.post("/login", content=b" " * size)
    assert answer.status_code == 413 and answer.json()["detail"] == "too-large"
    assert well(server)


def test_a_body_whose_length_is_not_told_is_counted(server: Served) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 1024

    assert server.client.post("/login", content=chunks()).status_code == 413


def test_a_long_address_and_long_headers_are_refused(server: Served) -> None:
    assert server.get("/api/v1/swarm/gossip?x=" + "a" * 5000).status_code == 414
    assert server.get("/" + "a" * 5000).status_code == 414
    with server.socket() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + HOST)
        with contextlib.suppress(OSError):
            for number in range(64):
                connection.sendall(b"X-%d: " % number + b"a" * 1000 + b"\r\n")
        answer = ended(connection)
        assert not answer or answer.split()[1] == b"400"
    assert well(server)


@pytest.mark.parametrize(
    "path",
    [
        *(f"node/events?{query}" for query in ("first=x", "first=", "first=1&first=2", "count=0", "count=1001")),
        *("node/events?first=99999999999999999", "node/events?first=%00", "node/events?first=١"),
        *("node/moments/-1", "node/moments/x", "node/overview?since=nan", "node/overview?until=1e99"),
        *("node/overview?buckets=2049", "swarm/curves?" + "&".join(["peer=a"] * 21), "swarm/curves?peer=" + "a" * 200),
        *("swarm/gossip?since_round=x", "swarm?limit=0", "swarm/peers?count=2001", "swarm/peers?find=" + "a" * 129),
    ],
)
def test_a_parameter_out_of_range_is_refused(server: Served, path: str) -> None:
    assert server.json(f"/api/v1/{path}", 400)["detail"] == "bad-request"


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET * HTTP/1.1\r\n" + HOST + b"\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /%ff%fe HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /%00 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_request_gets_no_500(server: Served, head: bytes) -> None:
    with server.socket() as connection:
        connection.sendall(head)
        connection.shutdown(socket.SHUT_WR)
        answer = ended(connection)
    assert not answer or answer.split()[1][:1] in (b"2", b"4")
    assert well(server)


# --- slowness ---


def test_a_head_that_trickles_is_not_waited_for(impatient: Served) -> None:
    """Slowloris: some bytes now and then, for ever."""
    with impatient.socket() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        over = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                while not over.wait(0.1):
                    connection.sendall(b"X-a: b\r\n")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert ended(connection) == b""
        finally:
            over.set()
            thread.join()
    assert well(impatient)


def test_a_body_that_trickles_is_not_waited_for(impatient: Served) -> None:
    with impatient.socket() as connection:
        connection.sendall(b"POST /login HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n[")
        assert connection.recv(65536).split()[1] == b"408"


def test_many_slow_clients_keep_nobody_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(uvicorn_server, "SILENT_S", 0.5)
    with served(copy_of(FOLLOWER, tmp_path)) as server, contextlib.ExitStack() as stack:
        for _ in range(uvicorn_server.CONNECTIONS_MAX + 20):
            connection = stack.enter_context(server.socket())
            with contextlib.suppress(OSError):
                connection.sendall(b"GET / HTTP/1.1\r\n")

        def answered() -> bool:
            with contextlib.suppress(Exception):
                return well(server)
            return False

        assert until(answered, LONG_S)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[BoundedProtocol]:
    """Connections that servers have let go."""
    gone: list[BoundedProtocol] = []
    let_go = BoundedProtocol.connection_lost

    def note(self: BoundedProtocol, exc: Exception | None) -> None:
        gone.append(self)
        let_go(self, exc)

    monkeypatch.setattr(BoundedProtocol, "connection_lost", note)
    return gone


@contextlib.contextmanager
def unread_answers(server: Served, count: int, more: bytes) -> Iterator[None]:
    """So many clients that ask for what no kernel's buffers hold, and read none of it."""
    with patch("swarmd.web.node.charts_view", lambda state: "x" * MUCH), contextlib.ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(server.socket())
            client.sendall(b"GET /api/v1/node/charts HTTP/1.1\r\n" + HOST + more + b"\r\n")
            assert client.recv(1, socket.MSG_PEEK), "it has begun"
        yield


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
def test_an_answer_that_nobody_reads_is_given_up(
    more: bytes, lost: list[BoundedProtocol], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(uvicorn_server, "UNREAD_S", 0.2)
    with served(copy_of(FOLLOWER, tmp_path)) as server, unread_answers(server, 3, more):
        until(lambda: len(lost) == 3)
        assert well(server)


def ask(server: Served, path: str, source: str = "127.0.0.1") -> bytes:
    """The first line of the answer on a connection of its own; empty where it is closed instead."""
    with socket.create_connection((server.host, server.port), LONG_S, (source, 0)) as connection:
        with contextlib.suppress(ConnectionResetError):
            connection.sendall(b"GET " + path.encode() + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        return ended(connection).partition(b"\r\n")[0]


HALVES = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\n",
    "half a body": b"POST /login HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n[",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=list(HALVES))
def test_half_requests_shut_nobody_out(half: bytes, server: Served) -> None:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(server.socket()) for _ in range(uvicorn_server.CONNECTIONS_MAX + 44)]
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.sendall(half)
        for _ in range(3):
            assert ask(server, "/api/v1/here").split()[1] == b"200"
            assert ask(server, "/livez").split()[1] in (b"200", b"503")
        assert ended(opened[0])[:15] in (b"", b"HTTP/1.1 408 Re"), "the one that has waited longest has made room"


def test_the_address_with_most_connections_makes_room(monkeypatch: pytest.MonkeyPatch, server: Served) -> None:
    monkeypatch.setattr(uvicorn_server, "CONNECTIONS_MAX", 8)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_connection((server.host, server.port), LONG_S, ("127.0.0.2", 0)))
        first.sendall(b"GET /api/v1/here HTTP/1.1\r\n")
        crowd = [stack.enter_context(server.socket()) for _ in range(20)]
        assert ended(crowd[0]) == b""
        first.sendall(HOST + b"\r\n")
        assert first.recv(12) == b"HTTP/1.1 200"


def test_with_all_connections_busy_health_is_still_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(uvicorn_server, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(uvicorn_server, "RESERVED_MAX", 2)
    over = threading.Event()
    begun: list[int] = []

    async def moment(node: NodeLogSource, seq: int) -> Moment:
        begun.append(seq)
        await asyncio.to_thread(over.wait, LONG_S)
        raise NotFoundError("the test is over")

    monkeypatch.setattr(NodeLogSource, "moment", moment)
    with served(copy_of(FOLLOWER, tmp_path)) as server, contextlib.ExitStack() as stack:
        for _ in range(3):
            busy = stack.enter_context(server.socket())
            busy.sendall(b"GET /api/v1/node/moments/1 HTTP/1.1\r\n" + HOST + b"\r\n")
        until(lambda: len(begun) == 3)
        try:
            assert ask(server, "/livez").split()[1] in (b"200", b"503")
            with socket.create_connection((server.host, server.port), LONG_S) as connection:
                connection.sendall(b"GET /api/v1/here HTTP/1.1\r\n" + HOST + b"\r\n")
                answer = ended(connection).lower()
            assert answer.split()[1] == b"503" and b"retry-after" in answer and b"health probes" in answer
        finally:
            over.set()
