"""Gossip between simulated workers, and records as they travel in it: the shipped gossip, its messages drawn.

Signatures are left out: nobody forges a record here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from swarmd.dht.ports import Record
from swarmd.dht.pubsub.evidence_gossip import EvidenceGossip
from swarmd.dht.rounds.record_comparison import RecordComparison
from swarmd.dht.wire.evidence import Charge, Evidence, check_evidence
from swarmd.dht.wire.records import ClockRecord, LeaderboardRecord, RecordPolicy, ReportRecord, SignedRecord
from swarmd.sim.ports.dht import Written, size_of

if TYPE_CHECKING:
    from swarmd.sim.ports.network import NetworkWorker

DIGEST_LENGTH = 64  # of a sha256; those of simulated rollouts are shorter


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


class SimEvidenceGossip(EvidenceGossip):
    """The shipped gossip of evidence, of records that are signed when they are told."""

    def read_board(self, record: Record) -> None:
        super().read_board(signed_of(record))


class RecordsSeen:
    """Has the shipped comparison see what a worker reads and writes, each record once.

    Attributes:
        comparison: the shipped one.
    """

    def __init__(self, comparison: RecordComparison) -> None:
        self.comparison = comparison
        self._seen: dict[tuple[str, type[object]], Record] = {}  # the latest of each owner and kind

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
        self.comparison.see(signed_of(record))

    def read_board(self, reports: Iterable[bytes], /) -> None:
        """What simulated leaderboards quote is no record by itself, see `Written.encode`."""


def signed_of(record: Record) -> SignedRecord:
    """A record as it travels in gossip; its digest is as long as a real one."""
    if isinstance(record, SignedRecord):
        return record
    content = record.content
    if isinstance(content, ReportRecord) and content.digest:
        content = replace(content, digest=content.digest.ljust(DIGEST_LENGTH, "0"))
    return SignedRecord(record.owner, msgspec.msgpack.encode(content), record.expiration, b"")


def written_of(record: Record) -> Written:
    """A record that came by gossip, as the simulated DHT keeps it."""
    if isinstance(record, Written):
        return record
    content = record.content
    return Written(record.owner, content, record.expiration, size_of(content))


def check_unsigned(policy: RecordPolicy, evidence: Evidence) -> Charge:
    """See `swarmd.dht.wire.evidence.check_evidence`."""
    return check_evidence(policy, evidence, lambda signed, key: True)
