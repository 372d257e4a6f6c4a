"""What the chain's tests stand on: a chain with a swarm, a watcher that follows it, a node between that misbehaves."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import anyio
import msgspec
from aiohttp import web
from eth_abi.abi import encode

from swarmd.chain.blocks import HeadSubscription
from swarmd.chain.coordinator import CoordinatorContract
from swarmd.chain.endpoints import RpcPool
from swarmd.chain.logs import LogEntry, decode_log_entry, event_topic
from swarmd.chain.watcher import ChainRequirements, ChainWatcher
from swarmd.config import ChainConfig
from swarmd.core.commands import WatchChain
from swarmd.core.events import AnyChainLog, ChainBlock, ChainReorged, ChainUp, Event
from swarmd.core.values import BlockRef
from tests.contracts.chain import Swarm, connect, deploy, deploy_swarm

CHAIN_ID = 31337
E = TypeVar("E", bound=Any)


def decode_log(entry: Mapping[str, Any], rejected: Counter[str] | None = None) -> AnyChainLog | None:
    """What an entry says, as JSON-RPC has it."""
    return decode_log_entry(msgspec.convert(dict(entry), LogEntry), rejected)


class Ground:
    """An anvil with a swarm on it."""

    def __init__(self, url: str, stages: int = 1) -> None:
        self.url = url
        self.w3 = connect(url)
        self.stages = stages
        self.floor = 0  # blocks up to this one stay
        self._names = itertools.count()
        self.swarm: Swarm = deploy_swarm(self.w3, stages, deploy(self.w3, f"LockedSwarmCoordinator-{stages}"))

    @property
    def contract(self) -> str:
        return str(self.swarm.contract.address)

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws")

    def say(self, method: str, *params: Any) -> Any:
        """A call to the node itself; it must succeed."""
        answer = self.w3.provider.make_request(method, list(params))  # type: ignore[arg-type]
        assert "error" not in answer, answer
        return answer["result"]

    def register(self, count: int = 1) -> None:
        """Register peers that have never been registered."""
        for _ in range(count):
            self.swarm.register(self.swarm.alice, f"peer {next(self._names)}")

    def admit_only(self, *peers: str) -> None:
        """Close the swarm's membership to all but these peers."""
        swarm = self.swarm
        swarm.send(swarm.owner, "grantRole", swarm.role("MEMBERSHIP_MANAGER_ROLE"), swarm.owner)
        swarm.send(swarm.owner, "allowPeers", list(peers))
        swarm.send(swarm.owner, "setMembershipOpen", False)

    def mine(self, blocks: int = 1) -> None:
        self.say("anvil_mine", hex(blocks))

    def height(self) -> int:
        return int(self.w3.eth.block_number)

    def hash_of(self, number: int) -> str:
        return str(self.say("eth_getBlockByNumber", hex(number), False)["hash"])

    def logs(self) -> dict[int, tuple[AnyChainLog, ...]]:
        """What the chain says now, by block."""
        found: dict[int, list[AnyChainLog]] = {}
        for entry in self.say("eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest", "address": self.contract}):
            if (log := decode_log(entry)) is not None:
                found.setdefault(int(entry["blockNumber"], 16), []).append(log)
        return {number: tuple(logs) for number, logs in found.items()}

    def config(self, *rpc: str, **settings: Any) -> ChainConfig:
        given = {"rpc": rpc or (self.url,), "chain_id": CHAIN_ID, "contract": self.contract, "sender": "none"}
        return ChainConfig(**(given | {"poll_s": 0.05} | settings))


