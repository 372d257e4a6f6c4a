"""Plays the daemon for a chain worker under test."""

import time
from pathlib import Path

from swarmd.config import ChainConfig, Config, SwarmConfig
from tests.driver import WorkerDriver
from tests.forked import CHAIN


class ChainDriver(WorkerDriver):
    """One node's data directory and, while it runs, its chain worker."""

    imported = CHAIN
    module = "swarmd.chain.worker"

    def __init__(self, root: Path, chain: ChainConfig | None) -> None:
        super().__init__(root, Config(swarm=SwarmConfig(id="test-swarm", kind="test", stages=1), chain=chain), "me")

    async def expect_figure(self, name: str) -> dict[str, float]:
        """Wait for progress with a figure of this name; gives all figures of it."""
        deadline = time.monotonic() + 60.0
        while not (found := [each.figures for each in self.progress if name in each.figures]):
            assert time.monotonic() < deadline, f"no {name} in {self.progress[-3:]}: {self.errors.decode()[-3000:]}"
            await self.wait_for_more(0.2)
        return found[0]
