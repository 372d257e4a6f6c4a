"""How far the endpoints are: new blocks followed, and endpoints left alone that lag behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic

import anyio
import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.chain.endpoints.endpoint import SocketEndpoint, Throttled
from swarmd.chain.endpoints.rpc import FOREIGN_S, EndpointHealth, Rpc
from swarmd.chain.watching.blocks import BlockHeader
from swarmd.chain.watching.logs import Quantity
from swarmd.core.values import BlockRef
from swarmd.errors import ChainMismatch, EndpointFailed, RpcRefused
from swarmd.logger import get_logger

BEHIND_BLOCKS = 8  # an endpoint so far behind another one serves nobody
ALONE_S = 60.0  # it is left alone for so long

log = get_logger(__name__)


class RpcEndpoints:
    """See `swarmd.chain.ports.Endpoints`.

    Args:
        rpc: endpoints.
    """

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    @property
    def has_base_fee(self) -> bool:
        return self._rpc.has_base_fee

    @has_base_fee.setter
    def has_base_fee(self, known: bool) -> None:
        self._rpc.has_base_fee = known

    @property
    def current(self) -> str:
        return self._rpc.current

    async def learn_base_fee(self) -> None:
        await self._rpc.learn_base_fee()

    async def has_block(self, block: BlockRef) -> bool:
        return await has_block(self._rpc, block)

    async def leave_laggards(self) -> None:
        await pause_lagging_endpoints(self._rpc)

    def leave_current(self, reason: str) -> None:
        self._rpc.leave_current(reason, ALONE_S)

    def distrust_current(self, reason: str) -> bool:
        return distrust_current(self._rpc, reason)


async def has_block(rpc: Rpc, block: BlockRef) -> bool:
    """Whether any endpoint has this block on its chain; those that do not are left alone then."""
    answers = await rpc.ask_each("eth_getBlockByNumber", [hex(block.number), False], BlockHeader | None)  # type: ignore[arg-type]
    without = [health for health, header in answers if header is None]
    if not any(header is not None and header.hash == block.hash for _, header in answers):
        return False
    for health in without:
        _leave_alone(health, block.number)
    return True


async def pause_lagging_endpoints(rpc: Rpc) -> None:
    """Pause endpoints more than BEHIND_BLOCKS behind the highest head."""
    answers = await rpc.ask_each("eth_blockNumber", [], Quantity)
    farthest = max((int(number, 16) for _, number in answers), default=0)
    for health, number in answers:
        if int(number, 16) < farthest - BEHIND_BLOCKS:
            _leave_alone(health, farthest)


def distrust_current(rpc: Rpc, reason: str) -> bool:
    """Leave the endpoint that answered last alone for a while, for it shows another chain or contract than ours.

    Returns whether another one may say otherwise: one that is well, or has ever served, and does not say the same.
    """
    current = [health for health in rpc.healths if health.endpoint.name == rpc.current]
    others = [health for health in rpc.healths if health not in current and not health.distrusted]
    if not any((health.well or health.served) and not health.foreign for health in others):
        return False
    for health in current:
        health.failed(Throttled(f"{health.endpoint.name} is not believed: {reason}", ALONE_S))
        health.distrusted = True
    return True


def _leave_alone(health: EndpointHealth, number: int) -> None:
    health.failed(Throttled(f"{health.endpoint.name} has no block {number} yet, others have", ALONE_S))


SLOW_POLLS = 5  # of poll_s between two looks while a subscription brings the news
RETRY_S = 0.25  # between two rounds over the websocket endpoints
DEAF_AFTER = 3  # new blocks found by asking that a subscription kept silent about

log = get_logger(__name__)
_headers = msgspec.json.Decoder(BlockHeader)


class Heads:
    """Tells when it is worth looking at the chain.

    Args:
        rpc: endpoints.
        contract: whose logs are news.
        poll_s: seconds between two looks without a subscription.
    """

    def __init__(self, rpc: Rpc, contract: str, poll_s: float) -> None:
        self._rpc = rpc
        self._contract = contract
        self._poll_s = poll_s
        self._news = asyncio.Event()
        self._lost = asyncio.Event()
        self._header: BlockRef | None = None
        self._unannounced = 0
        self._not_before: dict[str, float] = {}
        self.live = ""  # name of the endpoint whose subscription works

    async def run(self) -> None:
        """Keep a subscription to new heads open until cancelled."""
        while self._rpc.sockets:
            for health in self._rpc.sockets:
                if max(health.retry_at, self._not_before.get(health.endpoint.url, 0.0)) <= monotonic():
                    await self._listen(health)
            await anyio.sleep(RETRY_S)

    async def _listen(self, health: EndpointHealth) -> None:
        """Subscribe at one endpoint and wait until the connection is lost."""
        endpoint = health.endpoint
        assert isinstance(endpoint, SocketEndpoint)
        self._lost.clear()
        endpoint.on_notification, endpoint.on_close = self._take, self._lost.set
        try:
            await self._rpc.ask_at(health, "eth_subscribe", ["newHeads"], str)
            await self._rpc.ask_at(health, "eth_subscribe", ["logs", {"address": self._contract}], str)
        except RpcRefused as error:
            log.warning("%s takes no subscriptions: %s", endpoint.name, error.message)
            self._not_before[endpoint.url] = monotonic() + FOREIGN_S
            return
        except (EndpointFailed, ChainMismatch):  # counted by the endpoint's health, and told by the watcher
            return
        self.live, self._unannounced = endpoint.name, 0
        self._news.set()  # what happened before the subscription
        log.info("subscribed at %s", endpoint.name)
        await self._lost.wait()
        self.live = ""
        await endpoint.drop()
        health.failed(endpoint.failure("lost the subscription"))
        self._news.set()

    def _take(self, subscription: str, result: msgspec.Raw) -> None:
        with suppress(*DECODE_ERRORS):  # a log, which wakes as well
            self._header = _headers.decode(result).ref()
        self._unannounced = 0
        self._news.set()

    async def wait(self, soon: bool = False) -> BlockRef | None:
        """Wait for news, or for the time to look without any. Returns the newest head, where it was told.

        Args:
            soon: look after `poll_s` even where a subscription works.
        """
        pause_s = self._poll_s * (SLOW_POLLS if self.live and not soon else 1)
        with anyio.move_on_after(pause_s):
            await self._news.wait()
        self._news.clear()
        header, self._header = self._header, None
        return header

    def wake(self) -> None:
        """Have the chain looked at now."""
        self._news.set()

    def found_unannounced(self) -> None:
        """A new block was found by asking. Raises nothing; drops a subscription that keeps silent."""
        self._unannounced += 1
        if self.live and self._unannounced >= DEAF_AFTER:
            log.warning("%s announces no blocks any more", self.live)
            self._lost.set()