class Watch:
    """A watcher in this process, and what it observed."""

    def __init__(self, config: ChainConfig, stages: int = 1, account: str = "", range_blocks: int = 50) -> None:
        self.rpc = RpcPool(config.rpc, config.chain_id, 2.0)
        self.coordinator = CoordinatorContract(self.rpc, config.contract, config.from_block, range_blocks)
        terms = self.terms = ChainRequirements(config, stages, "me", self.coordinator)
        self.events: list[Event] = []
        self.times: list[float] = []
        self._grown = asyncio.Event()
        self.heads = HeadSubscription(self.rpc, config.contract, config.poll_s)
        self.watcher = ChainWatcher(config, terms, self.rpc, self.heads, self._take, lambda: account)
        self.ended: BaseException | None = None

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self.times.append(time.monotonic())
        self._grown.set()

    async def run(self, order: WatchChain) -> None:
        try:
            await self.watcher.run(order)
        except Exception as error:
            self.ended = error
            self._grown.set()

    def seen(self, kind: type[E], since: int = 0, **wanted: Any) -> list[E]:
        return [
            event
            for event in self.events[since:]
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in wanted.items())
        ]

    async def expect(self, kind: type[E], since: int = 0, timeout_s: float = 40.0, **wanted: Any) -> E:
        """Wait for such an event."""
        await self.until(lambda: bool(self.seen(kind, since, **wanted)), f"no {kind.__name__} {wanted}", timeout_s)
        return self.seen(kind, since, **wanted)[0]

    async def until(self, condition: Callable[[], bool], what: str = "it did not come about", timeout_s: float = 40.0):
        """Wait for something that events or the watcher's end bring about."""
        with anyio.move_on_after(timeout_s):
            while not condition():
                self._grown.clear()
                with anyio.move_on_after(0.05):
                    await self._grown.wait()
                if self.ended is not None and not condition():
                    raise self.ended
        assert condition(), f"{what}: {self.events} {self.ended!r}"

    async def failure(self, timeout_s: float = 10.0) -> BaseException:
        """What ends the watcher."""
        await self.until(lambda: self.ended is not None, "the watcher goes on", timeout_s)
        assert self.ended is not None
        return self.ended

    async def reach(self, ground: Ground) -> None:
        """Wait until it is up, at the last block."""
        await self.until(
            lambda: (
                self.watcher._branch is not None
                and self.watcher._up
                and self.watcher.branch.tip.hash == ground.hash_of(ground.height())
            )
        )

    async def settle(self, ground: Ground) -> None:
        """Wait until what was observed is what the chain says."""
        await self.reach(ground)
        assert self.fold() == ground.logs()

    def fold(self) -> dict[int, tuple[AnyChainLog, ...]]:
        """What the facts come to: the logs by block."""
        found: dict[int, tuple[AnyChainLog, ...]] = {}
        last = -1
        for event in self.events:
            if isinstance(event, ChainReorged):
                found = {number: logs for number, logs in found.items() if number <= event.fork.number}
                last = event.fork.number
            elif isinstance(event, ChainBlock):
                assert event.block.number > last, "blocks out of order"
                last = event.block.number
                found |= {last: event.logs} if event.logs else {}
        return found

    def recent(self) -> tuple[BlockRef, ...]:
        """What the core would remember of it."""
        recent: list[BlockRef] = []
        for event in self.events:
            if isinstance(event, ChainReorged):
                recent = [block for block in recent if block.number < event.fork.number] + [event.fork]
            elif isinstance(event, ChainBlock | ChainUp):
                block = event.block if isinstance(event, ChainBlock) else event.head
                recent = [*[known for known in recent if known.number < block.number][-63:], block]
        return tuple(recent)

    def order(self) -> WatchChain:
        """The order that a later worker gets."""
        ups = self.seen(ChainUp)
        return WatchChain("watch", self.recent(), ups[-1].genesis if ups else "")


@asynccontextmanager
async def watching(config: ChainConfig, order: WatchChain | None = None, **given: Any) -> AsyncIterator[Watch]:
    """A watcher until the block ends."""
    watch = Watch(config, **given)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run, order or WatchChain("watch"))
            tasks.start_soon(watch.heads.run)
            tasks.start_soon(watch.watcher.membership.run)
            yield watch
            tasks.cancel_scope.cancel()
    finally:
        await watch.rpc.close()


Call = dict[str, Any]  # a JSON-RPC request
Answer = web.Response | dict[str, Any] | None
Act = Callable[[Call], Awaitable[Answer]]


