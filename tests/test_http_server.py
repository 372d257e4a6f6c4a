"""What every server of swarmd asks of a token and of its address, and whom it lets in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarmd.errors import ConfigError
from swarmd.http_server import TOKEN_CHARS_MIN, Address, bears_token, check_listen, load_token
from swarmd.uvicorn_server import listening, make_json_app


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

    async with listening(app, Address("127.0.0.1", 0), 1.0) as url:
        for odd in (b"X: \0\r\n", b"Content-Length: x\r\n"):
            assert b" 400 " in await ask(GET + odd + b"\r\n")
        assert caplog.records == []
        assert b" 500 " in await ask(GET + b"\r\n")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
