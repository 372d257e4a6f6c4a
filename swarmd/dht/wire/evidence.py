"""Evidence of equivocation: which signed records of one owner contradict each other, and how anyone can check it.

An honest node signs one version of each record, however often it publishes it: its contents follow from the node's log,
which is written first. Fields that change with a restart, such as the invitation, are not compared.

- A report has one claim for (owner, round, stage): reward, digest, size and groups.
- A leaderboard has one body for a round.
- A clock has one deadline for each numbered announcement, one content for an expiration, and never goes back to an
  earlier place: each announcement and each renewal expires later than all before it. Exempt are those that were signed
  while the machine's clock was so far ahead that no peer accepts them.

Memberships are not evidence: if two hosts use one identity by mistake, their nonces differ. Rollouts need not be: a
report names their digest.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from swarmd.core.values import EvidenceKind
from swarmd.dht.wire import names, records
from swarmd.errors import RecordRejected

NO_EVIDENCE = "no-evidence"  # reason for refusing records that prove nothing
# Announcements whose expirations are at least this far apart were signed before and after a clock was set back. One
# signed by a clock too far ahead expires at least TTL_MAX_S + PAST_S from now. Subtract from that the life of a record
# (dht.record_s, a quarter of an hour) and the time for which the clock was ahead.
CLOCK_SET_S = (records.TTL_MAX_S + records.PAST_S) / 2

ClockPlace = tuple[int, int, bool]  # round, stage, whether the swarm continues


class Evidence(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Two signed records of one owner, the one that expires first in front."""

    first: records.SignedRecord
    second: records.SignedRecord


class ProvenEquivocation(NamedTuple):
    kind: EvidenceKind
    peer: str
    round: int
    stage: int


def make_evidence(one: records.SignedRecord, other: records.SignedRecord) -> Evidence:
    """Return the pair in a fixed order, so that all nodes that find it have the same evidence."""
    first, second = sorted((one, other), key=lambda signed: (signed.expiration, signed.payload, signed.signature))
    return Evidence(first, second)


def contradiction_kind(
    one: records.Payload, other: records.Payload, one_expires: float, other_expires: float
) -> EvidenceKind | None:
    """Return the kind of contradiction between two payloads of one owner; None if an honest node may have signed both.
    `one` is the record that expires first."""
    if one.swarm != other.swarm:
        return None
    if isinstance(one, records.ReportRecord) and isinstance(other, records.ReportRecord):
        same_place = (one.round, one.stage) == (other.round, other.stage)
        return "report" if same_place and _claim_of(one) != _claim_of(other) else None
    if isinstance(one, records.LeaderboardRecord) and isinstance(other, records.LeaderboardRecord):
        return "leaderboard" if one.round == other.round and _body_reference(one) != _body_reference(other) else None
    if isinstance(one, records.ClockRecord) and isinstance(other, records.ClockRecord):
        return "clock" if _clocks_contradict(one, other, other_expires - one_expires) else None
    return None


def _claim_of(report: records.ReportRecord) -> tuple[float, str, int, int]:
    return (report.reward, report.digest, report.size_bytes, report.groups)


def _body_reference(board: records.LeaderboardRecord) -> tuple[str, int]:
    return (board.digest, board.size_bytes)


def _clocks_contradict(one: records.ClockRecord, other: records.ClockRecord, apart_s: float) -> bool:
    """Return whether two clock records contradict each other; `other` expires `apart_s` later.

    An announcement of an earlier stage that expires much later was signed before, while the machine's clock was ahead.
    Peers reject such a record at first, but a peer that kept it can send it once its time has come.
    """
    if one == other:
        return False
    if apart_s == 0.0 or (announcement_order(other) < announcement_order(one) and apart_s < CLOCK_SET_S):
        return True
    numbered = one.opening == other.opening and not one.final
    return numbered and announcement_order(one) == announcement_order(other)


def announcement_order(clock: records.ClockRecord) -> ClockPlace:
    """Return the sort key of an announcement; the end of a swarm sorts before what continues after it."""
    return (clock.round, clock.stage, not clock.final)


SignatureCheck = Callable[
    [records.SignedRecord, bytes], bool
]  # checks a record under a key id, as `swarmd.dht.wire.records.is_signature_valid`


def prove_equivocation(
    evidence: Evidence, check_signature: SignatureCheck = records.is_signature_valid
) -> ProvenEquivocation:
    """Return what a pair of records with valid signatures proves. Raises RecordRejected, e.g. "no-evidence"."""
    first, second = evidence.first, evidence.second
    if first.owner != second.owner or make_evidence(first, second) != evidence:
        raise RecordRejected(NO_EVIDENCE, "they are not two records of one owner, in their order")
    one, other = records.decode_payload(first.payload), records.decode_payload(second.payload)
    kind = contradiction_kind(one, other, first.expiration, second.expiration)
    if kind is None:
        raise RecordRejected(NO_EVIDENCE, "an honest node may have signed both")
    for signed, content in ((first, one), (second, other)):
        if not check_signature(signed, names.key_id(content.key)):
            raise RecordRejected("bad-signature", f"not signed by {signed.owner}")
    return ProvenEquivocation(kind, first.owner, *max(_round_and_stage(one), _round_and_stage(other)))


def _round_and_stage(content: records.Payload) -> tuple[int, int]:
    """Return a record's round and stage; stage 0 for a leaderboard, which is about a whole round."""
    return (getattr(content, "round", 0), getattr(content, "stage", 0))


def decode_evidence(first: bytes, second: bytes) -> tuple[Evidence, ProvenEquivocation]:
    """Decode and check the two records of an `Equivocated` event. Raises RecordRejected."""
    evidence = Evidence(records.decode_signed(first), records.decode_signed(second))
    return evidence, prove_equivocation(evidence)


def check_evidence(
    policy: records.RecordPolicy, evidence: Evidence, check_signature: SignatureCheck = records.is_signature_valid
) -> ProvenEquivocation:
    """Return what a pair proves in this swarm at the present time. Raises RecordRejected: as `prove_equivocation`;
    "wrong-swarm", "not-a-member", "not-the-coordinator", "far-expiration"."""
    records.check_admitted(policy, evidence.first.owner)
    if records.is_too_far_ahead(evidence.second.expiration, policy.now()):
        raise RecordRejected("far-expiration", "it was signed while a clock was wrong, or is to last too long")
    charge = prove_equivocation(evidence, check_signature)
    if records.decode_payload(evidence.first.payload).swarm != policy.swarm:
        raise RecordRejected("wrong-swarm", "it is about another swarm")
    if charge.kind != "report" and charge.peer != policy.coordinator:
        raise RecordRejected("not-the-coordinator", f"{charge.peer} is not the coordinator")
    return charge
