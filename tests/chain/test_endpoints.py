"""Calls over several endpoints: whatever one of them does, another serves, and no message shows a key."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from swarmd.chain import endpoints
from swarmd.chain.endpoints import RpcPool, parse_retry_after_s, read_endpoint_urls, url_without_secrets
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.fees import quote_gas_price
from swarmd.config import FeesConfig
from swarmd.errors import ChainMismatch, ConfigError, EndpointFailed, RpcRefused
from tests.chain.grounds import (
    CHAIN_ID,
    Act,
    Answer,
    Call,
    Ground,
    Middleman,
    acting,
    calls_through,
    calls_to,
    error,
    middleman,
    refusing,
    result,
)

pytestmark = pytest.mark.anyio
SECRET = "secret-key"


def status(code: int, **headers: str) -> Act:
    return acting(lambda call: web.Response(status=code, text=f"no, {SECRET} may not", headers=headers))


def test_urls_may_come_from_a_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rpc").write_text("# paid\nhttps://rpc.example.org/key\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_endpoint_urls(["credential:rpc"], tmp_path / "elsewhere") == ["https://rpc.example.org/key"]
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(ConfigError, match="LoadCredential=rpc"):
        read_endpoint_urls(["credential:rpc"], tmp_path)


def body(text: str) -> Act:
    """This answer to every call."""
    return acting(lambda call: web.Response(text=text))


async def silence(call: Call) -> Answer:
    await asyncio.sleep(30)
    return None


def saying(value: Any, *methods: str) -> Act:
    """This result of these methods."""
    return acting(lambda call: result(call, value), *methods)


FAILURES = {
    "429": status(429),
    "429 for a while": status(429, **{"Retry-After": "120"}),
    "502": status(502),
    "302": status(302, Location="http://127.0.0.1:1/"),
    "html": body("<html>hello</html>"),
    "deep": body('{"jsonrpc": "2.0", "id": 1, "result": ' + 50_000 * "[" + 50_000 * "]" + "}"),
    "half": body('{"jsonrpc": "2.0", "id": 1, "resu'),
    "another type": saying(["no", "number"], "eth_blockNumber"),
    "another chain": saying("0x1", "eth_chainId"),
    "a chain of many digits": saying("0x" + 5000 * "f", "eth_chainId"),  # Python refuses to print it
    "throttled": refusing(-32005, f"project {SECRET}: daily request count exceeded, request rate limited"),
    "silence": silence,
}


async def height(calls: RpcPool) -> int:
    return int(await calls.call("eth_blockNumber", [], str), 16)


@pytest.mark.parametrize("failure", FAILURES)
async def test_the_next_endpoint_serves_when_one_fails(ground: Ground, failure: str) -> None:
    """Alone it is named in the error, without its key."""
    async with (
        calls_through(ground, FAILURES[failure], ground.url, call_s=0.3) as (bad, calls),
        calls_to(bad.url, call_s=0.3) as alone,
    ):
        assert await height(calls) == ground.height()
        assert calls.current == url_without_secrets(ground.url)
        assert await height(calls) == ground.height()
        assert sum(bad.calls.values()) <= 2, "it is asked again at once"
        with pytest.raises(ChainMismatch if failure == "another chain" else EndpointFailed) as raised:
            await height(alone)
    assert f"http://127.0.0.1:{bad.port}" in str(raised.value) and SECRET not in str(raised.value)


async def test_the_preferred_endpoint_is_taken_again_once_it_answers(ground: Ground) -> None:
    async with calls_through(ground, status(503), ground.url) as (preferred, calls):
        await height(calls)
        preferred.act = Middleman._pass_on
        deadline = time.monotonic() + 10
        while calls.current != url_without_secrets(preferred.url):
            assert time.monotonic() < deadline, "it is never taken again"
            await height(calls)
            await asyncio.sleep(0.02)


async def test_a_silent_endpoint_that_is_preferred_holds_nobody_up(ground: Ground) -> None:
    async with calls_through(ground, silence, ground.url, call_s=0.4) as (preferred, calls):
        await height(calls)
        await asyncio.sleep(endpoints.BACKOFF.first_s + 0.05)
        asked = preferred.calls["eth_chainId"]
        await asyncio.wait_for(height(calls), 0.3)
        await asyncio.sleep(0.05)
        assert preferred.calls["eth_chainId"] == asked + 1, "it is probed meanwhile"


async def test_retry_after_is_respected(ground: Ground) -> None:
    async with calls_through(ground, status(429, **{"Retry-After": "60"})) as (throttling, calls):
        for _ in range(3):
            with pytest.raises(EndpointFailed):
                await height(calls)
        assert sum(throttling.calls.values()) == 1


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("99999", 300.0), ("-1", 0.0)])
async def test_retry_after_is_read(header: str, seconds: float) -> None:
    assert parse_retry_after_s(header) == seconds


async def test_all_endpoints_of_another_chain_are_a_mismatch(ground: Ground) -> None:
    calls = RpcPool([ground.url, ground.ws], 1, 1.0)
    with pytest.raises(ChainMismatch) as raised:
        await height(calls)
    assert "31337" in str(raised.value) and "chain.chain_id is 1" in str(raised.value)
    await calls.close()


@pytest.mark.parametrize("way", ["url", "ws"])
async def test_a_refusal_is_no_failure(ground: Ground, way: str) -> None:
    words, data = f"\x1b[2Jexecution reverted ({SECRET})", {"data": "0x723dc675"}
    refuse = acting(lambda call: error(call, 3, words, data), "eth_call")
    async with calls_through(ground, refuse, ground.url, way=way) as (between, calls):
        with pytest.raises(RpcRefused) as raised:
            await calls.call("eth_call", [{}, "latest"], Any)
        assert (raised.value.code, raised.value.data) == (3, "0x723dc675") and SECRET not in str(raised.value)
        assert raised.value.message.isprintable()
        await height(calls)
        assert calls.current == url_without_secrets(getattr(between, way))


async def test_a_refusal_with_a_status_of_its_own_is_one(ground: Ground) -> None:
    refuse = acting(lambda call: web.json_response(error(call, -32602, "range too long"), status=400), "eth_getLogs")
    async with calls_through(ground, refuse) as (_, calls):
        with pytest.raises(RpcRefused, match="range too long"):
            await calls.call("eth_getLogs", [{}], Any)


@pytest.mark.parametrize("way", ["url", "ws"])
async def test_a_large_answer_to_what_has_a_small_one_is_left_for_another_endpoint(
    ground: Ground, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen endpoints may be asked for a head at once."""
    monkeypatch.setattr(endpoints, "SMALL_BYTES_MAX", 1000)
    act = saying("0" * 2000, "eth_blockNumber", "eth_getLogs")
    async with calls_through(ground, act, ground.url, way=way) as (_, calls):
        assert await calls.call("eth_getLogs", [{}], str) == "0" * 2000
        assert await height(calls) == ground.height()
        assert "more than 1000 bytes" in calls.healths[0].reason


