"""Watching a key: read it when somebody says that it has changed, and slowly in any case."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping

import anyio

from swarmd.dht.lookup import lookup
from swarmd.dht.node import Node
from swarmd.dht.records import Signed
from swarmd.errors import NetworkDown

WANTED_MAX = 256  # owners hinted at and not yet read; more are found by the poll
AGAIN_S = 0.05  # before a hint that came ahead of its record is tried again
HINT_TRIES = 3
GAP_S = 0.05  # between two reads, however many hints come
REST = 4.0  # times the processor time of a read, before the next: a crowd that fills a key has a part of a core at most

log = logging.getLogger(__name__)


class Watch:
    """One key under watch.

    Args:
        node: reads it.
        name: the key.
        poll_s: longest time between two reads.
        seen: called with owner → record after every read.
    """

    def __init__(self, node: Node, name: str, poll_s: float, seen: Callable[[Mapping[str, Signed]], None]) -> None:
        self.name = name
        self.scope = anyio.CancelScope()  # cancel it to stop the watch
        self._node = node
        self._poll_s = poll_s
        self._seen = seen
        self._wanted: dict[str, float] = {}
        self._woken = anyio.Event()

    def want(self, owner: str, expiration: float) -> None:
        """Somebody says that there is a record of `owner`; a bounded note, whoever says it how often."""
        if owner in self._wanted or len(self._wanted) < WANTED_MAX:
            self._wanted[owner] = max(expiration, self._wanted.get(owner, 0.0))
            self._woken.set()

    def look(self) -> None:
        """Read now, as if the time for it had come."""
        self._woken.set()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self._node.wait_up()
            began = time.thread_time()
            try:
                await self._read()
            except NetworkDown as error:
                log.debug("%s was not read: %s", self.name, error)
            await anyio.sleep(min(max(GAP_S, REST * (time.thread_time() - began)), self._poll_s))
            with anyio.move_on_after(self._poll_s * random.uniform(0.8, 1.2)):
                await self._woken.wait()
            self._woken = anyio.Event() if self._woken.is_set() else self._woken

    async def _read(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for _ in range(HINT_TRIES):
            found = await self._node.call(lambda life: lookup(life, self.name, wanted))
            self._seen(found.records)
            if not wanted or found.has(wanted):
                return
            await anyio.sleep(AGAIN_S)
