"""Two different reports for one place, found by a simulated node as real ones find them: by the shipped comparison."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from swarmd.core.events import Equivocated
from swarmd.core.peers.evidence import EQUIVOCATIONS_KEPT, is_news
from swarmd.core.values import KnownEvidence
from swarmd.dht.rounds.record_comparison import RecordComparison
from swarmd.dht.wire.evidence import Evidence, contradiction
from swarmd.dht.wire.records import ReportRecord, SignedRecord
from swarmd.sim.ports.dht import SimReport

RETELL_S, PAIRS_KEPT = 300.0, 64  # as `swarmd.dht.pubsub.evidence_gossip` has them


class EvidenceFinder:
    """What one network worker has seen signed, and what it has told of.

    Args:
        coordinator: the swarm's.
        known: has the swarm credited this peer?
        found: called with evidence that is news.
    """

    def __init__(self, coordinator: str, known: Callable[[str], bool], found: Callable[[Equivocated], None]) -> None:
        self._found = found
        self._compared = RecordComparison(coordinator, known, self._take)
        self._noted: tuple[KnownEvidence, ...] = ()
        self._held: dict[Equivocated, float] = {}  # when it was told last
        self._seen: dict[str, SimReport] = {}  # the latest of each owner: what is read again is compared once

    def note(self, known: tuple[KnownEvidence, ...]) -> None:
        """The log holds this."""
        self._noted = (*self._noted, *[each for each in known if each not in self._noted])[-EQUIVOCATIONS_KEPT:]

    def see(self, report: SimReport, at: float) -> None:
        """A report was read; `at` is when, for the order of what its owner signed (POSIX seconds)."""
        owner = report.seen.peer
        if self._seen.get(owner) is report:
            return
        self._seen[owner] = report
        self._compared.see(signed_of(report, at))

    def held(self, event: Equivocated, at: float) -> None:
        """Note that it has been told, to be told again for whoever was not there; the oldest of many is forgotten."""
        self._held.pop(event, None)
        self._held[event] = at
        while len(self._held) > PAIRS_KEPT:
            del self._held[next(iter(self._held))]

    def due(self, at: float) -> list[Equivocated]:
        """What is to be told again now."""
        due = [event for event, told_at in self._held.items() if at >= told_at + RETELL_S]
        self._held.update(dict.fromkeys(due, at))
        return due

    def hear(self, event: Equivocated) -> None:
        """Somebody tells evidence, which proves itself."""
        first, second = (msgspec.msgpack.decode(each, type=SignedRecord) for each in (event.first, event.second))
        self._take(Evidence(first, second))

    def _take(self, evidence: Evidence) -> None:
        first, second = evidence.first, evidence.second
        one = first.content
        kind = contradiction(one, second.content, first.expiration, second.expiration)
        assert kind == "report" and isinstance(one, ReportRecord), "only reports are compared here"
        if is_news(self._noted, kind, first.owner, one.round):
            self.note((KnownEvidence(kind, first.owner, one.round),))
            self._found(Equivocated(kind, first.owner, one.round, one.stage, first.encode(), second.encode()))


def signed_of(report: SimReport, at: float) -> SignedRecord:
    """A report's signed record; simulated owners need no signature."""
    seen, body = report.seen, report.rollouts
    content = ReportRecord("sim", seen.round, seen.stage, seen.reward, seen.digest, body.size_bytes, body.groups)
    return SignedRecord(seen.peer, msgspec.msgpack.encode(content), at, b"")
