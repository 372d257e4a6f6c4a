"""What every server of swarmd asks of a token and of its address, and whom it lets in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from swarmd import http_server
from swarmd.errors import ConfigError
from swarmd.http_server import TOKEN_CHARS_MIN, Address, bears_token, check_listen, listening, load_token


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
    kept(tmp_path / "token", "x" * TOKEN_CHARS_MIN + "\n")
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


PLACES = 8
GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Held:
    """A server of a few places, which answers when it is told to."""

    def __init__(self, port: int, much: list[asyncio.Transport]) -> None:
        self._port = port
        self.much = much  # on which an answer of many bytes was sent
        self.connections: list[Connection] = []

    async def hold(self, host: str, sent: bytes, count: int = PLACES) -> None:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(host, 0))
            writer.write(sent)
            self.connections.append((reader, writer))
        await asyncio.sleep(0.1)

    async def ask(self) -> bytes:
        """The status line that a newcomer gets; nothing where it is turned away."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(GET + b"Connection: close\r\n\r\n")
            return await asyncio.wait_for(reader.readline(), 10.0)
        except ConnectionError:
            return b""
        finally:
            writer.close()


MUCH: web.AppKey[list[asyncio.Transport]] = web.AppKey("much")


async def _answer_with_much(request: web.Request) -> web.StreamResponse:
    """More than the kernel takes from a server whose client takes nothing; notes on what it is sent."""
    response = web.StreamResponse()
    await response.prepare(request)
    assert isinstance(request.transport, asyncio.Transport)
    while request.transport.get_write_buffer_size() == 0:
        await response.write(b"x" * 16384)
    request.app[MUCH].append(request.transport)
    return response


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, answering: asyncio.Event) -> AsyncIterator[Held]:
    async def answer(request: web.Request) -> web.Response:
        await answering.wait()
        return web.Response(text="yes")

    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", PLACES)
    app = web.Application()
    app.router.add_get("/", answer)
    app.router.add_get("/much", _answer_with_much)
    app[MUCH] = []
    async with listening(app, Address("127.0.0.1", 0), 0.1) as url:
        held = Held(int(url.rpartition(":")[2]), app[MUCH])
        try:
            yield held
        finally:
            for _, writer in held.connections:
                writer.close()


@pytest.mark.parametrize("sent", [b"", GET, GET + b"\r\n"], ids=["nothing", "half a request", "a request, and no more"])
@pytest.mark.anyio
async def test_who_holds_connections_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    answering = asyncio.Event()
    answering.set()
    async with serving(monkeypatch, answering) as held:
        await held.hold("127.0.0.2", sent, 2 * PLACES)
        for _ in range(PLACES):
            assert await held.ask() == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.anyio
async def test_who_has_one_connection_keeps_it_beside_a_crowd_of_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    answering = asyncio.Event()
    answering.set()
    async with serving(monkeypatch, answering) as held:
        await held.hold("127.0.0.3", GET, 1)
        await held.hold("127.0.0.2", GET, 3 * PLACES)
        reader, writer = held.connections[0]
        writer.write(b"\r\n")
        assert await asyncio.wait_for(reader.readline(), 10.0) == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.anyio
async def test_what_is_being_answered_gives_way_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    answering = asyncio.Event()
    async with serving(monkeypatch, answering) as held:
        await held.hold("127.0.0.2", GET + b"\r\n")
        assert await held.ask() == b""
        answering.set()
        told = [await asyncio.wait_for(reader.readline(), 10.0) for reader, _ in held.connections]
        assert told == [b"HTTP/1.1 200 OK\r\n"] * PLACES


@pytest.mark.parametrize("ending", [b"Connection: close\r\n", b""], ids=["asked to end", "silent"])
@pytest.mark.anyio
async def test_who_takes_nothing_of_its_last_answer_has_a_place_and_gives_way(
    monkeypatch: pytest.MonkeyPatch, ending: bytes
) -> None:
    """The server has closed such a connection for its part, and no time is set for its client to take the rest."""
    if not ending:
        monkeypatch.setattr(http_server, "SILENT_S", 0.01)
    answering = asyncio.Event()
    answering.set()
    async with serving(monkeypatch, answering) as held:
        last = GET.replace(b"/ ", b"/much ", 1) + ending + b"\r\n"
        for number in range(2 * PLACES):
            await held.hold("127.0.0.2", last, 1)
            while len(held.much) <= number or not held.much[number].is_closing():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await held.ask() == b"HTTP/1.1 200 OK\r\n"
        taken = await asyncio.gather(*(reader.read() for reader, _ in held.connections))
        assert sum(each.endswith(b"\r\n0\r\n\r\n") for each in taken) < PLACES, "the others were cut off"


@pytest.mark.anyio
async def test_what_is_no_request_fills_no_log_and_what_fails_here_does(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: web.Request) -> web.Response:
        raise ZeroDivisionError("here")

    app = web.Application()
    app.router.add_get("/", fail)

    async def ask(sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(sent)
        answer = await reader.readline()
        writer.close()
        return answer

    async with listening(app, Address("127.0.0.1", 0), 1.0) as url:
        for odd in (b"X: \0\r\n", b"Content-Length: x\r\n", b"X: " + b"a" * 20_000 + b"\r\n"):
            assert b" 400 " in await ask(GET + odd + b"\r\n")
        assert caplog.records == []
        assert b" 500 " in await ask(GET + b"\r\n")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
