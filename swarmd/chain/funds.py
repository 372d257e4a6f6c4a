"""What the account that submits has left: asked for now and then, so that an operator hears before it cannot pay.

Only status and metrics are told. It is no fact for the event log, and where nobody answers the rest goes on without it.
"""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

import anyio

from swarmd.chain.ethereum import Ethereum
from swarmd.chain.fees import bound_wei, quote
from swarmd.config import ChainConfig
from swarmd.errors import GasTooDear, SwarmdError
from swarmd.gas import COIN_WEI, round_gas, rounds_paid
from swarmd.logger import get_logger
from swarmd.worker.runtime import TimeSource

LOOK_S = 120.0  # from one look to the next
KEPT_S = 600.0  # what was seen is told for so long when later looks are in vain

log = get_logger(__name__)


class FundsSeen(NamedTuple):
    """An account's balance when it was last read."""

    balance_wei: int
    rounds: int  # that it paid for, at the price of then
    at: float  # by the clock of who looked


class Funds:
    """Reads one account's balance now and then, and reports it.

    Args:
        config: what a node submits in a round, and the bound on fees.
        stages: in a round.
        chain: to ask.
        account: the address that pays.
        clock: seconds, monotonic.
    """

    def __init__(
        self, config: ChainConfig, stages: int, chain: Ethereum, account: str, clock: TimeSource = monotonic
    ) -> None:
        self._config = config
        self._gas = round_gas(config, stages)
        self._chain = chain
        self._account = account
        self._clock = clock
        self._seen: FundsSeen | None = None

    async def run(self) -> None:
        """Read the balance at intervals until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(LOOK_S)

    async def look(self) -> None:
        """Ask once; where nobody answers, what was seen before stays."""
        try:
            balance_wei = await self._chain.balance_wei(self._account)
            rounds = rounds_paid(balance_wei, await self._price_wei(), self._gas)
        except SwarmdError as error:  # another chain too: that is for the watcher to judge
            log.debug("what the account has is not known: %s", error.message)
        else:
            self._seen = FundsSeen(balance_wei, rounds, self._clock())

    async def _price_wei(self) -> int:
        """Of a unit of gas; where it is above the bound, the bound, for nothing dearer is ever signed."""
        try:
            return (await quote(self._chain, self._config.fees)).fee_wei
        except GasTooDear:
            return bound_wei(self._config.fees)

    def figures(self) -> dict[str, float]:
        """What is known, by the names that progress has: none where it is older than KEPT_S.

        Nor where an account behind a proxy has nothing at all: somebody else pays there, as RL Swarm's login server has
        it done.
        """
        seen = self._seen
        if seen is None or self._clock() - seen.at > KEPT_S:
            return {}
        if self._config.sender == "proxy" and seen.balance_wei == 0:
            return {}
        return {"balance_coins": seen.balance_wei / COIN_WEI, "rounds_paid": float(seen.rounds)}
