"""Looks up all peers' records, and watches keys. Does not import hivemind.

- A watched key is read when a hint says that it has changed, and at long intervals in any case.
- A record that its owner stores with this node counts as a hint. A report goes to the report collector instead, if it
  collects that stage.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping

from swarmd.dht.ports import LookupResult, RecordsSink, ReportCheck
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire.records import Record
from swarmd.errors import NetworkDown
from swarmd.logger import get_logger
from swarmd.worker.runtime import Stopper

WANTED_MAX = 256  # hinted owners not read yet; more are found at the next interval
AGAIN_S = 0.05  # delay before a read is repeated whose hint arrived before its record
HINT_TRIES = 3
GAP_S = 0.05  # between two reads, even with many hints
WHOLE_POLLS = 2.0  # poll intervals until all records are read: endless hints must not hide records without a hint
REST = 4.0  # pause after a read in multiples of its processor time: a crowded key must not take a whole core

log = get_logger(__name__)


class KeyWatch:
    """One watched key. `poll_s`: longest time between two reads."""

    def __init__(self, view: SwarmView, records: "RecordStore", name: str, poll_s: float, seen: RecordsSink) -> None:
        self.name = name
        self._records = records
        self._runtime = view.runtime
        self._random = view.random
        self._poll_s = poll_s
        self._seen = seen
        self._wanted: dict[str, float] = {}  # hinted owner → expiration of its record
        self._whole_at = -math.inf  # when all records were last read
        self._woken = view.runtime.make_signal()

    def request_record(self, owner: str, expiration: float) -> None:
        """Read an owner's record of this expiration soon; beyond `WANTED_MAX` owners, hints are dropped."""
        if owner in self._wanted or len(self._wanted) < WANTED_MAX:
            self._wanted[owner] = max(expiration, self._wanted.get(owner, 0.0))
            self._woken.set()

    def set_poll_interval(self, poll_s: float) -> None:
        """Set the longest time between two reads, from the next read on."""
        self._poll_s = poll_s

    def read_now(self) -> None:
        self._woken.set()

    async def run(self, later: bool = False) -> None:
        """Read the key when hinted at, and at intervals, until cancelled. With `later`, the first read waits for a
        random part of the interval, so that many keys are not read all at once."""
        if later:
            await self._woken.wait(self._poll_s * self._random.random())
        while True:
            await self._records.wait_until_up()
            began_s = self._records.cpu_time_s()
            try:
                await self._read_key()
            except NetworkDown as error:
                log.debug("%s was not read: %s", self.name, error)
            spent_s = self._records.cpu_time_s() - began_s
            await self._runtime.sleep(min(max(GAP_S, REST * spent_s), self._poll_s))
            await self._woken.wait(self._poll_s * self._random.uniform(0.8, 1.2))

    async def _read_key(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for _ in range(HINT_TRIES):
            now = self._runtime.now()
            whole = not wanted or now >= self._whole_at + WHOLE_POLLS * self._poll_s
            found = await self._records.find_records(self.name, {} if whole else wanted)
            if whole:
                self._whole_at = now
            self._seen(found.records)
            if not wanted or found.has_all(wanted):
                return
            await self._runtime.sleep(AGAIN_S)


class RecordStore(ABC):
    """Finds records and watches keys; subclasses implement the network access."""

    def __init__(self, view: SwarmView) -> None:
        self.watches: dict[str, KeyWatch] = {}
        self._view = view
        self._watching: dict[str, Stopper] = {}
        self.awaits: ReportCheck = lambda key, owner: False  # whether or not there is room to keep the report
        self._take_report: Callable[[Record], bool] = lambda record: False

    # --- what the network does ---

    @abstractmethod
    async def wait_until_up(self) -> None:
        """Return when the network is up."""

    @abstractmethod
    async def find_records(self, name: str, wanted: Mapping[str, float] | None = None) -> LookupResult:
        """Look a key up. `wanted` (owner → expiration): the search ends when all of these are found; None searches for
        the latest record of every owner. Raises NetworkDown: the network is down, or did not answer in time."""

    @abstractmethod
    async def find_records_by_owners(
        self, name: str, owners: Collection[str], wanted: Collection[str] | None = None
    ) -> LookupResult:
        """Look up the records of these owners only, each at one replica, because they may be large. `wanted`: owners
        that are worth waiting for; None for all. Raises NetworkDown."""

    @abstractmethod
    async def find_record_by_owner(self, name: str, owner: str) -> LookupResult:
        """Ask an owner for its record under a key, then the replicas. Raises NetworkDown."""

    @abstractmethod
    def store_locally(self, name: str, record: Record) -> None:
        """Store a gossiped record for peers that ask this node, if there is room and no later one is stored."""

    @abstractmethod
    def check_gossiped_record(self, name: str, record: Record) -> Record:
        """Return a gossiped record if it is valid under a key. Raises RecordRejected."""

    @abstractmethod
    async def ping_peer(self, peer: str) -> bool:
        """Return whether a peer itself answers this node. Raises NetworkDown."""

    @abstractmethod
    def cpu_time_s(self) -> float:
        """Return the processor time that this thread has used."""

    # --- keys under watch ---

    def watch(self, name: str, seen: RecordsSink, polls: float = 1, later: bool = False) -> KeyWatch:
        """Watch a key: `seen` is called with owner → record after each read. `polls` is the interval between reads
        without a hint, in units of `dht.poll_s`. With `later`, the first read waits for a hint, or for a random part of
        that interval."""
        watch = KeyWatch(self._view, self, name, self._view.config.dht.poll_s * polls, seen)
        self.watches[name] = watch
        self._watching[name] = self._view.runtime.start(watch.run(later))
        return watch

    def unwatch(self, name: str) -> None:
        """Stop watching a key."""
        if self.watches.pop(name, None) is not None:
            self._watching.pop(name)()

    def handle_hint(self, key: str, owner: str, expiration: float) -> None:
        """Handle a hint: if its key is watched, read it soon."""
        watch = self.watches.get(key)
        if watch is not None:
            watch.request_record(owner, expiration)

    # --- records that are stored with this node ---

    def set_report_handlers(self, awaits: ReportCheck, take: Callable[[Record], bool]) -> None:
        """Pass reports stored with this node to `take`, which returns whether it collects them. `awaits` returns
        whether a report of an owner under a key id is wanted, whether or not there is room to keep it."""
        self.awaits, self._take_report = awaits, take

    def handle_stored_record(self, record: Record) -> None:
        """Handle a record that a peer has stored here: collect a wanted report, use any other as a hint."""
        if not self._take_report(record):
            self.handle_hint(record.content.key, record.owner, record.expiration)
