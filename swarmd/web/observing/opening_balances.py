"""What peers had before the first block that an observer reads: the contract's own sums, less what was read."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import anyio

from swarmd.bounds import Backoff
from swarmd.chain.coordinator import NOT_UTF8, PEERS_A_CALL, Coordinator
from swarmd.chain.ports import NotThere
from swarmd.core.values import BlockRef
from swarmd.errors import ChainError, SwarmdError
from swarmd.logger import get_logger
from swarmd.web.views.ledger import PeerLedger

PEERS_A_LOOK = 16 * PEERS_A_CALL  # asked for at one block
RETRY = Backoff(5.0, 600.0)
FAILURES_TOLD = 3  # looks in vain, one after another, before the page says so

log = get_logger(__name__)


class BalanceQuery(NamedTuple):
    """What is asked for, and what the ledger had just then."""

    tip: BlockRef
    rewards: dict[str, float]


class OpeningBalances:
    """Adds them to the ledger, once for each peer.

    Args:
        ledger: has what blocks say.
        scale: a reward of 1.0 is this integer in the contract.

    Attributes:
        needed: blocks with rewards may lie before the first that is read.
    """

    def __init__(self, ledger: PeerLedger, scale: int) -> None:
        self.needed = False
        self._ledger = ledger
        self._scale = scale
        self._done: set[str] = set()
        self._look: BalanceQuery | None = None
        self._due = asyncio.Event()
        self._failures = 0
        self._seeded = False  # the contract's own board has been read

    def told(self) -> str:
        """A sentence about the rewards."""
        if self._failures >= FAILURES_TOLD:
            return "Rewards as well: the contract's own sums cannot be had."
        if not self._seeded:
            return "The contract's own sums of what was before are still being read."
        return "Rewards are the contract's own sums; peers that were not heard of since may be missing."

    def look(self, tip: BlockRef) -> None:
        """Ask for those not asked for yet, if none are being asked for. The ledger has all blocks up to `tip`."""
        if not self.needed or self._look is not None:
            return
        accounts = self._ledger.accounts
        self._done &= accounts.keys()  # whom the ledger has forgotten
        fresh = [peer for peer in accounts if peer not in self._done and can_be_asked(peer)][:PEERS_A_LOOK]
        if fresh or not self._seeded:
            self._look = BalanceQuery(tip, {peer: accounts[peer].reward for peer in fresh})
            self._due.set()

    async def run(self, coordinator: Coordinator) -> None:
        """Read opening balances until cancelled."""
        self._look = None  # what was to be asked when an earlier run ended
        self._due.clear()
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._ask(coordinator)
                self._failures = 0
            except SwarmdError as error:
                log.info("sums cannot be read: %s", error.message)
                self._failures += 1
                await anyio.sleep(RETRY.after(self._failures))
            self._look = None

    async def _ask(self, coordinator: Coordinator) -> None:
        assert self._look is not None
        tip, rewards = self._look
        if not self._seeded:
            board = await coordinator.winner_board(hex(tip.number))
            unheard = [peer for peer in board if peer not in self._ledger.accounts and can_be_asked(peer)]
            rewards |= dict.fromkeys(unheard, 0.0)
        totals = await totals_of(coordinator, list(rewards), hex(tip.number))
        if (await coordinator.blocks.at(tip.number)).hash != tip.hash:
            raise NotThere(f"block {tip.number} changed while sums were read")
        for peer, total in totals.items():
            self._ledger.carry(peer, total / self._scale - rewards[peer])
        self._done.update(totals)
        self._seeded = True


async def totals_of(coordinator: Coordinator, peers: list[str], block: str) -> dict[str, int]:
    """The contract's sums at a block. Raises ChainError, ContractRefused."""
    totals: dict[str, int] = {}
    for at in range(0, len(peers), PEERS_A_CALL):
        asked = peers[at : at + PEERS_A_CALL]
        found = await coordinator.total_rewards(asked, block)
        if len(found) != len(asked):
            raise ChainError(f"the contract was asked for the rewards of {len(asked)} peers and gave {len(found)}")
        totals |= zip(asked, found, strict=True)
    return totals


def can_be_asked(peer: str) -> bool:
    """Not where its id is bytes that are no text."""
    return not NOT_UTF8.search(peer)
