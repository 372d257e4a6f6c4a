"""Finds, gossips and keeps evidence that a peer signed two versions of one record. Does not import hivemind.

- `EquivocationDetector` remembers the first version of each record that this node sees, a bounded number of them, and
  compares later versions with it.
- Evidence needs no trust: its two signatures prove it, whichever peer sends it. `EvidenceGossip` forwards what it found
  itself, sends it again from time to time while it counts, and keeps a bounded amount against each signer. A node waits
  for a random time before it sends, so that of many nodes that find the same evidence only a few send it.
- If the coordinator has announced two versions of a stage, both go to the core, which uses the later place and
  deadline, so all nodes that know both continue alike.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import msgspec
from cachetools import FIFOCache

from swarmd.bounds import RateLimiter
from swarmd.core.commands import NoteEvidence
from swarmd.core.events import Equivocated, RoundAnnounced
from swarmd.core.evidence import APART_ROUNDS, BARRED_ROUNDS, EQUIVOCATIONS_KEPT, is_banned_by, is_new_evidence
from swarmd.core.state import MEMBERS_MAX
from swarmd.core.values import KnownEvidence
from swarmd.dht.p2p.limits import GossipLimits, PeerCheck, Rate
from swarmd.dht.ports import EvidenceSink, Topic
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names, records
from swarmd.dht.wire.evidence import (
    ClockPlace,
    Evidence,
    ProvenEquivocation,
    announcement_order,
    check_evidence,
    contradiction_kind,
    make_evidence,
)
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.errors import RecordRejected
from swarmd.logger import get_logger

MEMBER_REPORTS_KEPT = MEMBERS_MAX  # latest reports of credited peers: those of one stage, however large
NEWCOMER_REPORTS_KEPT = 4096  # latest reports of other peers
BOARDS_KEPT = 4  # leaderboards, which may be large
CLOCKS_KEPT = 64  # announcements with different content
OWNER_BYTES_MAX = 256  # a peer id and the length prefixes
QUOTED_BYTES_MAX = (
    records.PAYLOAD_BYTES_MAX["report"] + records.SIGNATURE_BYTES_MAX + OWNER_BYTES_MAX
)  # size of one quoted report on the wire
QUOTED_KEPT = 8192  # reports quoted by leaderboards; verified only if they differ

SPREAD_S = 1.0  # a few times as long as a message takes to reach all nodes

BEFORE_ALL: ClockPlace = (-1, -1, False)

Place = tuple[str, int, int]  # owner, round, stage

MESSAGE_BYTES_MAX = 2 * records.VALUE_BYTES_MAX + 1024  # two leaderboards with their bodies
SENDER = Rate(burst=16.0, per_s=0.5)
ALL = Rate(burst=64.0, per_s=4.0)  # for all senders together: evidence costs two signature checks
SIGNER_BURST, SIGNER_PER_S = 4.0, 1 / 600  # evidence kept against one credited peer
NEWCOMERS_BURST, NEWCOMERS_PER_S = 16.0, 1 / 1800  # against all other peers together: identities cost nothing
SIGNERS_MAX = MEMBERS_MAX  # signers whose latest evidence is remembered: as many as can be credited
KEPT = 64  # pairs kept to be sent again; the oldest is dropped first
RETELL_S = 300.0

log = get_logger(__name__)


class DecodedRecord(NamedTuple):
    """A signed record and its decoded content."""

    signed: records.SignedRecord
    content: records.Payload


class EquivocationDetector:
    """Remembers the first version of each record, a bounded number of them, and reports contradictions. `known` says if
    the swarm has credited a peer. Reports of other peers do not displace those of credited ones."""

    def __init__(self, coordinator: str, known: PeerCheck, found: EvidenceSink) -> None:
        self._coordinator = coordinator
        self._known = known
        self._found = found
        self._members: FIFOCache[Place, DecodedRecord] = FIFOCache(MEMBER_REPORTS_KEPT)
        self._newcomers: FIFOCache[Place, DecodedRecord] = FIFOCache(NEWCOMER_REPORTS_KEPT)
        self._quoted: FIFOCache[Place, DecodedRecord] = FIFOCache(QUOTED_KEPT)
        self._boards: FIFOCache[Place, DecodedRecord] = FIFOCache(BOARDS_KEPT)
        self._clocks: FIFOCache[records.Payload, DecodedRecord] = FIFOCache(CLOCKS_KEPT)
        self._last = (-math.inf, BEFORE_ALL)  # greatest expiration and place of all clocks so far

    def compare_record(self, record: records.Record) -> None:
        signed = records.as_signed(record)
        self.compare_decoded(DecodedRecord(signed, signed.content))

    def compare_decoded(self, seen: DecodedRecord) -> None:
        """Compare a record that is already decoded with the version seen first."""
        signed, content = seen
        if isinstance(content, records.ReportRecord):
            self._compare_report((signed.owner, content.round, content.stage), seen)
        elif signed.owner != self._coordinator:
            return
        elif isinstance(content, records.LeaderboardRecord):
            _compare_records(self._boards.setdefault((signed.owner, content.round, 0), seen), seen, self._found)
        elif isinstance(content, records.ClockRecord):
            self._compare_clock(seen)

    def _compare_report(self, place: Place, seen: DecodedRecord) -> None:
        before = self._members.get(place) or self._newcomers.get(place)
        _compare_records(before, seen, self._found)
        if before is None:
            (self._members if self._known(place[0]) else self._newcomers)[place] = seen
        quoted = self._quoted.get(place)
        if quoted is not None:
            self._compare_quoted(quoted, seen)

    def _compare_clock(self, seen: DecodedRecord) -> None:
        """Compare a clock. Of clocks with the same content, keep the one that expires first: renewals add nothing."""
        before = self._clocks.get(seen.content)
        if before is not None and before.signed.expiration <= seen.signed.expiration:
            return
        if not self._is_later_clock(seen):
            for other in self._clocks.values():
                _compare_records(other, seen, self._found)
        self._clocks[seen.content] = seen

    def _is_later_clock(self, seen: DecodedRecord) -> bool:
        """Return whether a clock is later than all before it in both respects, and so contradicts none of them."""
        assert isinstance(seen.content, records.ClockRecord), "it is a clock"
        expiration, place = seen.signed.expiration, announcement_order(seen.content)
        goes_on = expiration > self._last[0] and place > self._last[1]
        self._last = (max(expiration, self._last[0]), max(place, self._last[1]))
        return goes_on

    def compare_quoted_reports(self, reports: Iterable[bytes]) -> None:
        """Compare reports quoted in a leaderboard (those that the coordinator received) with those seen here."""
        for encoded in islice((each for each in reports if len(each) <= QUOTED_BYTES_MAX), QUOTED_KEPT):
            try:
                signed = records.decode_signed(encoded)
                content = records.decode_payload(signed.payload)
            except RecordRejected:
                continue  # `swarmd leaderboard` reports malformed ones
            if isinstance(content, records.ReportRecord):
                place = (signed.owner, content.round, content.stage)
                quoted = self._quoted[place] = DecodedRecord(signed, content)
                seen = self._members.get(place) or self._newcomers.get(place)
                if seen is not None:
                    self._compare_quoted(quoted, seen)

    def _compare_quoted(self, quoted: DecodedRecord, seen: DecodedRecord) -> None:
        """Compare a quoted report; its signature is verified only if it differs from the one seen here."""

        def report_if_signed(evidence: Evidence) -> None:
            if records.is_signature_valid(quoted.signed, names.key_id(quoted.content.key)):
                self._found(evidence)

        _compare_records(quoted, seen, report_if_signed)


def _compare_records(before: DecodedRecord | None, seen: DecodedRecord, found: EvidenceSink) -> None:
    if before is None or before.signed == seen.signed:
        return
    one, other = (before, seen) if before.signed.expiration <= seen.signed.expiration else (seen, before)
    if contradiction_kind(one.content, other.content, one.signed.expiration, other.signed.expiration):
        found(make_evidence(one.signed, other.signed))


def announcement_of(record: records.Record) -> RoundAnnounced:
    """Return the announcement that a clock record makes, without its sequence number."""
    content = record.content
    assert isinstance(content, records.ClockRecord)
    return RoundAnnounced(content.round, content.stage, content.opened_at, content.deadline_at, content.final)


class EvidenceMessage(msgspec.Struct, frozen=True, gc=False, tag="evidence"):
    """Two records that contradict each other, as gossiped."""

    pair: Evidence


def decode_evidence_message(encoded: bytes) -> EvidenceMessage:
    """Decode a gossiped message, without checking the records in it. Raises RecordRejected("malformed")."""
    try:
        return msgspec.msgpack.decode(encoded, type=EvidenceMessage)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"no evidence: {error}") from error


@dataclass
class HeldEvidence:
    """Evidence that is kept, with what it proves and when a peer last sent it."""

    charge: ProvenEquivocation
    told_at: float = -RETELL_S


class EvidenceGossip:
    """Sends, receives and keeps evidence, and knows which peers it bans."""

    def __init__(
        self,
        view: SwarmView,
        topic: Topic,
        check: Callable[[records.RecordPolicy, Evidence], ProvenEquivocation] = check_evidence,
    ) -> None:
        runtime = view.runtime
        self._view = view
        self._topic = topic
        self._policy = view.policy
        self._runtime = runtime
        self._check = check
        self._noted: tuple[KnownEvidence, ...] = ()  # as much as the core keeps
        # (kind, peer) → latest round with evidence, even if the core has no room for it: otherwise evidence that is
        # sent again
        # would count as new each time, and would be logged each time.
        self._latest: FIFOCache[tuple[str, str], int] = FIFOCache(SIGNERS_MAX)
        self._pairs: FIFOCache[Evidence, HeldEvidence] = FIFOCache(KEPT)
        self._limits = GossipLimits(SENDER, ALL, runtime.now)
        self._signers = RateLimiter(SIGNER_BURST, SIGNER_PER_S, runtime.now, SIGNERS_MAX)
        self._newcomers = RateLimiter(NEWCOMERS_BURST, NEWCOMERS_PER_S, runtime.now)
        topic.listen(self._on_message)

    async def note_evidence(self, command: NoteEvidence) -> None:
        """Remember evidence that is already in the log."""
        self._add_known(*(each for each in command.known if each not in self._noted))

    def _add_known(self, *known: KnownEvidence) -> None:
        self._noted = (*self._noted, *known)[-EQUIVOCATIONS_KEPT:]
        for each in known:
            signer = each.kind, each.peer
            self._latest[signer] = max(each.round, self._latest.get(signer, each.round))

    def is_banned(self, peer: str, round: int) -> bool:
        return bool(self._noted) and any(is_banned_by(each, peer, round) for each in self._noted)

    # --- what this node finds ---

    def on_evidence_found(self, evidence: Evidence) -> None:
        """Keep and gossip two contradicting records whose signatures have been checked."""
        try:
            charge = self._check(self._policy, evidence)
        except RecordRejected as error:
            log.debug("no evidence: %s", error)
            return
        if self._keep_evidence(evidence, charge):
            self._runtime.start(self._send_evidence(evidence))

    def _keep_evidence(self, evidence: Evidence, charge: ProvenEquivocation) -> bool:
        """Keep evidence and emit it. Returns False if it is known already or over the limit."""
        before = self._latest.get((charge.kind, charge.peer))
        if before is not None and charge.round < before + APART_ROUNDS:
            return False
        credited = self._view.is_credited(charge.peer)
        if not (self._signers.try_charge(charge.peer) if credited else self._newcomers.try_charge()):
            self._view.rejections.count(charge.peer, "full", "more evidence than is kept")
            return False
        self._add_known(KnownEvidence(charge.kind, charge.peer, charge.round))
        self._pairs[evidence] = HeldEvidence(charge)
        log.warning("%s signed two different records of round %d: %s", charge.peer, charge.round, charge.kind)
        self._view.emit(Equivocated(*charge, evidence.first.encode(), evidence.second.encode()))
        for signed in (evidence.first, evidence.second):
            if isinstance(signed.content, records.ClockRecord):
                self._emit_announcement(announcement_of(signed))
        return True

    def _emit_announcement(self, said: RoundAnnounced) -> None:
        """Emit an announcement that the coordinator made to others, unless it is too many rounds ahead."""
        reached = self._policy.round
        if reached is None or said.round <= reached + records.ROUNDS_AHEAD:
            self._view.emit(said)

    # --- gossip ---

    def _on_message(self, sender: str, message: bytes) -> None:
        if not self._policy.is_admitted(sender):
            return
        try:
            if len(message) > MESSAGE_BYTES_MAX:
                raise RecordRejected("oversized", f"{len(message)} bytes of evidence")
            self._limits.charge(sender, self._view.is_credited(sender))
            self._receive_evidence(decode_evidence_message(message).pair)
        except RecordRejected as error:
            self._view.rejections.count(sender, error.reason, error.message)

    def _receive_evidence(self, pair: Evidence) -> None:
        """Handle evidence sent by a peer. Raises RecordRejected."""
        held = self._pairs.get(pair)
        charge = self._check(self._policy, pair) if held is None else held.charge
        if held is None and not self._is_still_valid(charge):
            return
        if held is None:
            self._keep_evidence(pair, charge)
        told = (KnownEvidence(charge.kind, charge.peer, charge.round),)
        for each in self._pairs.values():  # one equivocation yields several pairs if its records are renewed
            if not is_new_evidence(told, each.charge.kind, each.charge.peer, each.charge.round):
                each.told_at = self._runtime.now()

    def _is_still_valid(self, charge: ProvenEquivocation) -> bool:
        """Return whether evidence is about a round in which it still bans its signer.

        Before this node knows the swarm's round, no evidence counts; peers will send it again. Raises
        RecordRejected("wrong-round") if its round is in the future: it would outlast and displace all other evidence.
        """
        reached = self._policy.round
        if reached is not None and charge.round > reached + records.ROUNDS_AHEAD:
            raise RecordRejected("wrong-round", f"of round {charge.round} while the swarm is in {reached}")
        return reached is not None and reached < charge.round + BARRED_ROUNDS

    async def run(self) -> None:
        """Now and then, send valid evidence again for peers that were away, unless another peer sent it lately."""
        while True:
            await self._runtime.sleep(RETELL_S * self._view.random.uniform(0.5, 1.0))  # nodes must not all send at once
            for evidence in list(self._pairs):
                await self._send_evidence(evidence)

    async def _send_evidence(self, evidence: Evidence) -> None:
        if self._is_due(evidence):
            # Another node may send it first: wait for at most 1 + ln(members) times `SPREAD_S`.
            members = self._view.random.random() * (math.e * self._view.members - 1.0)
            await self._runtime.sleep(SPREAD_S * math.log1p(members))
        if self._is_due(evidence):
            self._pairs[evidence].told_at = self._runtime.now()
            self._topic.publish(msgspec.msgpack.encode(EvidenceMessage(evidence)))

    def _is_due(self, evidence: Evidence) -> bool:
        """Return whether evidence is kept and no peer has sent it lately."""
        held = self._pairs.get(evidence)
        return held is not None and self._runtime.now() >= held.told_at + RETELL_S / 2
