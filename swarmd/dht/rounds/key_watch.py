"""Watching a key: read it when somebody says that it has changed, and slowly in any case."""

from __future__ import annotations

import math
from random import Random

from swarmd.dht.ports import Records, RecordsSink
from swarmd.errors import NetworkDown
from swarmd.logger import get_logger
from swarmd.worker.runtime import Runtime

WANTED_MAX = 256  # owners hinted at and not yet read; more are found by the poll
AGAIN_S = 0.05  # before a hint that came ahead of its record is tried again
HINT_TRIES = 3
GAP_S = 0.05  # between two reads, however many hints come
WHOLE_POLLS = 2.0  # times the time between two polls, after which all is asked for: whoever hints without end would
# have nothing read but what it hints at
REST = 4.0  # times the processor time of a read, before the next: a crowd that fills a key has a part of a core at most

log = get_logger(__name__)


class KeyWatch:
    """One key under watch.

    Attributes:
        poll_s: longest time between two reads; a change counts from the next read on.

    Args:
        records: reads it.
        runtime: the clock.
        random: chance.
        name: the key.
        poll_s: as the attribute.
        seen: called with owner → record after every read.
    """

    def __init__(
        self,
        records: Records,
        runtime: Runtime,
        random: Random,
        name: str,
        poll_s: float,
        seen: RecordsSink,
    ) -> None:
        self.name = name
        self._records = records
        self._runtime = runtime
        self._random = random
        self.poll_s = poll_s
        self._seen = seen
        self._wanted: dict[str, float] = {}
        self._whole_at = -math.inf  # when all records were asked for last, whoever was hinted at
        self._woken = runtime.signal()

    def want(self, owner: str, expiration: float) -> None:
        """Somebody says that there is a record of `owner`; a bounded note, whoever says it how often."""
        if owner in self._wanted or len(self._wanted) < WANTED_MAX:
            self._wanted[owner] = max(expiration, self._wanted.get(owner, 0.0))
            self._woken.set()

    def look(self) -> None:
        """Read now, as if the time for it had come."""
        self._woken.set()

    async def run(self, later: bool = False) -> None:
        """Read the key when hinted at, and at intervals, until cancelled.

        Args:
            later: whether the first read waits, too: many keys are not to be read all at once.
        """
        if later:
            await self._woken.wait(self.poll_s * self._random.random())
        while True:
            await self._records.wait_up()
            began_s = self._records.spent_s()
            try:
                await self._read()
            except NetworkDown as error:
                log.debug("%s was not read: %s", self.name, error)
            spent_s = self._records.spent_s() - began_s
            await self._runtime.sleep(min(max(GAP_S, REST * spent_s), self.poll_s))
            await self._woken.wait(self.poll_s * self._random.uniform(0.8, 1.2))

    async def _read(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for _ in range(HINT_TRIES):
            now = self._runtime.now()
            whole = not wanted or now >= self._whole_at + WHOLE_POLLS * self.poll_s
            found = await self._records.find(self.name, {} if whole else wanted)
            if whole:
                self._whole_at = now
            self._seen(found.records)
            if not wanted or found.has(wanted):
                return
            await self._runtime.sleep(AGAIN_S)
