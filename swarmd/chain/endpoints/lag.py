"""Endpoints that answer, but from the past or of another chain: told from a chain that did change, and left alone."""

from __future__ import annotations

import logging

from swarmd.chain.endpoints.endpoint import Throttled
from swarmd.chain.endpoints.rpc import EndpointHealth, Rpc
from swarmd.chain.watching.blocks import BlockHeader
from swarmd.chain.watching.logs import Quantity
from swarmd.core.values import BlockRef

BEHIND_BLOCKS = 8  # an endpoint so far behind another one serves nobody
ALONE_S = 60.0  # it is left alone for so long

log = logging.getLogger(__name__)


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
