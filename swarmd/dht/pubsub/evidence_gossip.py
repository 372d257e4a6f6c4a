"""Evidence and what leads to it, told by gossip: pairs of records that contradict each other, and which leaderboard was
read.

Evidence needs no trust: whoever brings it, its two signatures prove it. It is passed on by who did not hear it from
others, told again now and then while it counts, and bounded for each signer, so that a flood of it is none.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Protocol

import msgspec

from swarmd.core.commands import NoteEvidence
from swarmd.core.events import Equivocated
from swarmd.core.peers.evidence import BARRED_ROUNDS, EQUIVOCATIONS_KEPT, bars, is_news
from swarmd.core.values import KnownEvidence
from swarmd.dht.limits.gossip_limits import GossipLimits, Rate
from swarmd.dht.limits.rejections import Rejections
from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.dht.ports import EvidenceSink, PeerCheck, Record, RecordJudge, Topic, as_signed
from swarmd.dht.wire.evidence import Charge, Evidence, check_evidence
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.dht.wire.records import (
    ROUNDS_AHEAD,
    LeaderboardRecord,
    RecordPolicy,
    Round,
    SignedRecord,
    check_payload,
)
from swarmd.dht.wire.sizes import VALUE_BYTES_MAX
from swarmd.errors import RecordRejected
from swarmd.worker.ports import EventSink
from swarmd.worker.runtime import Runtime

MESSAGE_BYTES_MAX = 2 * VALUE_BYTES_MAX + 1024  # two leaderboards with their bodies
SENDER = Rate(burst=16.0, per_s=0.5)
ALL = Rate(burst=64.0, per_s=4.0)  # of all senders: evidence costs two signatures' checks
SIGNER_BURST, SIGNER_PER_S = 4.0, 1 / 600  # evidence kept against one peer that the swarm knows
NEWCOMERS_BURST, NEWCOMERS_PER_S = 16.0, 1 / 1800  # against all others together: identities cost nothing
KEPT = 64  # pairs held to be told again, the oldest of them forgotten first
HEARD_ELSEWHERE_S = 2.0  # longest wait before something is told, in which others may have told it
RETELL_S = 300.0
DIGEST_LENGTH = 64

log = logging.getLogger(__name__)


class BoardRead(msgspec.Struct, frozen=True, gc=False, tag="board"):
    """The leaderboard of a round that a node has read, by its digest; whoever has another shows it."""

    round: Round
    digest: str


class BoardShown(msgspec.Struct, frozen=True, gc=False, tag="shown"):
    """The signed record of a leaderboard, because somebody has read another one."""

    record: SignedRecord


class EvidenceTold(msgspec.Struct, frozen=True, gc=False, tag="evidence"):
    """Two records that contradict each other."""

    pair: Evidence


Message = BoardRead | BoardShown | EvidenceTold

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def decode_message(encoded: bytes) -> Message:
    """A message that a peer has gossiped; what it holds is not checked. Raises RecordRejected("malformed")."""
    try:
        return _decoder.decode(encoded)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"no evidence: {error}") from error


class EvidenceCheck(Protocol):
    """Checks two records against each other, see `swarmd.dht.wire.evidence.check_evidence`."""

    def __call__(self, policy: RecordPolicy, evidence: Evidence) -> Charge:
        """What a pair shows. Raises RecordRejected where it shows nothing."""


class EvidenceGossip:
    """Tells, takes and keeps evidence. No hivemind in it.

    Args:
        topic: where evidence is told.
        policy: the swarm, whose peers count.
        judge: checks single records.
        known: has the swarm credited this peer?
        rejections: where refusals are counted.
        emit: takes `Equivocated`.
        runtime: the clock.
        random: chance.
        check: checks pairs of records.
    """

    def __init__(
        self,
        topic: Topic,
        policy: RecordPolicy,
        judge: RecordJudge,
        known: PeerCheck,
        rejections: Rejections,
        emit: EventSink,
        runtime: Runtime,
        random: Random,
        check: EvidenceCheck = check_evidence,
    ) -> None:
        self._topic = topic
        self._policy = policy
        self._judge = judge
        self._is_known = known
        self._rejections = rejections
        self._emit = emit
        self._runtime = runtime
        self._random = random
        self._check = check
        self.contradicted: EvidenceSink = lambda evidence: None
        self._noted: tuple[KnownEvidence, ...] = ()
        self._pairs: dict[Evidence, float] = {}  # held → when it was told last, by whomever
        self._board: SignedRecord | None = None  # the leaderboard that this node read last
        self._board_told: set[tuple[int, str]] = set()  # (round, digest) that somebody has told of
        self._board_shown = -1  # round whose leaderboard somebody with ours has shown
        self._limits = GossipLimits(SENDER, ALL, runtime.now)
        self._signers = TokenBuckets(SIGNER_BURST, SIGNER_PER_S, runtime.now)
        self._newcomers = TokenBuckets(NEWCOMERS_BURST, NEWCOMERS_PER_S, runtime.now)
        topic.listen(self._listen)

    async def note(self, command: NoteEvidence) -> None:
        """Record evidence that the log holds already."""
        self._note(*(each for each in command.known if each not in self._noted))

    def _note(self, *known: KnownEvidence) -> None:
        self._noted = (*self._noted, *known)[-EQUIVOCATIONS_KEPT:]

    def bars(self, peer: str, round: int) -> bool:
        """Does nothing of this peer count in a round?"""
        return bool(self._noted) and any(each.peer == peer and bars(each, round) for each in self._noted)

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
        if not is_news(self._noted, charge.kind, charge.peer, charge.round):
            return False
        if not self._charge(charge.peer):
            self._rejections.count(charge.peer, "full", "more evidence than is kept")
            return False
        self._note(KnownEvidence(charge.kind, charge.peer, charge.round))
        self._pairs[evidence] = -RETELL_S
        while len(self._pairs) > KEPT:
            del self._pairs[next(iter(self._pairs))]
        log.warning("%s signed two different records of round %d: %s", charge.peer, charge.round, charge.kind)
        self._emit(Equivocated(*charge, evidence.first.encode(), evidence.second.encode()))
        self.contradicted(evidence)
        return True

    def _charge(self, peer: str) -> bool:
        """Charge a message to its sender's quota, or to that of all newcomers. Returns whether any was left."""
        return self._signers.try_charge(peer) if self._is_known(peer) else self._newcomers.try_charge("")

    # --- leaderboards ---

    def read_board(self, record: Record) -> None:
        """This node has read a leaderboard: tell which, if nobody else has told of the same."""
        self._board = as_signed(record)
        self._runtime.start(self._tell_board(self._board))

    async def _tell_board(self, signed: SignedRecord) -> None:
        content = signed.content
        assert isinstance(content, LeaderboardRecord)
        await self._runtime.sleep(self._random.uniform(0, HEARD_ELSEWHERE_S))
        if (content.round, content.digest) not in self._board_told:
            self._note_board(content.round, content.digest)
            await self._send(BoardRead(content.round, content.digest))

    def _note_board(self, round: int, digest: str) -> None:
        """Of the latest rounds only, and of a bounded number of digests."""
        self._board_told = {told for told in self._board_told if told[0] >= round - 1}
        if len(self._board_told) < KEPT:
            self._board_told.add((round, digest))

    async def _show_board(self, signed: SignedRecord, round: int) -> None:
        await self._runtime.sleep(self._random.uniform(0, HEARD_ELSEWHERE_S))
        if self._board_shown < round:
            self._board_shown = round
            await self._send(BoardShown(signed))

    def _hear_board(self, told: BoardRead) -> None:
        board = self._board
        content = None if board is None else board.content
        if board is None or not isinstance(content, LeaderboardRecord) or told.round != content.round:
            return
        if len(told.digest) <= DIGEST_LENGTH:
            self._note_board(told.round, told.digest)
        if told.digest != content.digest:
            self._runtime.start(self._show_board(board, content.round))

    def _see_board(self, signed: SignedRecord) -> None:
        """Somebody shows a leaderboard; it is compared like any record that is seen first. Raises RecordRejected."""
        content = check_payload(signed.payload)
        if not isinstance(content, LeaderboardRecord):
            raise RecordRejected("malformed", "no leaderboard")
        self._judge.judge(content.key, signed)
        if self._board is not None and signed == self._board:
            self._board_shown = content.round

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
        told = decode_message(message)
        if isinstance(told, BoardRead):
            self._hear_board(told)
        elif isinstance(told, BoardShown):
            self._see_board(told.record)
        elif told.pair in self._pairs:
            self._pairs[told.pair] = self._runtime.now()
        else:
            charge = self._check(self._policy, told.pair)
            if self._counts(charge) and self._keep(told.pair, charge):
                self._pairs[told.pair] = self._runtime.now()

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
            await self._runtime.sleep(RETELL_S * self._random.uniform(0.5, 1.0))
            for evidence in list(self._pairs):
                await self._tell_evidence(evidence)

    async def _tell_evidence(self, evidence: Evidence) -> None:
        await self._runtime.sleep(self._random.uniform(0, HEARD_ELSEWHERE_S))
        if evidence in self._pairs and self._runtime.now() >= self._pairs[evidence] + RETELL_S / 2:
            self._pairs[evidence] = self._runtime.now()
            await self._send(EvidenceTold(evidence))

    async def _send(self, message: Message) -> None:
        await self._topic.send(msgspec.msgpack.encode(message))