@pytest.mark.parametrize("way", ["url", "ws"])
async def test_a_range_with_too_many_logs_is_refused(ground: Ground, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked is to ask for less, not for the same again and again, though a websocket is closed by it."""
    monkeypatch.setattr(endpoints, "ANSWER_BYTES_MAX", 4000)
    async with calls_through(ground, saying("0" * 8000, "eth_getLogs"), way=way) as (between, calls):
        with pytest.raises(RpcRefused, match="more than 4000 bytes"):
            await calls.call("eth_getLogs", [{}], Any)
        if way == "ws":
            between.act = saying("0" * 8000, "eth_blockNumber")
            with pytest.raises(EndpointFailed, match="sent a message of more than 4000 bytes"):
                await height(calls)


async def test_a_websocket_serves_many_calls_and_comes_back(ground: Ground) -> None:
    async with calls_through(ground, Middleman._pass_on, way="ws") as (between, calls):
        asked = [calls.call("eth_getBlockByNumber", [hex(n % 3), False], Any) for n in range(30)]
        numbers = await asyncio.gather(*asked)
        assert [int(block["number"], 16) for block in numbers] == [n % 3 for n in range(30)]
        between.act = silence
        waiting = asyncio.create_task(height(calls))
        await asyncio.sleep(0.05)
        await between.sockets[-1].close()
        with pytest.raises(EndpointFailed, match="closed the connection"):
            await waiting
        between.act = Middleman._pass_on
        await asyncio.sleep(endpoints.BACKOFF.first_s + 0.05)
        assert await height(calls) == ground.height()
        assert between.calls["eth_chainId"] >= 2, "it is asked for its chain again after a loss"


async def test_a_websocket_leads_nowhere_else(ground: Ground) -> None:
    """A handshake that is redirected would ask services of this machine and its network, which no endpoint may."""

    asked: list[str] = []

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "/admin?delete=1"})

    async with RawTestServer(serve) as server:
        calls = RpcPool([str(server.make_url("/rpc")).replace("http", "ws"), ground.url], CHAIN_ID, 1.0)
        assert await height(calls) == ground.height()
        assert calls.current == url_without_secrets(ground.url) and asked == ["/rpc"]
        await calls.close()


async def test_a_websocket_that_sends_garbage_is_a_failure(ground: Ground) -> None:
    async with calls_through(ground, Middleman._pass_on, ground.url, way="ws") as (between, calls):
        await height(calls)
        await between.sockets[-1].send_str("hello")
        await asyncio.sleep(0.05)
        assert await height(calls) == ground.height()


# --- where URLs stand ---


async def test_urls_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "rpc").write_text("\ufeff# mine\nhttps://a.example/v2/key\n\nwss://b.example\n")
    assert read_endpoint_urls(["file:rpc", "http://127.0.0.1:1"], tmp_path) == [
        "https://a.example/v2/key",
        "wss://b.example",
        "http://127.0.0.1:1",
    ]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"ftp://secret-key.example", b"http://", b"x" * 100_000])
async def test_a_file_without_urls_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "rpc").write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_endpoint_urls(["file:rpc"], tmp_path)
    assert SECRET not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:password@node.example/v2/key?x=1", "https://node.example"),
        ("ws://[::1]:8546/key", "ws://[::1]:8546"),
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
    ],
)
async def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert url_without_secrets(url) == shown


async def hide_base_fee(ground: Ground, call: Call) -> Answer:
    """As an endpoint that wants a fortune paid for gas."""
    if call["method"] == "eth_gasPrice":
        return result(call, hex(196 * 10**9))
    if call["method"] != "eth_getBlockByNumber":
        return None
    block = ground.say(call["method"], *call["params"])
    block.pop("baseFeePerGas")
    return result(call, block)


async def test_an_endpoint_that_hides_the_base_fee_is_passed_over_once_the_chain_is_known_to_have_one(
    ground: Ground,
) -> None:
    async with calls_through(ground, Middleman._pass_on, ground.url) as (liar, calls):
        await calls.detect_base_fee()
        assert calls.has_base_fee
        liar.act = partial(hide_base_fee, ground)
        price = await quote_gas_price(EthereumClient(calls), FeesConfig())
        assert price.tip_wei is not None and price.fee_wei < 10 * 10**9


@pytest.mark.parametrize(("shown", "known"), [("++", True), ("+-", True), ("+--", False), ("--", False), ("", False)])
async def test_half_of_the_endpoints_say_whether_there_is_one(ground: Ground, shown: str, known: bool) -> None:
    async with middleman(ground.url, partial(hide_base_fee, ground)) as liar:
        urls = [ground.url if each == "+" else liar.url for each in shown]
        async with calls_to(*urls or ["http://127.0.0.1:1"]) as calls:
            await calls.detect_base_fee()
            assert calls.has_base_fee is known
