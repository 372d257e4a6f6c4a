"""Two versions of one thing: found among all that this node sees signed, told by gossip, and kept. No hivemind in it.

- `RecordComparison` remembers the first version of everything, a bounded number of them, and compares.
- Evidence needs no trust: whoever brings it, its two signatures prove it. `EvidenceGossip` passes it on if it did not
  hear it from others, tells it again now and then while it counts, and bounds it for each signer, so that a flood of it
  is none. What many know at the same time, few tell, and the others hear it.
- If the coordinator has told others otherwise, both announcements are told to the core, which takes the later place and
  deadline: so all who know of both go on alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import NamedTuple

import msgspec
from cachetools import FIFOCache

from swarmd.bounds import RateLimiter
from swarmd.core.commands import NoteEvidence
from swarmd.core.events import Equivocated, RoundAnnounced
from swarmd.core.evidence import APART_ROUNDS, BARRED_ROUNDS, EQUIVOCATIONS_KEPT, is_barred_by, is_news
from swarmd.core.state import MEMBERS_MAX
from swarmd.core.values import KnownEvidence
from swarmd.dht.p2p.limits import GossipLimits, PeerCheck, Rate, Rejections
from swarmd.dht.ports import EvidenceSink, Topic
from swarmd.dht.wire import names
from swarmd.dht.wire.evidence import Charge, ClockPlace, Evidence, check_evidence, contradiction, pair_of, place_of
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.dht.wire.records import (
    PAYLOAD_BYTES_MAX,
    ROUNDS_AHEAD,
    SIGNATURE_BYTES_MAX,
    VALUE_BYTES_MAX,
    ClockRecord,
    LeaderboardRecord,
    Payload,
    Record,
    RecordPolicy,
    ReportRecord,
    SignedRecord,
    as_signed,
    check_payload,
    decode_signed,
    verifies,
)
from swarmd.errors import RecordRejected
from swarmd.logger import get_logger
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import Runtime

MEMBER_REPORTS_KEPT = MEMBERS_MAX  # the latest reports of peers that the swarm knows: those of a stage, however large
NEWCOMER_REPORTS_KEPT = 4096  # of others
BOARDS_KEPT = 4  # leaderboards, which may be large
CLOCKS_KEPT = 64  # announcements with different content
OWNER_BYTES_MAX = 256  # a peer id, and the lengths of all parts
QUOTED_BYTES_MAX = PAYLOAD_BYTES_MAX["report"] + SIGNATURE_BYTES_MAX + OWNER_BYTES_MAX  # of one, as it travels
QUOTED_KEPT = 8192  # reports that leaderboards gave, not verified before they differ

SPREAD_S = 1.0  # a few times what a message takes to all

BEFORE_ALL: ClockPlace = (-1, -1, False)

Place = tuple[str, int, int]  # owner, round, stage

MESSAGE_BYTES_MAX = 2 * VALUE_BYTES_MAX + 1024  # two leaderboards with their bodies
SENDER = Rate(burst=16.0, per_s=0.5)
ALL = Rate(burst=64.0, per_s=4.0)  # of all senders: evidence costs two signatures' checks
SIGNER_BURST, SIGNER_PER_S = 4.0, 1 / 600  # evidence kept against one peer that the swarm knows
NEWCOMERS_BURST, NEWCOMERS_PER_S = 16.0, 1 / 1800  # against all others together: identities cost nothing
SIGNERS_MAX = MEMBERS_MAX  # of whom it is remembered what was told: as many as may be credited
KEPT = 64  # pairs held to be told again, the oldest of them forgotten first
RETELL_S = 300.0

log = get_logger(__name__)


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


def announcement_of(record: Record) -> RoundAnnounced:
    """What a clock record says; its number says nothing."""
    content = record.content
    assert isinstance(content, ClockRecord)
    return RoundAnnounced(content.round, content.stage, content.opened_at, content.deadline_at, content.final)


class EvidenceTold(msgspec.Struct, frozen=True, gc=False, tag="evidence"):
    """Two records that contradict each other."""

    pair: Evidence


def decode_message(encoded: bytes) -> EvidenceTold:
    """A message that a peer has gossiped; what it holds is not checked. Raises RecordRejected("malformed")."""
    try:
        return msgspec.msgpack.decode(encoded, type=EvidenceTold)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"no evidence: {error}") from error


@dataclass
class HeldPair:
    """What is known of evidence that is held: what it shows, and when it was told last, by whomever."""

    charge: Charge
    told_at: float = -RETELL_S


class EvidenceGossip:
    """Tells, takes and keeps evidence. No hivemind in it.

    Args:
        topic: where evidence is told.
        policy: the swarm, whose peers count.
        known: has the swarm credited this peer?
        rejections: where refusals are counted.
        emit: takes `Equivocated`.
        runtime: the clock.
        random: chance, by which others are waited for.
        members: how many may tell the same, as far as this node knows; too few make more nodes tell.
        check: checks pairs of records.
    """

    def __init__(
        self,
        topic: Topic,
        policy: RecordPolicy,
        known: PeerCheck,
        rejections: Rejections,
        emit: EventSink,
        runtime: Runtime,
        random: Random,
        members: Callable[[], int],
        check: Callable[[RecordPolicy, Evidence], Charge] = check_evidence,
    ) -> None:
        self._topic = topic
        self._policy = policy
        self._is_known = known
        self._rejections = rejections
        self._emit = emit
        self._runtime = runtime
        self._random = random
        self._members = members
        self._check = check
        self._noted: tuple[KnownEvidence, ...] = ()  # as much as the core keeps
        # Kind and peer → latest round with evidence, also if the core has no more room for it: else what is told again
        # would be news each time, and the log would take it again and again.
        self._latest: FIFOCache[tuple[str, str], int] = FIFOCache(SIGNERS_MAX)
        self._pairs: FIFOCache[Evidence, HeldPair] = FIFOCache(KEPT)
        self._limits = GossipLimits(SENDER, ALL, runtime.now)
        self._signers = RateLimiter(SIGNER_BURST, SIGNER_PER_S, runtime.now, SIGNERS_MAX)
        self._newcomers = RateLimiter(NEWCOMERS_BURST, NEWCOMERS_PER_S, runtime.now)
        topic.listen(self._listen)

    async def note(self, command: NoteEvidence) -> None:
        """Record evidence that the log holds already."""
        self._note(*(each for each in command.known if each not in self._noted))

    def _note(self, *known: KnownEvidence) -> None:
        self._noted = (*self._noted, *known)[-EQUIVOCATIONS_KEPT:]
        for each in known:
            signer = each.kind, each.peer
            self._latest[signer] = max(each.round, self._latest.get(signer, each.round))

    def bans(self, peer: str, round: int) -> bool:
        """Does nothing of this peer count in a round?"""
        return bool(self._noted) and any(is_barred_by(each, peer, round) for each in self._noted)

    # --- what this node finds ---

    def found(self, evidence: Evidence) -> None:
        """Two records that this node saw contradict each other; their signatures have been checked."""
        try:
            charge = self._check(self._policy, evidence)
        except RecordRejected as error:
            log.debug("no evidence: %s", error)
            return
        if self._keep(evidence, charge):
            self._runtime.start(self._tell_evidence(evidence))

    def _keep(self, evidence: Evidence, charge: Charge) -> bool:
        """Keep evidence and tell the daemon. False for what is known, or too much."""
        before = self._latest.get((charge.kind, charge.peer))
        if before is not None and charge.round < before + APART_ROUNDS:
            return False
        if not self._charge(charge.peer):
            self._rejections.count(charge.peer, "full", "more evidence than is kept")
            return False
        self._note(KnownEvidence(charge.kind, charge.peer, charge.round))
        self._pairs[evidence] = HeldPair(charge)
        log.warning("%s signed two different records of round %d: %s", charge.peer, charge.round, charge.kind)
        self._emit(Equivocated(*charge, evidence.first.encode(), evidence.second.encode()))
        for signed in (evidence.first, evidence.second):
            if isinstance(signed.content, ClockRecord):
                self._announce(announcement_of(signed))
        return True

    def _announce(self, said: RoundAnnounced) -> None:
        """Tell what the coordinator has told others; what lies too far ahead is nothing to go on by."""
        reached = self._policy.round
        if reached is None or said.round <= reached + ROUNDS_AHEAD:
            self._emit(said)

    def _charge(self, peer: str) -> bool:
        """Charge a message to its sender's quota, or to that of all newcomers. Returns whether any was left."""
        return self._signers.try_charge(peer) if self._is_known(peer) else self._newcomers.try_charge()

    # --- gossip ---

    def _listen(self, sender: str, message: bytes) -> None:
        if not self._policy.admits(sender):
            return
        try:
            if len(message) > MESSAGE_BYTES_MAX:
                raise RecordRejected("oversized", f"{len(message)} bytes of evidence")
            self._limits.charge(sender, self._is_known(sender))
            self._hear_evidence(decode_message(message).pair)
        except RecordRejected as error:
            self._rejections.count(sender, error.reason, error.message)

    def _hear_evidence(self, pair: Evidence) -> None:
        """Somebody tells evidence. Raises RecordRejected."""
        held = self._pairs.get(pair)
        charge = self._check(self._policy, pair) if held is None else held.charge
        if held is None and not self._counts(charge):
            return
        if held is None:
            self._keep(pair, charge)
        told = (KnownEvidence(charge.kind, charge.peer, charge.round),)
        for each in self._pairs.values():  # of one lie there are as many pairs as its two records have expirations
            if not is_news(told, each.charge.kind, each.charge.peer, each.charge.round):
                each.told_at = self._runtime.now()

    def _counts(self, charge: Charge) -> bool:
        """Whether evidence is about rounds that still matter: nobody is reminded of what is over.

        Where the swarm is not known yet, nothing is: it is told again.

        Raises:
            RecordRejected: "wrong-round" where its round is still to come: it would be kept for longer than any other,
                and in its place.
        """
        reached = self._policy.round
        if reached is not None and charge.round > reached + ROUNDS_AHEAD:
            raise RecordRejected("wrong-round", f"of round {charge.round} while the swarm is in {reached}")
        return reached is not None and reached < charge.round + BARRED_ROUNDS

    async def run(self) -> None:
        """Tell again what still counts, for whoever was away; seldom, and only what nobody else told lately."""
        while True:
            await self._runtime.sleep(RETELL_S * self._random.uniform(0.5, 1.0))  # not all of them together
            for evidence in list(self._pairs):
                await self._tell_evidence(evidence)

    async def _tell_evidence(self, evidence: Evidence) -> None:
        if self._is_due(evidence):
            await self._runtime.sleep(self._delay_s())
        if self._is_due(evidence):
            self._pairs[evidence].told_at = self._runtime.now()
            await self._topic.send(msgspec.msgpack.encode(EvidenceTold(evidence)))

    def _delay_s(self) -> float:
        """Seconds to wait before one tells what nobody else has told by then: at most 1 + ln(members) of `SPREAD_S`."""
        return SPREAD_S * math.log1p(self._random.random() * (math.e * max(1, self._members()) - 1.0))

    def _is_due(self, evidence: Evidence) -> bool:
        """Whether it is held, and nobody has told it lately."""
        held = self._pairs.get(evidence)
        return held is not None and self._runtime.now() >= held.told_at + RETELL_S / 2
