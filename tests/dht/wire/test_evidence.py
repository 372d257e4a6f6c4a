"""Which records contradict each other, and how evidence is checked."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.dht.evidence import CLOCKS_KEPT, NEWCOMER_REPORTS_KEPT, DecodedRecord, EquivocationDetector
from swarmd.dht.identity.identity import Identity
from swarmd.dht.wire.evidence import Evidence, check_evidence, decode_evidence, make_evidence, prove_equivocation
from swarmd.dht.wire.records import ClockRecord, Payload, RecordPolicy, SignedRecord, sign
from swarmd.errors import RecordRejected
from tests.dht.making import (
    ALICE,
    BOB,
    CLOCK,
    COORDINATOR,
    DIGEST,
    LEADERBOARD,
    MEMBERSHIP,
    POLICY,
    REPORT,
    ROLLOUTS,
    RSA,
    SWARM,
    forged,
)

NOW = time.time()
OTHER = DIGEST[::-1]
NUMBERED = replace(CLOCK, opening=5)


def found_of(*records: SignedRecord) -> list[Evidence]:
    """What a node that sees these records, one after another, finds."""
    found: list[Evidence] = []
    compared = EquivocationDetector(COORDINATOR.peer_id, lambda peer: False, found.append)
    for signed in records:
        compared.compare_record(signed)
    return found


def two(identity: Identity, one: Payload, other: Payload, apart_s: float = 1.0) -> tuple[SignedRecord, SignedRecord]:
    return sign(identity, one, NOW + 100.0), sign(identity, other, NOW + 100.0 + apart_s)


CONTRADICTORY: dict[str, tuple[Any, ...]] = {
    "another reward": (ALICE, REPORT, replace(REPORT, reward=0.6)),
    "other rollouts": (ALICE, REPORT, replace(REPORT, digest=OTHER)),
    "another count of groups": (ALICE, REPORT, replace(REPORT, groups=3)),
    "an RSA owner's": (RSA, REPORT, replace(REPORT, reward=0.6)),
    "another leaderboard": (COORDINATOR, LEADERBOARD, replace(LEADERBOARD, digest=OTHER)),
    "another deadline under one number": (COORDINATOR, NUMBERED, replace(NUMBERED, deadline_at=1.7e9 + 90)),
    "another place at once": (COORDINATOR, CLOCK, replace(CLOCK, round=4), 0.0),
    "another deadline at once": (COORDINATOR, CLOCK, replace(CLOCK, deadline_at=1.7e9 + 90), 0.0),
    "back to an earlier round": (COORDINATOR, CLOCK, replace(CLOCK, round=2)),
    "back to the end of a round": (COORDINATOR, CLOCK, replace(CLOCK, final=True)),
}
HONEST: dict[str, tuple[Any, ...]] = {
    "a report published again": (ALICE, REPORT, REPORT),
    "another invitation and more work": (ALICE, REPORT, replace(REPORT, invitation=b"x", work=9)),
    "a report of another stage": (ALICE, REPORT, replace(REPORT, stage=1, reward=0.6)),
    "a clock published again": (COORDINATOR, CLOCK, CLOCK),
    "a leaderboard without its body": (COORDINATOR, replace(LEADERBOARD, body=b"body"), LEADERBOARD),
    "the next stage": (COORDINATOR, NUMBERED, replace(NUMBERED, stage=1, opening=6)),
    "a stage announced anew": (COORDINATOR, NUMBERED, replace(NUMBERED, deadline_at=1.7e9 + 90, opening=6)),
    "less time, for a clock was set": (
        COORDINATOR,
        NUMBERED,
        replace(NUMBERED, deadline_at=1.7e9 + 5, opening=6),
    ),
    "an earlier place, for a clock was ahead": (COORDINATOR, CLOCK, replace(CLOCK, round=2), 2800.0),
    "an earlier place, for a clock was ahead for a quarter of an hour": (
        COORDINATOR,
        CLOCK,
        replace(CLOCK, round=2),
        3660.0 - 900.0 - 900.0,
    ),
    "more rounds after the last": (COORDINATOR, replace(CLOCK, final=True), CLOCK),
    "the same number after a restore": (COORDINATOR, NUMBERED, replace(NUMBERED, round=9, deadline_at=1.7e9 + 90)),
    "two lives": (ALICE, MEMBERSHIP, replace(MEMBERSHIP, nonce="another")),
    "rollouts without their body": (ALICE, ROLLOUTS, replace(ROLLOUTS, body=b"")),
}


@pytest.mark.parametrize("case", CONTRADICTORY)
def test_two_versions_are_found_whichever_comes_first_and_prove_it_offline(case: str) -> None:
    one, other = two(*CONTRADICTORY[case])
    (evidence,) = found_of(one, other)
    assert found_of(other, one) == [evidence]
    charge = check_evidence(POLICY, evidence)
    assert (charge.peer, charge.kind) == (one.owner, type(one.content).__struct_config__.tag)
    assert decode_evidence(evidence.first.encode(), evidence.second.encode()) == (evidence, charge)


@pytest.mark.parametrize("case", HONEST)
def test_what_an_honest_node_signs_is_no_evidence(case: str) -> None:
    one, other = two(*HONEST[case])
    assert found_of(one, other) == found_of(other, one) == []
    with pytest.raises(RecordRejected) as refused:
        prove_equivocation(make_evidence(one, other))
    assert refused.value.reason == "no-evidence"


def _refusal(evidence: Evidence, policy: RecordPolicy = POLICY) -> str:
    try:
        check_evidence(policy, evidence)
    except RecordRejected as error:
        return error.reason
    return ""


def test_evidence_that_proves_nothing_is_refused() -> None:
    one, other = two(ALICE, REPORT, replace(REPORT, reward=0.6))
    pair = make_evidence(one, other)
    assert _refusal(pair) == ""
    assert _refusal(Evidence(pair.second, pair.first)) == "no-evidence", "there is one order"
    assert _refusal(make_evidence(one, sign(BOB, replace(REPORT, reward=0.6), NOW + 101.0))) == "no-evidence"
    assert _refusal(replace(pair, second=replace(pair.second, payload=one.payload))) == "no-evidence"
    changed = other.payload.replace(b"\x10", b"\x11")  # groups
    assert _refusal(make_evidence(one, replace(other, payload=changed))) == "bad-signature"
    assert _refusal(make_evidence(one, replace(other, expiration=NOW + 102.0))) == "bad-signature"
    assert _refusal(make_evidence(one, replace(other, payload=b"\xc1"))) == "malformed"
    bomb = forged(ALICE, {"kind": "report", "x": b"x" * 2000})
    assert _refusal(make_evidence(one, bomb)) in ("malformed", "oversized")
    elsewhere = two(ALICE, replace(REPORT, swarm="another"), replace(REPORT, swarm="another", reward=0.6))
    assert _refusal(make_evidence(*elsewhere)) == "wrong-swarm"
    assert _refusal(pair, RecordPolicy(SWARM, COORDINATOR.peer_id, (BOB.peer_id,))) == "not-a-member"
    usurped = two(ALICE, NUMBERED, replace(NUMBERED, deadline_at=1.7e9 + 90))
    assert _refusal(make_evidence(*usurped)) == "not-the-coordinator"
    ahead = two(COORDINATOR, CLOCK, replace(CLOCK, round=2), apart_s=86_400.0)
    assert _refusal(make_evidence(*ahead)) == "far-expiration", "it was signed while that clock was ahead"


def test_a_report_to_the_coordinator_that_differs_from_what_was_read_here_is_found() -> None:
    told, read = two(ALICE, REPORT, replace(REPORT, reward=0.6))
    for order in (0, 1):
        found: list[Evidence] = []
        compared = EquivocationDetector(COORDINATOR.peer_id, lambda peer: True, found.append)
        forgery = replace(told, payload=told.payload.replace(b"\x10", b"\x11"))
        steps = [
            lambda c=compared: c.compare_record(read),
            lambda c=compared: c.compare_quoted_reports((b"noise", told.encode())),
        ]
        for step in steps if order else reversed(steps):
            step()
        assert found == [make_evidence(told, read)]
        compared.compare_quoted_reports((forgery.encode(),))
        assert len(found) == 1, "a coordinator cannot accuse by what was never signed"


def test_what_a_leaderboard_quotes_takes_no_more_memory_than_reports_do() -> None:
    compared = EquivocationDetector(COORDINATOR.peer_id, lambda peer: True, lambda evidence: None)
    report = sign(ALICE, REPORT, NOW + 100.0)
    huge = [replace(report, owner=f"peer-{number}", signature=bytes(1_000_000)).encode() for number in range(4)]
    compared.compare_quoted_reports((*huge, report.encode()))
    assert [seen.signed for seen in compared._quoted.values()] == [report]


def test_a_crowd_does_not_push_out_what_members_said() -> None:
    found: list[Evidence] = []
    compared = EquivocationDetector(COORDINATOR.peer_id, lambda peer: peer == ALICE.peer_id, found.append)
    one, other = two(ALICE, REPORT, replace(REPORT, reward=0.6))
    compared.compare_record(one)
    free = sign(BOB, REPORT, NOW + 100.0)
    for number in range(2 * NEWCOMER_REPORTS_KEPT):
        compared.compare_record(replace(free, owner=f"free-{number}"))
    for number in range(2 * CLOCKS_KEPT):
        compared.compare_record(sign(COORDINATOR, replace(CLOCK, round=number, opening=number), NOW + number))
    assert (len(compared._newcomers), len(compared._clocks)) == (NEWCOMER_REPORTS_KEPT, CLOCKS_KEPT)
    compared.compare_record(other)
    assert found == [make_evidence(one, other)]


steps = st.sampled_from(["renew", "anew", "next", "restart", "rounds", "finish"])


@given(st.lists(steps, max_size=40), st.randoms(use_true_random=False))
def test_no_honest_life_of_a_coordinator_contradicts_itself(life: list[str], random: Any) -> None:
    clock, expiration = ClockRecord(SWARM, 0, 0, 0.0, 60.0, opening=1), NOW
    records = [SignedRecord(COORDINATOR.peer_id, msgspec.msgpack.encode(clock), expiration, b"")]
    opening = 1
    for step in life:
        expiration += random.uniform(0.001, 300.0)  # a publisher's expirations only grow
        if step == "anew" and not clock.final:
            opening += 1
            clock = replace(clock, deadline_at=clock.deadline_at + random.uniform(-9, 90), opening=opening)
        elif step == "next" or (step == "rounds" and clock.final):
            opening += 1
            stage = 0 if clock.final else clock.stage + 1
            clock = replace(clock, stage=stage, opened_at=expiration, final=False, opening=opening)
        elif step == "rounds":
            opening += 1
            clock = replace(clock, round=clock.round + 1, stage=0, opening=opening)
        elif step == "finish" and not clock.final:
            clock = replace(clock, round=clock.round + 1, stage=0, final=True, opening=0)
        records.append(SignedRecord(COORDINATOR.peer_id, msgspec.msgpack.encode(clock), expiration, b""))
    random.shuffle(records)
    assert found_of(*records) == []


clocks = st.builds(
    ClockRecord, st.just(SWARM), st.integers(0, 2), st.integers(0, 1), st.just(0.0), st.sampled_from([60.0, 90.0]),
    st.booleans(), st.integers(0, 2),
)  # fmt: skip


class EachWithEach(EquivocationDetector):
    """Compares a clock with all before, also where it lies ahead of them."""

    def _is_later_clock(self, seen: DecodedRecord) -> bool:
        return False


@given(st.lists(st.tuples(clocks, st.integers(0, 4)), max_size=12), st.booleans())
def test_a_clock_ahead_of_all_before_contradicts_none(said: list[tuple[ClockRecord, int]], sorted: bool) -> None:
    said = [(each, 10 * each.round + at) for each, at in said] if sorted else said
    found: dict[type[EquivocationDetector], list[Evidence]] = {}
    for kind in (EquivocationDetector, EachWithEach):
        compared = kind(COORDINATOR.peer_id, lambda peer: True, found.setdefault(kind, []).append)
        for each, at in said:
            compared.compare_record(SignedRecord(COORDINATOR.peer_id, msgspec.msgpack.encode(each), NOW + at, b""))
    assert found[EquivocationDetector] == found[EachWithEach]
