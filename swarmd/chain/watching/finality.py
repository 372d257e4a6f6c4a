"""Which blocks count as confirmed: those that the chain calls final, or those that lie deep enough."""

from __future__ import annotations

import logging

from swarmd.chain.ports import BlockReader, NotThere
from swarmd.config import ChainConfig
from swarmd.core.state import OUTBOX_MAX
from swarmd.errors import RpcRefused
from swarmd.worker.runtime import LOOP, Runtime

STILL_S = 1800.0  # without a further final block before that is told; Ethereum has one every 6.4 minutes

log = logging.getLogger(__name__)


class Finality:
    """Knows the last block that counts as confirmed.

    Args:
        config: says what counts.
        blocks: of the chain.
        runtime: the clock.
    """

    def __init__(self, config: ChainConfig, blocks: BlockReader, runtime: Runtime = LOOP) -> None:
        self._config = config
        self._blocks = blocks
        self._runtime = runtime
        self._lacking = False  # the chain has no final blocks, and that was told
        self._final = -1
        self._moved_at = runtime.now()
        self._still = False  # it has not moved for long, and that was told

    async def confirmed(self, tip: int) -> int:
        """The last confirmed block up to `tip`, -1 while there is none. Raises ChainError."""
        if self._config.finality != "depth":
            try:
                final = (await self._blocks.at(self._config.finality)).number
            except (RpcRefused, NotThere) as error:
                self._warn_of_lack(error.message)
            else:
                self._watch(final)
                return min(final, tip)
        return max(tip - self._config.depth, -1)

    def _warn_of_lack(self, reason: str) -> None:
        if not self._lacking:
            self._lacking = True
            log.warning(
                "the chain has no %s blocks (%s): chain.depth = %d counts as confirmed instead",
                *(self._config.finality, reason, self._config.depth),
            )

    def _watch(self, final: int) -> None:
        """Say so when there has been no further final block for long: what is submitted then waits without an end."""
        now = self._runtime.now()
        if final > self._final:
            if self._still:
                log.info("block %d is %s: blocks are confirmed again", final, self._config.finality)
            self._final, self._moved_at, self._still = final, now, False
        elif now - self._moved_at > STILL_S and not self._still:
            self._still = True
            log.warning(
                "the last %s block is %d since %.0f minutes: nothing that this node submits is confirmed meanwhile, "
                'and once %d submissions wait no more are taken; chain.finality = "depth" goes by chain.depth',
                *(self._config.finality, self._final, (now - self._moved_at) / 60, OUTBOX_MAX),
            )
