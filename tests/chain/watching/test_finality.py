"""What the chain calls final may stand still for ever; that is told, for nothing is confirmed meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.chain.watching.watcher import STILL_S, Finality
from swarmd.config import ChainConfig

pytestmark = pytest.mark.anyio


class Chain:
    """Its last final block, and the time."""

    def __init__(self) -> None:
        self.final = 10
        self.time = 0.0

    async def at(self, block: str) -> Any:
        assert block == "finalized"
        return SimpleNamespace(number=self.final)

    def now(self) -> float:
        return self.time


async def test_final_blocks_that_stand_still_are_told_once_until_they_move(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    chain = Chain()
    config = ChainConfig(rpc=("http://127.0.0.1:1",), chain_id=1, contract="0x" + "a1" * 20, finality="finalized")
    finality = Finality(config, cast(Any, chain), cast(Any, chain))
    for minutes in range(0, 120, 5):
        chain.time = 60.0 * minutes
        assert await finality.confirmed(1000 + minutes) == 10
        assert len(caplog.messages) == (chain.time > STILL_S), caplog.messages
    assert "the last finalized block is 10 since 35 minutes" in caplog.messages[0]
    chain.final = 11
    assert await finality.confirmed(2000) == 11 and "block 11 is finalized" in caplog.messages[1]
    chain.time += STILL_S
    assert await finality.confirmed(2000) == 11 and len(caplog.messages) == 2, "a new wait begins with each block"


async def test_no_block_is_confirmed_that_was_not_read() -> None:
    chain = Chain()
    config = ChainConfig(rpc=("http://127.0.0.1:1",), chain_id=1, contract="0x" + "a1" * 20, finality="finalized")
    finality = Finality(config, cast(Any, chain), cast(Any, chain))
    assert await finality.confirmed(7) == 7, "no further than what was read"
