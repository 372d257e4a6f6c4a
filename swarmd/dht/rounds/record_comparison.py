"""What this node has seen signed, compared with all that it sees: two versions of one thing are evidence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from cachetools import FIFOCache

from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.ports import EvidenceSink, PeerCheck, Record, as_signed
from swarmd.dht.wire import names
from swarmd.dht.wire.evidence import ClockPlace, Evidence, contradiction, pair_of, place_of
from swarmd.dht.wire.records import (
    ClockRecord,
    LeaderboardRecord,
    Payload,
    ReportRecord,
    SignedRecord,
    check_payload,
    decode_signed,
    verifies,
)
from swarmd.dht.wire.sizes import PAYLOAD_BYTES_MAX, SIGNATURE_BYTES_MAX
from swarmd.errors import RecordRejected

MEMBER_REPORTS_KEPT = MEMBERS_MAX  # the latest reports of peers that the swarm knows: those of a stage, however large
NEWCOMER_REPORTS_KEPT = 4096  # of others
BOARDS_KEPT = 4  # leaderboards, which may be large
CLOCKS_KEPT = 64  # announcements with different content
OWNER_BYTES_MAX = 256  # a peer id, and the lengths of all parts
QUOTED_BYTES_MAX = PAYLOAD_BYTES_MAX["report"] + SIGNATURE_BYTES_MAX + OWNER_BYTES_MAX  # of one, as it travels
QUOTED_KEPT = 8192  # reports that leaderboards gave, not verified before they differ

BEFORE_ALL: ClockPlace = (-1, -1, False)

Place = tuple[str, int, int]  # owner, round, stage


class SeenRecord(NamedTuple):
    """A record and what it says."""

    signed: SignedRecord
    content: Payload


class RecordComparison:
    """Remembers the first version of everything, a bounded number of them.

    Args:
        coordinator: whose clock and leaderboards are compared.
        known: has the swarm credited this peer? Strangers do not push its members' reports out.
        found: called with what contradicts itself.
    """

    def __init__(self, coordinator: str, known: PeerCheck, found: EvidenceSink) -> None:
        self._coordinator = coordinator
        self._known = known
        self._found = found
        self._members: FIFOCache[Place, SeenRecord] = FIFOCache(MEMBER_REPORTS_KEPT)
        self._newcomers: FIFOCache[Place, SeenRecord] = FIFOCache(NEWCOMER_REPORTS_KEPT)
        self._quoted: FIFOCache[Place, SeenRecord] = FIFOCache(QUOTED_KEPT)
        self._boards: FIFOCache[Place, SeenRecord] = FIFOCache(BOARDS_KEPT)
        self._clocks: FIFOCache[Payload, SeenRecord] = FIFOCache(CLOCKS_KEPT)
        self._last = (-math.inf, BEFORE_ALL)  # greatest expiration and place of all clocks so far

    def see(self, record: Record) -> None:
        """Compare a record whose signature has been checked."""
        signed = as_signed(record)
        self.compare(SeenRecord(signed, signed.content))

    def compare(self, seen: SeenRecord) -> None:
        """The same of a record that has been decoded."""
        signed, content = seen
        if isinstance(content, ReportRecord):
            self._see_report((signed.owner, content.round, content.stage), seen)
        elif signed.owner != self._coordinator:
            return
        elif isinstance(content, LeaderboardRecord):
            _compare(self._boards.setdefault((signed.owner, content.round, 0), seen), seen, self._found)
        elif isinstance(content, ClockRecord):
            self._see_clock(seen)

    def _see_report(self, place: Place, seen: SeenRecord) -> None:
        before = self._members.get(place) or self._newcomers.get(place)
        _compare(before, seen, self._found)
        if before is None:
            (self._members if self._known(place[0]) else self._newcomers)[place] = seen
        quoted = self._quoted.get(place)
        if quoted is not None:
            self._compare_quoted(quoted, seen)

    def _see_clock(self, seen: SeenRecord) -> None:
        """Of each content the record that expires first is kept: renewals say nothing new."""
        before = self._clocks.get(seen.content)
        if before is not None and before.signed.expiration <= seen.signed.expiration:
            return
        if not self._goes_on(seen):
            for other in self._clocks.values():
                _compare(other, seen, self._found)
        self._clocks[seen.content] = seen

    def _goes_on(self, seen: SeenRecord) -> bool:
        """Whether a clock lies ahead of all before, by its expiration and by its place: it contradicts none of them."""
        assert isinstance(seen.content, ClockRecord), "it is a clock"
        expiration, place = seen.signed.expiration, place_of(seen.content)
        goes_on = expiration > self._last[0] and place > self._last[1]
        self._last = (max(expiration, self._last[0]), max(place, self._last[1]))
        return goes_on

    def read_board(self, reports: Iterable[bytes]) -> None:
        """Compare the reports that a leaderboard quotes, which the coordinator was given, with those seen here."""
        for encoded in islice((each for each in reports if len(each) <= QUOTED_BYTES_MAX), QUOTED_KEPT):
            try:
                signed = decode_signed(encoded)
                content = check_payload(signed.payload)
            except RecordRejected:
                continue  # `swarmd leaderboard` names it
            if isinstance(content, ReportRecord):
                self._quote((signed.owner, content.round, content.stage), SeenRecord(signed, content))

    def _quote(self, place: Place, quoted: SeenRecord) -> None:
        self._quoted[place] = quoted
        seen = self._members.get(place) or self._newcomers.get(place)
        if seen is not None:
            self._compare_quoted(quoted, seen)

    def _compare_quoted(self, quoted: SeenRecord, seen: SeenRecord) -> None:
        """A leaderboard's word is verified only where it differs."""

        def found(evidence: Evidence) -> None:
            if verifies(quoted.signed, names.key_id(quoted.content.key)):
                self._found(evidence)

        _compare(quoted, seen, found)


def _compare(before: SeenRecord | None, seen: SeenRecord, found: EvidenceSink) -> None:
    if before is None or before.signed == seen.signed:
        return
    one, other = (before, seen) if before.signed.expiration <= seen.signed.expiration else (seen, before)
    if contradiction(one.content, other.content, one.signed.expiration, other.signed.expiration):
        found(pair_of(one.signed, other.signed))
