"""Calls to the chain, over the first endpoint that serves them.

Endpoints are tried in the order of the configuration. One that fails is left alone for a while, longer each time, and
then tried in the background, so that nobody waits for it; once it answers it is preferred again. An endpoint is used
only after it has said the chain id of the configuration, and says it again after every failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Protocol, TypeVar

from swarmd.bounds import Backoff
from swarmd.chain.endpoints.endpoint import RpcEndpoint, SocketEndpoint, Throttled, endpoint_of
from swarmd.chain.fees import LEGACY_FIX, NO_BASE_FEE, quantity
from swarmd.errors import ChainMismatch, EndpointFailed, RpcRefused
from swarmd.logger import get_logger

BACKOFF = Backoff(0.25, 15.0)
BLOCK = "eth_getBlockByNumber"
CALL_S = 10.0  # every call to an endpoint ends within this
FOREIGN_S = 300.0  # an endpoint of another chain is asked again after this

T = TypeVar("T")
log = get_logger(__name__)


class RpcCaller(Protocol):
    """What carries out one JSON-RPC call on the chain."""

    async def request(self, method: str, params: Sequence[Any]) -> Any:
        """The result of a JSON-RPC call.

        Raises:
            EndpointFailed: no endpoint answers.
            RpcRefused: a node answered with an error that is about the request itself.
            ChainMismatch: all that answer are of another chain.
        """


class EndpointHealth:
    """How one endpoint has been doing."""

    def __init__(self, endpoint: RpcEndpoint) -> None:
        self.endpoint = endpoint
        self.failures = 0  # one after another
        self.retry_at = 0.0  # monotonic; it is left alone until then
        self._verified_at = -1  # count of lost connections when it last said the right chain id
        self.served = False  # it has ever said it
        self.foreign = 0  # the other chain id that it said last
        self.distrusted = False  # it shows a chain or a contract that is not ours
        self.reason = ""

    @property
    def well(self) -> bool:
        return self.failures == 0 and not self.foreign

    @property
    def verified(self) -> bool:
        """It has said the right chain id since its last failure."""
        return self._verified_at == self.endpoint.losses

    async def verify(self, chain_id: int) -> None:
        """Ask for its chain. Raises EndpointFailed when it is another one."""
        said = await chain_id_at(self.endpoint)
        self.foreign = 0 if said == chain_id else said
        if self.foreign:
            raise self.endpoint.failure(f"is a node of chain {said}, not of {chain_id}")
        self._verified_at, self.served = self.endpoint.losses, True

    def failed(self, error: EndpointFailed) -> None:
        """Leave it alone for a while; what fails while it is left alone was under way before."""
        self._verified_at = -1
        if self.failures and monotonic() < self.retry_at:
            return
        if self.failures == 0:
            log.warning("%s", error.message)
        self.failures += 1
        self.reason = error.message
        pause_s = BACKOFF.after(self.failures)
        if isinstance(error, Throttled):
            pause_s = max(pause_s, error.retry_s)
        self.retry_at = monotonic() + (FOREIGN_S if self.foreign else pause_s)

    def answered(self) -> None:
        """Record a successful call: reset failures and back-off."""
        if self.failures:
            log.info("%s answers again", self.endpoint.name)
        self.failures, self.foreign, self.reason, self.distrusted = 0, 0, "", False


class Rpc:
    """An `RpcCaller` over several endpoints: the first that serves answers, others are tried when it fails.

    Args:
        urls: best first.
        chain_id: of the chain that they must be of.
        call_s: every call to one endpoint ends within this.
    """

    def __init__(self, urls: Sequence[str], chain_id: int, call_s: float = CALL_S) -> None:
        self._chain_id = chain_id
        self.healths = [EndpointHealth(endpoint_of(url, call_s)) for url in urls]
        self._probes: dict[str, asyncio.Task[None]] = {}
        self.current = ""  # name of the endpoint that answered last
        self.has_base_fee = False  # blocks have one: an endpoint that shows a head without it has failed.
        # Whoever signs sets it beforehand, unless the configuration says that the chain has none.

    async def request(self, method: str, params: Sequence[Any]) -> Any:
        """See `RpcCaller`."""
        return await self._first(lambda endpoint: self._ask_openly(endpoint, method, params))

    async def _ask_openly(self, endpoint: RpcEndpoint, method: str, params: Sequence[Any]) -> Any:
        """Without a base fee a price of its own choice would be signed, and paid in full."""
        result = await endpoint.ask(method, params, Any)
        of_head = method == BLOCK and params[0] == "latest"
        if self.has_base_fee and of_head and isinstance(result, dict) and not _shows_base_fee(result):
            raise EndpointFailed(f"{NO_BASE_FEE.format(endpoint.name)}. {LEGACY_FIX}")
        return result

    async def learn_base_fee(self) -> None:
        """Remember that the chain has a base fee, once half of the endpoints that answer show one."""
        if not self.has_base_fee:
            answers = await self.ask_each(BLOCK, ["latest", False], dict[str, Any])
            shown = sum(_shows_base_fee(block) for _, block in answers)
            self.has_base_fee = 0 < len(answers) <= 2 * shown

    async def ask(self, method: str, params: Sequence[Any], kind: type[T]) -> T:
        """As `request`; an endpoint whose result is not of this type counts as failed, and the next one is tried."""
        return await self._first(lambda endpoint: endpoint.ask(method, params, kind))

    async def _first(self, call: Callable[[RpcEndpoint], Awaitable[T]]) -> T:
        for health in self._in_order():
            try:
                return await self._try(health, call)
            except EndpointFailed as error:
                health.failed(error)
        raise self._nobody()

    def _in_order(self) -> list[EndpointHealth]:
        """Those that are well, then those whose pause is over; where any is well, the latter are only probed."""
        well = [health for health in self.healths if health.well]
        due = [health for health in self.healths if not health.well and health.retry_at <= monotonic()]
        if well:
            for health in due:
                self._probe(health)
        return well + due

    def leave_current(self, reason: str, pause_s: float) -> None:
        """Turn to another endpoint for a while, where there is one that is well: this one answers, and to no avail."""
        current = [health for health in self.healths if health.well and health.endpoint.name == self.current]
        if current and any(health.well for health in self.healths if health not in current):
            for health in current:
                health.failed(Throttled(f"{health.endpoint.name} answers, and to no avail: {reason}", pause_s))

    async def ask_at(self, health: EndpointHealth, method: str, params: Sequence[Any], kind: type[T]) -> T:
        """A call to one endpoint. Raises as `request` does."""
        try:
            return await self._try(health, lambda endpoint: endpoint.ask(method, params, kind))
        except EndpointFailed as error:
            health.failed(error)
            raise

    async def ask_each(self, method: str, params: Sequence[Any], kind: type[T]) -> list[tuple[EndpointHealth, T]]:
        """What all endpoints say that are not left alone just now and do answer."""
        asked = [health for health in self.healths if health.well or health.retry_at <= monotonic()]
        results = await asyncio.gather(
            *(self.ask_at(health, method, params, kind) for health in asked), return_exceptions=True
        )
        pairs = zip(asked, results, strict=True)
        return [(health, result) for health, result in pairs if not isinstance(result, BaseException)]

    async def _try(self, health: EndpointHealth, call: Callable[[RpcEndpoint], Awaitable[T]]) -> T:
        if not health.verified:
            await health.verify(self._chain_id)
        try:
            result = await call(health.endpoint)
        except RpcRefused:
            self._answered(health)
            raise
        self._answered(health)
        return result

    def _answered(self, health: EndpointHealth) -> None:
        health.answered()
        self.current = health.endpoint.name

    def _probe(self, health: EndpointHealth) -> None:
        name = health.endpoint.url
        if name not in self._probes:
            self._probes[name] = asyncio.create_task(self._look_after(health))
            self._probes[name].add_done_callback(lambda task: self._probes.pop(name, None))

    async def _look_after(self, health: EndpointHealth) -> None:
        try:
            await health.verify(self._chain_id)
            health.answered()
        except EndpointFailed as error:
            health.failed(error)

    def _nobody(self) -> EndpointFailed | ChainMismatch:
        foreign = [health for health in self.healths if health.foreign]
        if foreign and not any(health.served and not health.foreign for health in self.healths):
            return ChainMismatch(
                f"{foreign[0].endpoint.name} is a node of chain {foreign[0].foreign}, "
                f"chain.chain_id is {self._chain_id}",
                "Name endpoints of that chain in chain.rpc, or correct chain.chain_id",
            )
        return EndpointFailed(
            "no endpoint answers: " + "; ".join(health.reason for health in self.healths),
            "Check the endpoints' addresses and keys, or name another one",
        )

    @property
    def sockets(self) -> list[EndpointHealth]:
        """Those that bring notifications, best first."""
        return [health for health in self.healths if isinstance(health.endpoint, SocketEndpoint)]

    async def close(self) -> None:
        """Close the connections of all endpoints."""
        for task in list(self._probes.values()):
            task.cancel()
        for health in self.healths:
            await health.endpoint.close()


async def chain_id_at(endpoint: RpcEndpoint) -> int:
    """The chain that an endpoint says it is of. Raises EndpointFailed."""
    try:
        answer = await endpoint.ask("eth_chainId", [], str)
    except RpcRefused:
        answer = ""
    try:
        return quantity(answer, "chain id")
    except EndpointFailed:
        raise endpoint.failure("does not say its chain id") from None


def _shows_base_fee(block: dict[str, Any]) -> bool:
    return block.get("baseFeePerGas") is not None
