"""A contract that seemed to have no extensions is asked again: one endpoint's empty answer must not hold for ever."""

from __future__ import annotations

import logging

from swarmd.chain.requirements import ChainRequirements
from swarmd.chain.watching.watcher import Watcher
from swarmd.errors import SwarmdError
from swarmd.worker.runtime import LOOP, Runtime

AGAIN_S = 300.0

log = logging.getLogger(__name__)


class ExtensionsCheck:
    """Looks now and then whether the contract has what it was told to lack.

    Args:
        terms: how it was told to stand.
        watcher: tells it again.
        runtime: the clock.
    """

    def __init__(self, terms: ChainRequirements, watcher: Watcher, runtime: Runtime = LOOP) -> None:
        self._terms = terms
        self._watcher = watcher
        self._runtime = runtime

    async def run(self) -> None:
        """Look at intervals until cancelled."""
        while True:
            await self._runtime.sleep(AGAIN_S)
            await self.look()

    async def look(self) -> None:
        """Ask a contract that was told to have none; where it has some after all, have that told."""
        if self._terms.extensions != 0:
            return
        try:
            found = await self._terms.coordinator.extensions()
        except SwarmdError as error:  # of another chain too: that is for the watcher to judge
            log.debug("whether the contract has extensions is not known: %s", error.message)
            return
        if found:
            log.warning("the contract has extensions, of which an endpoint knew nothing before")
            self._watcher.say_again()
