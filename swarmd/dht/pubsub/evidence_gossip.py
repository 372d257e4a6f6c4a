"""Evidence, told by gossip: pairs of records that contradict each other.

Evidence needs no trust: whoever brings it, its two signatures prove it. It is passed on by who did not hear it from
others, told again now and then while it counts, and bounded for each signer, so that a flood of it is none.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import msgspec

from swarmd.core.commands import NoteEvidence
from swarmd.core.events import Equivocated
from swarmd.core.evidence import APART_ROUNDS, BARRED_ROUNDS, EQUIVOCATIONS_KEPT, is_barred_by, is_news
from swarmd.core.state import MEMBERS_MAX
from swarmd.core.values import KnownEvidence
from swarmd.dht.limits.gossip_limits import GossipLimits, Rate
from swarmd.dht.limits.rejections import Rejections
from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.dht.ports import EvidenceSink, PeerCheck, Topic
from swarmd.dht.pubsub.suppression import Suppression
from swarmd.dht.wire.evidence import Charge, Evidence, check_evidence
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.dht.wire.records import ROUNDS_AHEAD, RecordPolicy
from swarmd.dht.wire.sizes import VALUE_BYTES_MAX
from swarmd.errors import RecordRejected
from swarmd.logger import get_logger
from swarmd.worker.ports import EventSink
from swarmd.worker.runtime import Runtime

MESSAGE_BYTES_MAX = 2 * VALUE_BYTES_MAX + 1024  # two leaderboards with their bodies
SENDER = Rate(burst=16.0, per_s=0.5)
ALL = Rate(burst=64.0, per_s=4.0)  # of all senders: evidence costs two signatures' checks
SIGNER_BURST, SIGNER_PER_S = 4.0, 1 / 600  # evidence kept against one peer that the swarm knows
NEWCOMERS_BURST, NEWCOMERS_PER_S = 16.0, 1 / 1800  # against all others together: identities cost nothing
SIGNERS_MAX = MEMBERS_MAX  # of whom it is remembered what was told: as many as may be credited
KEPT = 64  # pairs held to be told again, the oldest of them forgotten first
RETELL_S = 300.0

log = get_logger(__name__)


class EvidenceTold(msgspec.Struct, frozen=True, gc=False, tag="evidence"):
    """Two records that contradict each other."""

    pair: Evidence


def decode_message(encoded: bytes) -> EvidenceTold:
    """A message that a peer has gossiped; what it holds is not checked. Raises RecordRejected("malformed")."""
    try:
        return msgspec.msgpack.decode(encoded, type=EvidenceTold)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"no evidence: {error}") from error


class EvidenceCheck(Protocol):
    """Checks two records against each other, see `swarmd.dht.wire.evidence.check_evidence`."""

    def __call__(self, policy: RecordPolicy, evidence: Evidence) -> Charge:
        """What a pair shows. Raises RecordRejected where it shows nothing."""


class HeldPair:
    """What is known of evidence that is held: what it shows, and when it was told last, by whomever."""

    __slots__ = ("charge", "told_at")

    def __init__(self, charge: Charge) -> None:
        self.charge = charge
        self.told_at = -RETELL_S

    def is_due(self, now: float) -> bool:
        """Whether it was told by nobody lately."""
        return now >= self.told_at + RETELL_S / 2


class LatestEvidence:
    """Of each signer the latest round of which there is evidence: also of those for which the core has no more room.

    Else what is told again would be news each time, and the log would take it again and again.
    """

    def __init__(self) -> None:
        self._rounds: OrderedDict[tuple[str, str], int] = OrderedDict()  # by kind and peer

    def note(self, known: KnownEvidence) -> None:
        """There is evidence. Of more than `SIGNERS_MAX` signers the one of whom none came for longest is forgotten."""
        signer = known.kind, known.peer
        self._rounds[signer] = max(known.round, self._rounds.pop(signer, known.round))
        while len(self._rounds) > SIGNERS_MAX:
            self._rounds.popitem(last=False)

    def is_news(self, charge: Charge) -> bool:
        """As `swarmd.core.evidence.is_news`."""
        before = self._rounds.get((charge.kind, charge.peer))
        return before is None or charge.round >= before + APART_ROUNDS


class EvidenceGossip:
    """Tells, takes and keeps evidence. No hivemind in it.

    Args:
        topic: where evidence is told.
        policy: the swarm, whose peers count.
        known: has the swarm credited this peer?
        rejections: where refusals are counted.
        emit: takes `Equivocated`.
        runtime: the clock.
        suppression: how long others are waited for.
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
        suppression: Suppression,
        check: EvidenceCheck = check_evidence,
    ) -> None:
        self._topic = topic
        self._policy = policy
        self._is_known = known
        self._rejections = rejections
        self._emit = emit
        self._runtime = runtime
        self._suppression = suppression
        self._check = check
        self.contradicted: EvidenceSink = lambda evidence: None
        self._noted: tuple[KnownEvidence, ...] = ()  # as much as the core keeps
        self._latest = LatestEvidence()
        self._pairs: dict[Evidence, HeldPair] = {}
        self._limits = GossipLimits(SENDER, ALL, runtime.now)
        self._signers = TokenBuckets(SIGNER_BURST, SIGNER_PER_S, runtime.now, SIGNERS_MAX)
        self._newcomers = TokenBuckets(NEWCOMERS_BURST, NEWCOMERS_PER_S, runtime.now)
        topic.listen(self._listen)

    async def note(self, command: NoteEvidence) -> None:
        """Record evidence that the log holds already."""
        self._note(*(each for each in command.known if each not in self._noted))

    def _note(self, *known: KnownEvidence) -> None:
        self._noted = (*self._noted, *known)[-EQUIVOCATIONS_KEPT:]
        for each in known:
            self._latest.note(each)

    def bars(self, peer: str, round: int) -> bool:
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
        if not self._latest.is_news(charge):
            return False
        if not self._charge(charge.peer):
            self._rejections.count(charge.peer, "full", "more evidence than is kept")
            return False
        self._note(KnownEvidence(charge.kind, charge.peer, charge.round))
        self._pairs[evidence] = HeldPair(charge)
        while len(self._pairs) > KEPT:
            del self._pairs[next(iter(self._pairs))]
        log.warning("%s signed two different records of round %d: %s", charge.peer, charge.round, charge.kind)
        self._emit(Equivocated(*charge, evidence.first.encode(), evidence.second.encode()))
        self.contradicted(evidence)
        return True

    def _charge(self, peer: str) -> bool:
        """Charge a message to its sender's quota, or to that of all newcomers. Returns whether any was left."""
        return self._signers.try_charge(peer) if self._is_known(peer) else self._newcomers.try_charge("")

    # --- gossip ---

    def _listen(self, sender: str, message: bytes) -> None:
        if self._policy.admits(sender):
            try:
                self._judge_message(sender, message)
            except RecordRejected as error:
                self._rejections.count(sender, error.reason, error.message)

    def _judge_message(self, sender: str, message: bytes) -> None:
        """Judge a message. Raises RecordRejected."""
        if len(message) > MESSAGE_BYTES_MAX:
            raise RecordRejected("oversized", f"{len(message)} bytes of evidence")
        self._limits.charge(sender, self._is_known(sender))
        self._hear_evidence(decode_message(message).pair)

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
            await self._runtime.sleep(self._suppression.apart_s(RETELL_S))
            for evidence in list(self._pairs):
                await self._tell_evidence(evidence)

    async def _tell_evidence(self, evidence: Evidence) -> None:
        if self._is_due(evidence):
            await self._runtime.sleep(self._suppression.delay_s())
        if self._is_due(evidence):
            self._pairs[evidence].told_at = self._runtime.now()
            await self._topic.send(msgspec.msgpack.encode(EvidenceTold(evidence)))

    def _is_due(self, evidence: Evidence) -> bool:
        """Whether it is held, and nobody has told it lately."""
        held = self._pairs.get(evidence)
        return held is not None and held.is_due(self._runtime.now())
