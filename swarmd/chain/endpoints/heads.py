"""News of the chain's head: from a subscription where an endpoint has one, by asking now and then where none has.

A notification only wakes the watcher, which reads what it needs. Notifications of logs are taken as hints as well, but
never as the logs themselves: nobody says when those of a block are complete.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic

import anyio
import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.chain.endpoints.endpoint import SocketEndpoint
from swarmd.chain.endpoints.rpc import FOREIGN_S, EndpointHealth, Rpc
from swarmd.chain.watching.blocks import BlockHeader
from swarmd.core.values import BlockRef
from swarmd.errors import ChainMismatch, EndpointFailed, RpcRefused

SLOW_POLLS = 5  # of poll_s between two looks while a subscription brings the news
RETRY_S = 0.25  # between two rounds over the websocket endpoints
DEAF_AFTER = 3  # new blocks found by asking that a subscription kept silent about

log = logging.getLogger(__name__)
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
