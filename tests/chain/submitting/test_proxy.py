"""The signer proxy's client: byte for byte what upstream's nodes send, and nothing doubled whatever the proxy does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from swarmd.chain import senders as proxy_module
from swarmd.chain.endpoints import Rpc
from swarmd.chain.senders import ANSWER_BYTES_MAX, Proxy, make_sender, read_token
from swarmd.config import ChainConfig, ProxyConfig
from swarmd.core.commands import Submit
from swarmd.core.events import (
    CommandFailed,
    RegistrationLog,
    SubmissionConfirmed,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
)
from swarmd.core.values import Prepared
from swarmd.errors import ConfigError, ContractRefused, EndpointFailed, KeystoreError, SignerError
from swarmd.paths import NodeDirectory
from tests.chain.faults import Calls, Node, Places, settings, stop_all
from tests.chain.grounds import CHAIN_ID, Ground

pytestmark = pytest.mark.anyio

REGISTER = Submit("submit/register/1", "register", "register")
REWARD = Submit("submit/reward/3/1/1", "reward/3/1", "reward", round=3, stage=1, reward=-7)
WINNERS = Submit("submit/winners/3/1", "winners/3", "winners", round=3, winners=("Qm1", "Qmé"))
Answerer = Callable[[web.Request], Awaitable[web.StreamResponse]]
REWARD_CALL = "submitReward(uint256,uint256,int256,string)"


class LoginServer:
    """What upstream's server does with the account of alice. `spoil` may answer in its stead, before or after."""

    def __init__(self, ground: Ground) -> None:
        self.swarm = ground.swarm
        self.url = ""
        self.requests: list[tuple[str, bytes, dict[str, str]]] = []
        self.before: Answerer | None = None
        self.after: Answerer | None = None

    @property
    def posts(self) -> int:
        return len(self.requests)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        self.requests.append((request.path, content, dict(request.headers)))
        if self.before is not None:
            return await self.before(request)
        answer = self._submit(request.path.rsplit("/", 1)[1], json.loads(content))
        return await self.after(request) if self.after is not None else answer

    def _submit(self, method: str, body: dict[str, Any]) -> web.Response:
        peer = body["peerId"]
        name, arguments, status = {
            "register-peer": ("registerPeer", (peer,), 400),
            "submit-reward": (
                REWARD_CALL,
                (body.get("roundNumber"), body.get("stageNumber"), body.get("reward"), peer),
                500,
            ),
            "submit-winner": ("submitWinners", (body.get("roundNumber"), body.get("winners"), peer), 500),
        }[method]
        call = self.swarm.call(name, *arguments)
        try:
            error = self.swarm.reason(self.swarm.alice, call)
        except AssertionError:
            self.swarm.send(self.swarm.alice, name, *arguments)
            return web.json_response({"hash": "0x" + 64 * "a"})
        return web.json_response({"error": error, "metaMessages": []}, status=status)