class Middleman:
    """An endpoint in front of a real one: passes calls on, unless told to do otherwise.

    `act(request)` returns the whole answer, or the JSON-RPC answer, or None to pass the call on.
    """

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self.act: Act = self._pass_on
        self.calls: Counter[str] = Counter()
        self.sockets: list[web.WebSocketResponse] = []
        self.mute = False  # passes no notification on
        self.port = 0

    @staticmethod
    async def _pass_on(request: Call) -> Answer:
        return None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v2/secret-key"

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws")

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._serve_socket(request)
        call = await request.json()
        self.calls[call["method"]] += 1
        answer = await self.act(call)
        if answer is None:
            async with self._session.post(self._behind, json=call) as response:
                answer = await response.json()
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    async def _serve_socket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.append(socket)
        async with self._session.ws_connect(self._behind.replace("http", "ws")) as behind:
            back = asyncio.create_task(self._pass_back(behind, socket))
            async for message in socket:
                call = json.loads(message.data)
                self.calls[call["method"]] += 1
                answer = await self.act(call)
                if answer is None:
                    await behind.send_json(call)
                else:
                    await socket.send_json(answer)
            back.cancel()
        return socket

    async def _pass_back(self, behind: aiohttp.ClientWebSocketResponse, socket: web.WebSocketResponse) -> None:
        async for message in behind:
            if not (self.mute and "method" in json.loads(message.data)):
                await socket.send_str(message.data)

    async def start(self, port: int = 0) -> None:
        self._session = aiohttp.ClientSession()
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{rest:.*}", self.serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port or self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        for socket in self.sockets:
            await socket.close()
        self.sockets.clear()
        await self._runner.cleanup()
        await self._session.close()


@asynccontextmanager
async def middleman(behind: str, act: Act = Middleman._pass_on) -> AsyncIterator[Middleman]:
    """One until the block ends."""
    between = Middleman(behind)
    between.act = act
    await between.start()
    try:
        yield between
    finally:
        await between.stop()


@asynccontextmanager
async def calls_to(*urls: str, call_s: float = 2.0) -> AsyncIterator[RpcPool]:
    """Calls over these endpoints until the block ends."""
    calls = RpcPool(urls, CHAIN_ID, call_s)
    try:
        yield calls
    finally:
        await calls.close()


@asynccontextmanager
async def calls_through(
    ground: Ground, act: Act, *others: str, way: str = "url", call_s: float = 2.0
) -> AsyncIterator[tuple[Middleman, RpcPool]]:
    """Calls over one endpoint that acts so, with other endpoints after it."""
    async with (
        middleman(ground.url, act) as between,
        calls_to(getattr(between, way), *others, call_s=call_s) as calls,
    ):
        yield between, calls


@asynccontextmanager
async def watching_through(
    ground: Ground, act: Act, *others: str, account: str = "", way: str = "url", **given: Any
) -> AsyncIterator[tuple[Middleman, Watch]]:
    """A watcher behind one that acts so, with other endpoints after it."""
    async with (
        middleman(ground.url, act) as between,
        watching(ground.config(getattr(between, way), *others, **given), account=account) as watch,
    ):
        yield between, watch


def acting(answer: Callable[[Call], Answer], *methods: str) -> Act:
    """Answers calls of these methods, or of all, so; None passes a call on."""

    async def act(call: Call) -> Answer:
        return answer(call) if not methods or call["method"] in methods else None

    return act


def refusing(code: int, message: str, *methods: str) -> Act:
    """Refuses calls of these methods."""
    return acting(lambda call: error(call, code, message), *methods)


class ScriptedRpc:
    """An `RpcPool` without endpoints: `answer(method, params)` says what every call comes to."""

    def __init__(self, answer: Callable[[str, list[Any]], Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, list[Any]]] = []

    async def call(self, method: str, params: Sequence[Any], kind: Any) -> Any:
        self.asked.append((method, list(params)))
        return self.answer(method, list(params))


def error(call: dict[str, Any], code: int, message: str, data: Any = None) -> dict[str, Any]:
    """A JSON-RPC error as the answer."""
    return {"jsonrpc": "2.0", "id": call["id"], "error": {"code": code, "message": message, "data": data}}


def result(call: dict[str, Any], value: Any) -> dict[str, Any]:
    """A JSON-RPC result as the answer."""
    return {"jsonrpc": "2.0", "id": call["id"], "result": value}


def entry_of(peer: str, index: int = 0, data_chars: int = 0) -> LogEntry:
    """An entry of PeerRegistered, its data filled up to this length."""
    data = "0x" + encode(["string"], [peer]).hex()
    topics = (event_topic("PeerRegistered(address,string)"), "0x" + 64 * "1")
    return LogEntry(
        "0x" + 40 * "1", topics, data.ljust(data_chars, "0"), "0x5", "0x" + 64 * "a", "0x" + 64 * "b", hex(index)
    )
