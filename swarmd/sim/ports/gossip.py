"""Gossip between simulated workers, and records as they travel in it: the shipped gossip, its messages drawn.

Signatures are left out: nobody forges a record here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from swarmd.dht.evidence import RecordComparison, SeenRecord
from swarmd.dht.ports import Record
from swarmd.dht.wire.evidence import Charge, Evidence, check_evidence
from swarmd.dht.wire.records import ClockRecord, LeaderboardRecord, RecordPolicy, ReportRecord
from swarmd.sim.ports.dht import Written, size_of
from swarmd.sim.ports.once import Once

if TYPE_CHECKING:
    from swarmd.sim.ports.network import NetworkWorker

READ_KEPT = 8  # keys of which a worker knows what it has found there last


class SimTopic:
    """A gossip topic, see `swarmd.dht.ports.Topic`.

    Args:
        worker: who sends on it and listens to it.
        name: of the topic.
    """

    def __init__(self, worker: NetworkWorker, name: str) -> None:
        self._worker = worker
        self._name = name

    def listen(self, take: Callable[[str, bytes], None]) -> None:
        self._worker.listeners[self._name] = take

    def publish(self, message: bytes) -> None:
        worker = self._worker
        if not worker.joined:
            return
        for other in worker.dht.reached_by(worker):
            if other is not worker:
                worker.hint(other, other.hear, self._name, worker.node.peer, message)

    async def send(self, message: bytes) -> None:
        self.publish(message)


class RecordsSeen:
    """Has the shipped comparison see what a worker reads and writes, each record once.

    Attributes:
        comparison: the shipped one.

    Args:
        signed: gives records as they travel.
    """

    def __init__(self, comparison: RecordComparison, signed: Once[Record, SeenRecord]) -> None:
        self.comparison = comparison
        self._signed = signed
        self._seen: dict[tuple[str, type[object]], Record] = {}  # the latest of each owner and kind
        self._read: dict[str, Mapping[str, Record]] = {}  # by key, what was found there last

    def see_all(self, name: str, found: Mapping[str, Record]) -> None:
        """Records that were found under a key; the same mapping as the last time holds nothing new."""
        if self._read.get(name) is found:
            return
        self._read.pop(name, None)
        self._read[name] = found
        if len(self._read) > READ_KEPT:
            del self._read[next(iter(self._read))]
        for record in found.values():
            self.see(record)

    def see(self, record: Record, /) -> None:
        content = record.content
        if not isinstance(content, ReportRecord | ClockRecord | LeaderboardRecord):
            return
        place = (record.owner, type(content))
        if self._seen.get(place) is not record:
            self._seen[place] = record
            self.compare(record)

    def compare(self, record: Record) -> None:
        """A record is seen for the first time."""
        self.comparison.compare(self._signed(record))

    def read_board(self, reports: Iterable[bytes], /) -> None:
        """What simulated leaderboards quote is no record by itself, see `Written.encode`."""


def written_of(record: Record) -> Written:
    """A record that came by gossip, as the simulated DHT keeps it."""
    if isinstance(record, Written):
        return record
    content = record.content
    return Written(record.owner, content, record.expiration, size_of(content))


def check_unsigned(policy: RecordPolicy, evidence: Evidence) -> Charge:
    """See `swarmd.dht.wire.evidence.check_evidence`."""
    return check_evidence(policy, evidence, lambda signed, key: True)
