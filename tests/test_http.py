"""HTTP: a request ends, with a whole answer or an error that says what was wrong; and whom servers let in."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarmd.errors import ConfigError
from swarmd.http_client import HttpFailed, HttpRequest, read_body_start, send_request
from swarmd.http_server import TOKEN_CHARS_MIN, Address, bears_token, check_listen, load_token
from swarmd.uvicorn_server import make_json_app, serve_in_background

CALL_S = 30.0
HEAD = b"HTTP/1.1 200 OK\r\n"
Talk = Callable[[socket.socket], None]


@contextmanager
def server(talk: Talk) -> Iterator[int]:
    """A port where one connection is taken; `talk` answers it once its head and body are there."""

    def run() -> None:
        connection, _ = door.accept()
        with connection:
            got = b""
            while b"\r\n\r\n" not in got:
                got += connection.recv(65536)
            try:
                talk(connection)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield door.getsockname()[1]
        thread.join(CALL_S)
        assert not thread.is_alive()


def fetch(talk: Talk, within_s: float = CALL_S, bytes_max: int = 1000) -> tuple[int, bytes]:
    with server(talk) as port:
        return send_request(HttpRequest("GET", f"http://127.0.0.1:{port}/"), time.monotonic() + within_s, bytes_max)


def sends(body: bytes) -> Talk:
    return lambda connection: connection.sendall(body)


@pytest.mark.parametrize("length", [b"Content-Length: 5\r\n", b""])
def test_a_whole_answer_is_given(length: bytes) -> None:
    assert fetch(sends(HEAD + length + b"\r\nwhole")) == (200, b"whole")


def test_as_many_bytes_as_are_allowed_and_no_more() -> None:
    assert len(fetch(sends(HEAD + b"\r\n" + b"x" * 1000))[1]) == 1000
    with pytest.raises(HttpFailed, match="longer than 1000 bytes"):
        fetch(sends(HEAD + b"\r\n" + b"x" * 1001))


@pytest.mark.parametrize("framing", [b"Content-Length: 9\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n9\r\nhalf"])
def test_an_answer_that_breaks_off_is_none(framing: bytes) -> None:
    with pytest.raises(HttpFailed):
        fetch(sends(HEAD + framing))


def drips(connection: socket.socket) -> None:
    """No single byte is late."""
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b"x")
        threading.Event().wait(0.02)


def stalls(connection: socket.socket) -> None:
    """Some of it, then nothing: hung up on, it looks like the end of an answer."""
    connection.sendall(HEAD + b"\r\nhalf")
    connection.recv(1)


@pytest.mark.parametrize("talk", [drips, stalls, lambda connection: connection.recv(1)])
def test_what_is_late_is_told_as_late(talk: Talk) -> None:
    began = time.monotonic()
    with pytest.raises(HttpFailed, match="in time" if talk in (drips, stalls) else ""):
        fetch(talk, within_s=0.5)
    assert time.monotonic() - began < 10


class Pieces:
    """A body that comes in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def read(self, n: int, /) -> bytes:
        piece = self._pieces.pop(0) if self._pieces else b""
        if piece[n:]:
            self._pieces.insert(0, piece[n:])
        return piece[:n]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("bytes_max", "read"), [(100, b"onetwothree"), (5, b"onetw"), (3, b"one"), (11, b"onetwothree")]
)
async def test_the_start_of_a_body_is_read_in_however_many_pieces_it_comes(bytes_max: int, read: bytes) -> None:
    assert await read_body_start(Pieces(b"one", b"two", b"three"), bytes_max) == read


def kept(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    "text", ["", "x" * (TOKEN_CHARS_MIN - 1), "two words of some length", "ümläute" * 4, "a\nb" * 9]
)
def test_a_token_that_is_short_or_no_plain_word_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"no token in {tmp_path}") as refused:
        load_token(kept(tmp_path / "token", text), tmp_path)
    assert not text or text not in str(refused.value)


def test_a_token_of_the_least_length_is_taken_without_the_end_of_its_line(tmp_path: Path) -> None:
    kept(tmp_path / "token", "\ufeff" + "x" * TOKEN_CHARS_MIN + "\n")  # as some editors begin a text
    assert load_token("token", tmp_path) == "x" * TOKEN_CHARS_MIN
    assert load_token("", tmp_path) == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="asks for no token"):
        check_listen(Address(host, 1), "", "the page")
    check_listen(Address(host, 1), "x" * TOKEN_CHARS_MIN, "the page")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_an_address_of_this_machine_alone_needs_none(host: str) -> None:
    check_listen(Address(host, 1), "", "the page")
    assert bears_token("", "") and not bears_token("", "token") and not bears_token("Basic token", "token")


GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.anyio
async def test_what_is_no_request_fills_no_log_and_what_fails_here_does(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Request) -> Response:
        raise ZeroDivisionError("here")

    app = make_json_app([Route("/", fail)], lambda request: None, 1)

    async def ask(sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(sent)
        answer = await reader.readline()
        writer.close()
        return answer

    async with serve_in_background(app, Address("127.0.0.1", 0), 1.0) as url:
        for odd in (b"X: \0\r\n", b"Content-Length: x\r\n"):
            assert b" 400 " in await ask(GET + odd + b"\r\n")
        assert caplog.records == []
        assert b" 500 " in await ask(GET + b"\r\n")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