@asynccontextmanager
async def served(server: LoginServer) -> AsyncIterator[LoginServer]:
    app = web.Application()
    app.router.add_post("/api/{method}", server.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/api"  # type: ignore[union-attr]
    try:
        yield server
    finally:
        await runner.cleanup()


@pytest.fixture
async def server(ground: Ground) -> AsyncIterator[LoginServer]:
    async with served(LoginServer(ground)) as one:
        yield one
        await stop_all()


@pytest.fixture
async def rpc(ground: Ground) -> AsyncIterator[Rpc]:
    connected = Rpc((ground.url,), CHAIN_ID, 2.0)
    yield connected
    await connected.close()


def config_of(ground: Ground, server: LoginServer, account: str = "", **given: Any) -> ChainConfig:
    proxy = ProxyConfig(url=server.url, org="4f-org", account=account)
    return settings(ground, **({"sender": "proxy", "proxy": proxy, "stuck_s": 0.15} | given))


class Mortal(Proxy):
    """One whose process may die around a request."""

    def __init__(self, config: ChainConfig, calls: Calls, places: Places) -> None:
        super().__init__(config, calls)
        self._places = places

    async def _post(self, method: str, body: dict[str, Any]) -> tuple[int, bytes]:
        self._places.pass_by("before the request")
        answer = await super()._post(method, body)
        self._places.pass_by("after the request")
        return answer


def proxy_node(ground: Ground, config: ChainConfig, *deaths: int) -> Node:
    places = Places(*deaths)
    return Node(ground, config, lambda calls: Mortal(config, calls, places), "me", places)


def once(ground: Ground, node: Node, name: str) -> None:
    assert len(node.of(SubmissionConfirmed, name)) == 1, node.story()
    registered = [log for logs in ground.logs().values() for log in logs if isinstance(log, RegistrationLog)]
    assert len(registered) == 1, node.story()


# --- the requests ---


async def test_requests_are_upstreams_byte_for_byte(ground: Ground, server: LoginServer, rpc: Rpc) -> None:
    async def accept(request: web.Request) -> web.Response:
        return web.json_response({"hash": "0x12"})

    server.before = accept
    proxy = Proxy(config_of(ground, server), rpc)
    for command in (REGISTER, REWARD, WINNERS):
        assert await proxy.send("Qmme", command, Prepared()) == "0x12"
    assert [(path, content) for path, content, _ in server.requests] == [
        ("/api/register-peer", b'{"orgId": "4f-org", "peerId": "Qmme"}'),
        (
            "/api/submit-reward",
            b'{"orgId": "4f-org", "roundNumber": 3, "stageNumber": 1, "reward": -7, "peerId": "Qmme"}',
        ),
        (
            "/api/submit-winner",
            b'{"orgId": "4f-org", "roundNumber": 3, "winners": ["Qm1", "Qm\\u00e9"], "peerId": "Qmme"}',
        ),
    ]
    for _, _, headers in server.requests:
        assert headers["Content-Type"] == "application/json" and "Authorization" not in headers


async def test_a_bearer_token_goes_along_and_is_in_no_error(ground: Ground, server: LoginServer, rpc: Rpc) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": "no"}, status=401)

    server.before = refuse
    with pytest.raises(SignerError) as error:
        await Proxy(config_of(ground, server), rpc, "s3cret-token").send("me", REGISTER, Prepared())
    assert server.requests[0][2]["Authorization"] == "Bearer s3cret-token"
    assert error.value.status == 401 and "chain.proxy.token" in str(error.value)
    assert "s3cret" not in str(error.value) and "/api" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "mode"), [(None, 0), (b"", 0o600), (b"a b", 0o600), (b"\xff", 0o600), (b"abc", 0o644)]
)
def test_a_token_that_is_none_or_readable_by_others_is_refused(tmp_path: Any, content: bytes | None, mode: int) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
        (tmp_path / "token").chmod(mode)
    with pytest.raises(KeystoreError) as error:
        read_token("token", tmp_path)
    assert "token" in str(error.value)


@pytest.mark.parametrize("url", ["localhost:3000/api", "ftp://x/y", "http://", "http://u:p@x/api", "http://x:99999/"])
async def test_a_url_that_is_none_is_named(ground: Ground, rpc: Rpc, tmp_path: Any, url: str) -> None:
    config = settings(ground, sender="proxy", proxy=ProxyConfig(url=url, org="x"))
    with pytest.raises(ConfigError, match=r"chain\.proxy\.url"):
        make_sender(config, NodeDirectory(tmp_path), rpc)


# --- the answers ---


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, '{"error":"bad request generic"}', SignerError, "chain.proxy.org"),
        (404, '{"error":"user not found"}', SignerError, "user not found"),
        (302, "", SignerError, "302"),
        (429, "slow down", SignerError, "less often"),
        (500, '{"error":"An unexpected error occurred","original":{}}', EndpointFailed, "unexpected"),
        (200, "no json", EndpointFailed, "200"),
        (200, "[" * 30_000, EndpointFailed, "200"),
        (500, '{"error": {"a": 1}}', EndpointFailed, "500"),
        (500, '{"error":"' + "x" * 100_000 + '"}', EndpointFailed, "500"),
        (400, '{"error":"PeerIdAlreadyRegistered","metaMessages":[]}', ContractRefused, "PeerIdAlreadyRegistered"),
        (400, '{"error":"\\u001b[31mred"}', SignerError, "[31mred"),
    ],
)
async def test_every_answer_is_a_typed_error(
    ground: Ground, server: LoginServer, rpc: Rpc, status: int, body: str, kind: type[Exception], words: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers={"Location": "http://127.0.0.1:1/"})

    server.before = answer
    with pytest.raises(kind) as error:
        await Proxy(config_of(ground, server), rpc).send("me", REGISTER, Prepared())
    assert words in str(error.value) and len(str(error.value)) < 600 and str(error.value).isprintable()


