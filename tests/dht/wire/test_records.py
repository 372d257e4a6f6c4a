"""Signed records: only genuine ones of the right owner, key and time count, and nothing a peer sends does harm."""

from __future__ import annotations

import math
import time

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.dht.wire import names
from swarmd.dht.wire.records import (
    TTL_MAX_S,
    ClockRecord,
    LeaderboardRecord,
    Membership,
    Payload,
    RecordPolicy,
    ReportRecord,
    RolloutsRecord,
    decode_signed,
    sign,
)
from swarmd.dht.wire.sizes import PAYLOAD_BYTES_MAX, UNKNOWN_BYTES_MAX, VALUE_BYTES_MAX
from swarmd.errors import RecordRejected
from tests.dht.making import (
    ALICE,
    CLOCK,
    COORDINATOR,
    DIGEST,
    LEADERBOARD,
    MEMBERSHIP,
    REPORT,
    ROLLOUTS,
    SWARM,
    forged,
    judge,
    signed_by,
)

ALL = (MEMBERSHIP, REPORT, ROLLOUTS)


def test_the_coordinators_records_count_from_the_coordinator_only() -> None:
    for content in (CLOCK, LEADERBOARD):
        assert judge(signed_by(COORDINATOR, content), content.key) == ""
        assert judge(signed_by(ALICE, content), content.key) == "not-the-coordinator"


@given(st.floats(-50, 3000).filter(lambda shift: abs(shift) > 1e-3))
def test_another_expiration_is_not_signed(shift: float) -> None:
    signed = signed_by(ALICE, REPORT, ttl_s=100.0)
    assert judge(signed, expiration=signed.expiration + shift) == "bad-signature"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (msgspec.structs.replace(REPORT, reward=math.nan), "non-finite"),
        (msgspec.structs.replace(REPORT, reward=math.inf), "non-finite"),
        (msgspec.structs.replace(REPORT, reward=1e308), "malformed"),
        (msgspec.structs.replace(REPORT, groups=2**64 - 1), "malformed"),
        (msgspec.structs.replace(ROLLOUTS, groups=2**64 - 1), "malformed"),
        (msgspec.structs.replace(REPORT, digest="ABC"), "malformed"),
        (msgspec.structs.replace(REPORT, digest="../" * 21 + "x"), "malformed"),
        (msgspec.structs.replace(ROLLOUTS, digest=""), "malformed"),
        (msgspec.structs.replace(ROLLOUTS, size_bytes=2**40), "oversized"),
        (msgspec.structs.replace(ROLLOUTS, size_bytes=-1), "oversized"),
        (msgspec.structs.replace(REPORT, round=-1), "malformed"),
        (msgspec.structs.replace(REPORT, stage=5000), "malformed"),
        (msgspec.structs.replace(REPORT, round=2**40), "malformed"),
        (msgspec.structs.replace(REPORT, swarm="other"), "wrong-swarm"),
        (msgspec.structs.replace(MEMBERSHIP, name="x" * 65), "oversized"),
        (msgspec.structs.replace(MEMBERSHIP, name="\x1b[2J"), "malformed"),
        (msgspec.structs.replace(MEMBERSHIP, joined_at=math.inf), "non-finite"),
        (msgspec.structs.replace(MEMBERSHIP, addresses=("/a",) * 9), "oversized"),
        (msgspec.structs.replace(MEMBERSHIP, addresses=("/" + "a" * 300,)), "malformed"),
        (msgspec.structs.replace(MEMBERSHIP, addresses=("a\nb",)), "malformed"),
    ],
)
def test_signed_nonsense_is_refused(content: Payload, reason: str) -> None:
    assert judge(signed_by(ALICE, content), content.key) == reason


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (msgpack.packb({"kind": "report"}), "malformed"),
        (msgpack.packb({"kind": "nothing", "swarm": SWARM}), "malformed"),
        (msgpack.packb([1, 2, 3]), "malformed"),
        (msgpack.packb({"kind": "report", "extra": msgpack.ExtType(0x40, b"\x91\xc0")}), "malformed"),
        (b"\x91" * 20 + b"\xc0", "nested"),
        (b"\xc1", "malformed"),
    ],
)
def test_a_signed_payload_of_the_wrong_shape_is_refused(payload: bytes, reason: str) -> None:
    assert judge(forged(ALICE, None, payload=payload)) == reason


