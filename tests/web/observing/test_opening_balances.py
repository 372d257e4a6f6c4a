"""The contract's sums of what lies before the first block that an observer reads."""

from __future__ import annotations

import asyncio
from typing import Any

from swarmd.core.values import BlockRef
from swarmd.web.observing.opening_balances import OpeningBalances
from swarmd.web.views.ledger import PeerLedger
from tests.core.story import block


class Contract:
    """Gives the contract's board and sums; it hangs until it is let go."""

    def __init__(self) -> None:
        self.blocks, self.go = self, asyncio.Event()

    async def winner_board(self, block: str) -> tuple[str, ...]:
        await self.go.wait()
        return ("anna",)

    async def total_rewards(self, peers: list[str], block: str) -> list[int]:
        return [2500 for _ in peers]

    async def at(self, number: int) -> BlockRef:
        return block(number)


def test_what_was_to_be_asked_when_a_run_ended_is_asked_in_the_next() -> None:
    async def run_twice() -> None:
        contract: Any = Contract()
        sums.look(block(7))  # before anybody could ask
        running = asyncio.create_task(sums.run(contract))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not running.done()
        sums.look(block(8))
        contract.go.set()
        async with asyncio.timeout(30):
            while "anna" not in ledger.accounts:  # noqa: ASYNC110
                await asyncio.sleep(0)
        running.cancel()

    ledger = PeerLedger()
    sums = OpeningBalances(ledger, 1000)
    sums.needed = True
    asyncio.run(run_twice())
    assert ledger.accounts["anna"].reward == 2.5