@pytest.mark.parametrize("hash", ["0xab\\ud800", "0x\\u001b[2Jab"])
async def test_what_a_hash_may_not_hold_is_left_out(ground: Ground, server: LoginServer, rpc: Rpc, hash: str) -> None:
    """Half of a character fits into no log: the submission would have failed after it was sent."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f'{{"hash":"{hash}"}}')

    server.before = answer
    name = await Proxy(config_of(ground, server), rpc).send("me", REGISTER, Prepared())
    assert name is not None and name.isprintable() and name.startswith("0x")
    msgspec.msgpack.encode(SubmissionSent("register", name))


async def test_a_proxy_that_is_not_there_or_does_not_answer(ground: Ground, server: LoginServer, rpc: Rpc) -> None:
    async def hang(request: web.Request) -> web.Response:
        request.transport.close() if request.transport else None
        return web.Response()

    server.before = hang
    with pytest.raises(EndpointFailed, match="broke off"):
        await Proxy(config_of(ground, server), rpc).send("me", REGISTER, Prepared())
    nowhere = ProxyConfig(url="http://127.0.0.1:1/api", org="x")
    with pytest.raises(SignerError, match="is it running"):
        await Proxy(settings(ground, proxy=nowhere), rpc).send("me", REGISTER, Prepared())


async def test_a_proxy_without_end(ground: Ground, server: LoginServer, rpc: Rpc) -> None:
    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        sent = 0
        while request.transport is not None and not request.transport.is_closing() and sent < 64 * ANSWER_BYTES_MAX:
            await response.write(b"x" * ANSWER_BYTES_MAX)
            sent += ANSWER_BYTES_MAX
        return response

    server.before = flood
    with pytest.raises(EndpointFailed):
        await Proxy(config_of(ground, server), rpc).send("me", REGISTER, Prepared())


async def test_a_proxy_that_is_slow_is_given_up(
    ground: Ground, server: LoginServer, rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "CALL_S", 0.1)

    async def dawdle(request: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    server.before = dawdle
    with pytest.raises(EndpointFailed, match=r"did not answer within 0\.1 s"):
        await Proxy(config_of(ground, server), rpc).send("me", REGISTER, Prepared())


# --- exactly once ---


@pytest.mark.parametrize("known", [True, False])
async def test_every_kind_goes_through_once(ground: Ground, server: LoginServer, known: bool) -> None:
    node = proxy_node(ground, config_of(ground, server, ground.swarm.alice if known else ""))
    node.want("register")
    await node.run()
    names = [node.want("reward", reward=5).submission, node.want("winners", winners=("me",)).submission]
    await node.run()
    assert server.posts == 3
    assert all(len(node.of(SubmissionConfirmed, name)) == 1 for name in ("register/0/0", *names))
    assert all(each.hash == "0x" + 64 * "a" for each in node.of(SubmissionSent))


@pytest.mark.parametrize("known", [True, False])
async def test_a_death_at_any_place_asks_once(ground: Ground, server: LoginServer, known: bool) -> None:
    config = config_of(ground, server, ground.swarm.alice if known else "")
    start = ground.say("evm_snapshot")
    deaths = 0
    while True:
        server.requests.clear()
        node = proxy_node(ground, config, deaths)
        node.want("register")
        await node.run()
        await node.stop()
        once(ground, node, "register/0/0")
        assert server.posts == 1, f"died {node.places.names[deaths : deaths + 1]}: {node.story()}"
        if node.lives == 1:
            break
        ground.say("evm_revert", start)
        start = ground.say("evm_snapshot")
        deaths += 1
    assert deaths > 10


async def test_an_answer_that_is_lost_is_found_on_the_chain(ground: Ground, server: LoginServer) -> None:
    async def break_off(request: web.Request) -> web.Response:
        return web.Response(status=502)

    server.after = break_off
    node = proxy_node(ground, config_of(ground, server))
    node.want("register")
    await node.run()
    once(ground, node, "register/0/0")
    assert server.posts == 1 and "may have submitted" in node.of(CommandFailed)[0].reason


async def test_what_a_proxy_took_and_never_sent_is_asked_for_again(ground: Ground, server: LoginServer) -> None:
    async def pretend(request: web.Request) -> web.Response:
        if server.posts > 1:
            server.before = None
        return web.json_response({"hash": "0x12"})

    server.before = pretend
    node = proxy_node(ground, config_of(ground, server))
    node.want("register")
    await node.run()
    once(ground, node, "register/0/0")
    assert server.posts == 3
    assert all("does not have it 0.15 s after" in each.reason for each in node.of(CommandFailed))
    assert len({each.prepared for each in node.of(SubmissionPrepared)}) == 1


async def test_a_clear_no_is_asked_again_without_waiting(ground: Ground, server: LoginServer) -> None:
    async def refuse(request: web.Request) -> web.Response:
        if server.posts > 3:
            server.before = None
        return web.json_response({"error": "user not found"}, status=404)

    server.before = refuse
    node = proxy_node(ground, config_of(ground, server, stuck_s=1000))
    node.want("register")
    await node.run()
    once(ground, node, "register/0/0")
    assert server.posts == 5


@pytest.mark.parametrize("known", [True, False])
async def test_registered_already_is_success_or_the_end(ground: Ground, server: LoginServer, known: bool) -> None:
    ground.swarm.register(ground.swarm.bob, "me")
    node = proxy_node(ground, config_of(ground, server, ground.swarm.alice if known else ""))
    node.want("register")
    await node.run()
    if known:
        assert [(each.code, each.permanent) for each in node.of(SubmissionRefused)] == [("taken", True)]
    else:
        once(ground, node, "register/0/0")
    assert server.posts == 0


@pytest.mark.parametrize("known", [True, False])
async def test_a_refusal_by_name_is_recorded(ground: Ground, server: LoginServer, known: bool) -> None:
    """If the account is known, before the proxy is asked."""
    ground.swarm.register(ground.swarm.alice, "me")
    node = proxy_node(ground, config_of(ground, server, ground.swarm.alice if known else ""))
    node.want("winners", winners=("a", "a"))
    await node.run()
    assert node.codes() == ["InvalidVote"] and server.posts == (0 if known else 1)


async def test_a_step_of_the_contract_is_not_offered(ground: Ground, server: LoginServer) -> None:
    node = proxy_node(ground, config_of(ground, server))
    node.want("advance")
    await node.run()
    assert node.codes() == ["not-offered"] and server.posts == 0


@pytest.mark.parametrize("known", [True, False])
async def test_one_registered_while_the_proxy_is_asked(ground: Ground, server: LoginServer, known: bool) -> None:
    async def overtaken(request: web.Request) -> web.Response:
        ground.swarm.register(ground.swarm.bob, "me")
        return web.json_response({"error": "PeerIdAlreadyRegistered", "metaMessages": []}, status=400)

    server.before = overtaken
    node = proxy_node(ground, config_of(ground, server, ground.swarm.alice if known else ""))
    node.want("register")
    await node.run()
    assert node.codes() == (["taken"] if known else []) and server.posts == 1


async def test_a_request_that_may_have_been_taken_is_not_made_again_at_once(
    ground: Ground, server: LoginServer
) -> None:
    async def accept(request: web.Request) -> web.Response:
        return web.json_response({"hash": "0x12"})

    server.before = accept
    node = proxy_node(ground, config_of(ground, server, stuck_s=1000))
    node.want("register")
    await node.run(lambda: bool(node.of(SubmissionSent)))
    await node.stop()
    looks = 0

    def tick() -> None:
        nonlocal looks
        looks += 1

    node.on_tick = tick
    await node.run(lambda: looks > 20)
    assert server.posts == 1 and not node.of(CommandFailed)
    ground.swarm.register(ground.swarm.alice, "me")
    await node.run()
    once(ground, node, "register/0/0")
    assert server.posts == 1