def test_a_record_under_a_key_that_it_does_not_name_is_refused() -> None:
    other = names.reports(SWARM, 9, 0)
    assert judge(forged(ALICE, msgspec.to_builtins(REPORT) | {"kind": "report"}, key=other), other) == "wrong-key"


@pytest.mark.parametrize("content", (*ALL, CLOCK, LEADERBOARD), ids=lambda content: type(content).__name__)
def test_unknown_fields_are_a_small_part_of_a_record(content: Payload) -> None:
    owner = COORDINATOR if content in (CLOCK, LEADERBOARD) else ALICE
    fields = {**msgspec.to_builtins(content, builtin_types=(bytes,)), "kind": type(content).__struct_config__.tag}
    for size, reason in ((UNKNOWN_BYTES_MAX // 2, ""), (UNKNOWN_BYTES_MAX + 1, "oversized"), (40_000, "oversized")):
        assert judge(forged(owner, fields | {"zz": bytes(size)}, key=content.key), content.key) == reason


def test_each_kind_has_a_bound_that_its_largest_honest_record_keeps() -> None:
    wide = "\U0001f600"
    largest: list[Payload] = [
        Membership("s" * 64, wide * 64, "n" * 64, 1.7e9, True, ("/" + "x" * 255,) * 8),
        ClockRecord("s" * 64, 2**31 - 1, 1023, 1.7e9, 1.7e9, True),
        ReportRecord("s" * 64, 2**31 - 1, 1023, 0.123456789, DIGEST, 2**24, 2**31),
        RolloutsRecord("s" * 64, 2**31 - 1, 1023, DIGEST, 2**24, 2**31, bytes(48 * 1024)),
        LeaderboardRecord("s" * 64, 2**31 - 1, DIGEST, 2**24, bytes(48 * 1024)),
    ]
    for content in largest:
        kind = str(type(content).__struct_config__.tag)
        assert len(signed_by(ALICE, content).payload) <= PAYLOAD_BYTES_MAX[kind]


def test_sizes_and_missing_signatures() -> None:
    signed = signed_by(ALICE, REPORT)
    assert judge(signed, value=b"x" * (VALUE_BYTES_MAX + 1)) == "oversized"
    assert judge(signed, value=signed.payload) == "unsigned"
    assert judge(signed, value=b"") == "unsigned"
    assert judge(signed, value=signed.payload + bytes(64)) == "bad-signature"
    assert judge(signed, subkey=b"") == "unowned"
    assert judge(signed, subkey=msgpack.packb(None)) == "unowned"
    assert judge(signed, subkey=msgpack.packb("x" * 200)) == "oversized"
    assert judge(signed, subkey=msgpack.packb(ALICE.peer_id + "/name")) == "unowned"
    with pytest.raises(RecordRejected, match="fits in no record"):
        sign(ALICE, msgspec.structs.replace(ROLLOUTS, body=b"x" * 70_000), time.time())


def test_expirations_lie_within_the_window() -> None:
    assert judge(signed_by(ALICE, REPORT, -30.0)) == ""
    assert judge(signed_by(ALICE, REPORT, -61.0)) == "stale"
    assert judge(signed_by(ALICE, REPORT, TTL_MAX_S)) == ""
    assert judge(signed_by(ALICE, REPORT, TTL_MAX_S + 120)) == "far-expiration"
    assert judge(signed_by(ALICE, REPORT, math.inf)) == "far-expiration"


@pytest.mark.parametrize(
    ("round", "reason"), [(100, ""), (102, ""), (103, "wrong-round"), (36, ""), (35, "wrong-round")]
)
def test_far_rounds_are_refused_once_the_clock_is_known(round: int, reason: str) -> None:
    policy = RecordPolicy(SWARM, COORDINATOR.peer_id)
    policy.round = 100
    report = msgspec.structs.replace(REPORT, round=round)
    assert judge(signed_by(ALICE, report), report.key, policy) == reason


def test_the_key_id_is_the_one_hivemind_computes() -> None:
    from swarmd.dht.p2p.hivemind_api import DHTID

    for name in (names.clock(SWARM), names.members("x"), names.reports("y", 1, 2), "", "ü" * 40):
        assert DHTID.generate(name).to_bytes() == names.key_id(name)


@given(st.binary(max_size=300))
def test_noise_is_no_signed_record(encoded: bytes) -> None:
    try:
        signed = decode_signed(encoded)
    except RecordRejected as error:
        assert error.reason == "malformed"
    else:
        assert judge(signed) != ""
