"""The branch of the chain that has been read: the last blocks, for finding where another branch forks off."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from swarmd.core.state import BLOCKS_KEPT
from swarmd.core.values import BlockRef

KEPT_MAX = 256 + BLOCKS_KEPT  # most recent blocks that are remembered


class BlockCheck(Protocol):
    """Asks whether the chain still has a block: `swarmd.chain.ports.Endpoints.has_block`, or a reading by number."""

    async def __call__(self, block: BlockRef, /) -> bool:
        """Whether it has. Raises ChainError, as every read."""


class Branch:
    """Blocks in the order of their numbers, the last one being the tip; there may be gaps.

    Args:
        blocks: at least one, oldest first.
    """

    def __init__(self, blocks: Sequence[BlockRef]) -> None:
        self._blocks = sorted(blocks, key=lambda block: block.number)

    @property
    def tip(self) -> BlockRef:
        """The last block that was read."""
        return self._blocks[-1]

    def at(self, number: int) -> BlockRef | None:
        """The block of that number, where it is remembered."""
        place = bisect_left(self._blocks, number, key=lambda block: block.number)
        found = self._blocks[place] if place < len(self._blocks) else None
        return found if found is not None and found.number == number else None

    def add(self, block: BlockRef) -> None:
        """Append the block that follows the tip."""
        self._blocks = [*self._blocks[1 - KEPT_MAX :], block]

    def cut(self, number: int) -> None:
        """Forget the blocks after this one."""
        self._blocks = [block for block in self._blocks if block.number <= number]

    async def fork(self, is_on_chain: BlockCheck) -> BlockRef | None:
        """The last block that is still on the chain, None when none is; every block before such a one is, too."""
        low, high, step = 0, len(self._blocks), 1
        while low < high:  # steps back from the tip double until one is on the chain; then the gap is halved
            middle = max(high - step, 0) if low == 0 else (low + high) // 2
            if await is_on_chain(self._blocks[middle]):
                low = middle + 1
            else:
                high, step = middle, step * 2
        return self._blocks[low - 1] if low else None

    def __len__(self) -> int:
        return len(self._blocks)
