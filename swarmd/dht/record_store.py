"""The records of all peers: look-ups, and keys under watch. No hivemind in it.

- A key that is watched is read when somebody says that it has changed, and slowly in any case.
- A record that its owner stores with this node is as good as a hint at it; a report is handed to whoever collects
  reports, and nothing else is heard of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from random import Random

from swarmd.dht.ports import Findings, RecordsSink, ReportCheck
from swarmd.dht.wire.records import Record
from swarmd.errors import NetworkDown
from swarmd.logger import get_logger
from swarmd.worker.runtime import Running, Runtime

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

    Args:
        records: reads it.
        runtime: the clock.
        random: chance.
        name: the key.
        poll_s: longest time between two reads.
        seen: called with owner → record after every read.
    """

    def __init__(
        self,
        records: RecordStore,
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
        self._poll_s = poll_s
        self._seen = seen
        self._wanted: dict[str, float] = {}
        self._whole_at = -math.inf  # when all records were asked for last, whoever was hinted at
        self._woken = runtime.signal()

    def want(self, owner: str, expiration: float) -> None:
        """Somebody says that there is a record of `owner`; a bounded note, whoever says it how often."""
        if owner in self._wanted or len(self._wanted) < WANTED_MAX:
            self._wanted[owner] = max(expiration, self._wanted.get(owner, 0.0))
            self._woken.set()

    def read_every(self, poll_s: float) -> None:
        """Let so much time lie between two reads at most, from the next read on."""
        self._poll_s = poll_s

    def look(self) -> None:
        """Read now, as if the time for it had come."""
        self._woken.set()

    async def run(self, later: bool = False) -> None:
        """Read the key when hinted at, and at intervals, until cancelled.

        Args:
            later: whether the first read waits, too: many keys are not to be read all at once.
        """
        if later:
            await self._woken.wait(self._poll_s * self._random.random())
        while True:
            await self._records.wait_up()
            began_s = self._records.spent_s()
            try:
                await self._read()
            except NetworkDown as error:
                log.debug("%s was not read: %s", self.name, error)
            spent_s = self._records.spent_s() - began_s
            await self._runtime.sleep(min(max(GAP_S, REST * spent_s), self._poll_s))
            await self._woken.wait(self._poll_s * self._random.uniform(0.8, 1.2))

    async def _read(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for _ in range(HINT_TRIES):
            now = self._runtime.now()
            whole = not wanted or now >= self._whole_at + WHOLE_POLLS * self._poll_s
            found = await self._records.find(self.name, {} if whole else wanted)
            if whole:
                self._whole_at = now
            self._seen(found.records)
            if not wanted or found.has(wanted):
                return
            await self._runtime.sleep(AGAIN_S)


class RecordStore(ABC):
    """Finds records and watches keys; the network that they lie in is whoever's inherits from it.

    Attributes:
        watches: by the key's name.

    Args:
        runtime: the clock.
        random: chance.
        poll_s: time between two reads of a watched key that nobody hints at.
    """

    def __init__(self, runtime: Runtime, random: Random, poll_s: float) -> None:
        self.watches: dict[str, KeyWatch] = {}
        self._runtime = runtime
        self._random = random
        self._poll_s = poll_s
        self._watching: dict[str, Running] = {}
        self._awaits: ReportCheck = lambda key, owner: False
        self._take_report: Callable[[Record], bool] = lambda record: False

    # --- what the network does ---

    @abstractmethod
    async def wait_up(self) -> None:
        """Return when the network can be asked."""

    @abstractmethod
    async def find(self, name: str, wanted: Mapping[str, float] | None = None) -> Findings:
        """Look a key up.

        Args:
            wanted: owner → expiration: the search ends when all of these are there; None looks for the latest of all.

        Raises:
            NetworkDown: the network is down, or gave no answer in time.
        """

    @abstractmethod
    async def find_each(self, name: str, owners: Collection[str], wanted: Collection[str] | None = None) -> Findings:
        """Look up the records of these owners alone, each at one of the peers that keep it: they may be large.

        Args:
            wanted: of the owners, those whose records are worth more than a moment; all if None.

        Raises:
            NetworkDown: the network is down, or gave no answer in time.
        """

    @abstractmethod
    async def find_of(self, name: str, owner: str) -> Findings:
        """One owner's record under a key: as the owner itself shows it, else searched for. Raises NetworkDown."""

    @abstractmethod
    def hold(self, name: str, record: Record) -> None:
        """Keep a record that was heard for whoever asks this node, if there is room and no later one."""

    @abstractmethod
    def judge(self, name: str, record: Record) -> Record:
        """A record that was gossiped, if it counts under a key. Raises RecordRejected."""

    @abstractmethod
    async def answers(self, peer: str) -> bool:
        """Whether a peer answers this node itself. Raises NetworkDown."""

    @abstractmethod
    def spent_s(self) -> float:
        """Processor time that this thread has used."""

    # --- keys under watch ---

    def watch(self, name: str, seen: RecordsSink, polls: float = 1, later: bool = False) -> KeyWatch:
        """Begin to watch a key: `seen` is called with owner → record after each read.

        Args:
            polls: how many times the configured time lies between two reads that nobody hints at.
            later: whether the first read also waits for a hint, or for a part of that time that chance decides.
        """
        watch = KeyWatch(self, self._runtime, self._random, name, self._poll_s * polls, seen)
        self.watches[name] = watch
        self._watching[name] = self._runtime.start(watch.run(later))
        return watch

    def unwatch(self, name: str) -> None:
        """Stop watching a key."""
        if self.watches.pop(name, None) is not None:
            self._watching.pop(name).stop()

    def hinted(self, key: str, owner: str, expiration: float) -> None:
        """Somebody says that there is a record: it is looked at if its key is watched."""
        watch = self.watches.get(key)
        if watch is not None:
            watch.want(owner, expiration)

    # --- records that are stored with this node ---

    def deliver_reports(self, awaits: ReportCheck, take: Callable[[Record], bool]) -> None:
        """Hand reports that are stored here to their collector, which says which it waits for, and takes them."""
        self._awaits, self._take_report = awaits, take

    def awaits(self, key: bytes, owner: str) -> bool:
        """Whether an owner's report under a key id is wanted, be there room to keep it or not."""
        return self._awaits(key, owner)

    def accepted(self, record: Record) -> None:
        """A peer stored a record with this node: as good as a hint, and all there is to know of a report that is
        collected here."""
        if not self._take_report(record):
            self.hinted(record.content.key, record.owner, record.expiration)
