"""Signed records of both kinds of keys: only genuine ones with the right owner, key and time count."""

import math
import time

import msgpack
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from swarmd.dht.identity.identity import Ed25519Identity, Identity
from swarmd.dht.wire import names
from swarmd.dht.wire.records import (
    ADMITTED_MAX,
    PAYLOAD_BYTES_MAX,
    TTL_MAX_S,
    UNKNOWN_BYTES_MAX,
    VALUE_BYTES_MAX,
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
from swarmd.errors import RecordRejected
from tests.dht.making import (
    ALICE,
    BOB,
    CLOCK,
    COORDINATOR,
    DIGEST,
    LEADERBOARD,
    MEMBERSHIP,
    OTHER_RSA,
    REPORT,
    ROLLOUTS,
    RSA,
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
        (msgspec.structs.replace(REPORT, reward=1e308), "malformed"),
        (msgspec.structs.replace(REPORT, groups=2**64 - 1), "malformed"),
        (msgspec.structs.replace(REPORT, digest="../" * 21 + "x"), "malformed"),
        (msgspec.structs.replace(ROLLOUTS, digest=""), "malformed"),
        (msgspec.structs.replace(ROLLOUTS, size_bytes=2**40), "oversized"),
        (msgspec.structs.replace(REPORT, round=-1), "malformed"),
        (msgspec.structs.replace(REPORT, stage=5000), "malformed"),
        (msgspec.structs.replace(REPORT, swarm="other"), "wrong-swarm"),
        (msgspec.structs.replace(MEMBERSHIP, name="x" * 65), "oversized"),
        (msgspec.structs.replace(MEMBERSHIP, name="\x1b[2J"), "malformed"),
        (msgspec.structs.replace(MEMBERSHIP, joined_at=math.inf), "non-finite"),
        (msgspec.structs.replace(MEMBERSHIP, addresses=("/a",) * 9), "oversized"),
        (msgspec.structs.replace(MEMBERSHIP, addresses=("/" + "a" * 300,)), "malformed"),
    ],
)
def test_signed_nonsense_is_refused(content: Payload, reason: str) -> None:
    assert judge(signed_by(ALICE, content), content.key) == reason


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (msgpack.packb({"kind": "report"}), "malformed"),
        (msgpack.packb({"kind": "nothing", "swarm": SWARM}), "malformed"),
        (msgpack.packb({"kind": "report", "extra": msgpack.ExtType(0x40, b"\x91\xc0")}), "malformed"),
        (b"\x91" * 20 + b"\xc0", "nested"),
        (b"\xc1", "malformed"),
    ],
)
def test_a_signed_payload_of_the_wrong_shape_is_refused(payload: bytes, reason: str) -> None:
    assert judge(forged(ALICE, None, payload=payload)) == reason


def test_a_record_under_a_key_that_it_does_not_name_is_refused() -> None:
    other = names.reports_key(SWARM, 9, 0)
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

    for name in (names.clock_key(SWARM), names.members_key("x"), names.reports_key("y", 1, 2), "", "ü" * 40):
        assert DHTID.generate(name).to_bytes() == names.key_id(name)


@given(st.binary(max_size=300))
def test_noise_is_no_signed_record(encoded: bytes) -> None:
    try:
        signed = decode_signed(encoded)
    except RecordRejected as error:
        assert error.reason == "malformed"
    else:
        assert judge(signed) != ""


BOTH = pytest.mark.parametrize("owner", [ALICE, RSA], ids=["ed25519", "rsa"])


@BOTH
@pytest.mark.parametrize("content", (MEMBERSHIP, REPORT, ROLLOUTS), ids=lambda content: type(content).__name__)
def test_a_genuine_record_counts_whoever_owns_it(owner: Identity, content: Payload) -> None:
    signed = signed_by(owner, content)
    assert judge(signed, content.key) == ""
    assert decode_signed(signed.encode()) == signed


def test_records_of_ed25519_owners_are_what_they_always_were() -> None:
    """Payload, and 64 bytes over domain, key, owner, payload and expiration: put together here by hand."""
    seed = bytes(range(32))
    public = bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")
    owner = Ed25519Identity(seed, public)
    assert owner.peer_id == "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB" and owner.has_valid_key_pair()
    signed = sign(owner, REPORT, 2e9)
    payload = msgspec.msgpack.encode(REPORT)
    message = b"swarmd-record-v1\x00" + msgpack.packb([names.key_id(REPORT.key), owner.peer_id, payload, 2e9])
    assert signed.value[:-64] == payload and len(signed.value) == len(payload) + 64
    Ed25519PublicKey.from_public_bytes(public).verify(signed.value[-64:], message)


@given(st.sampled_from([ALICE, RSA]), st.data())
def test_a_changed_bit_anywhere_in_a_record_is_found(owner: Identity, data: st.DataObject) -> None:
    signed = signed_by(owner, REPORT)
    value = bytearray(signed.value)
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert judge(signed, value=bytes(value)) in {"bad-signature", "unsigned"}


@given(st.sampled_from([ALICE, BOB, RSA, OTHER_RSA]), st.sampled_from([ALICE, BOB, RSA, OTHER_RSA]))
def test_a_record_verifies_under_its_owner_alone(signer: Identity, owner: Identity) -> None:
    signed = signed_by(signer, REPORT)
    reason = judge(signed, subkey=msgpack.packb(owner.peer_id))
    assert reason == "" if signer is owner else reason in {"bad-signature", "unsigned"}


def test_an_rsa_payload_alone_or_at_the_size_limit() -> None:
    signed = signed_by(RSA, REPORT)
    assert judge(signed, value=signed.payload) == "unsigned"
    room = PAYLOAD_BYTES_MAX["rollouts"] - len(signed_by(RSA, ROLLOUTS).payload) - 8
    largest = signed_by(RSA, msgspec.structs.replace(ROLLOUTS, body=bytes(room)))
    assert judge(largest, ROLLOUTS.key) == ""
    with pytest.raises(RecordRejected, match="fits in no record"):
        signed_by(RSA, msgspec.structs.replace(ROLLOUTS, body=bytes(room + 64)))


@BOTH
@pytest.mark.parametrize("tail", [" ", "\n", "\t "])
def test_white_space_makes_no_second_name_for_a_peer(owner: Identity, tail: str) -> None:
    assert judge(signed_by(owner, REPORT), subkey=msgpack.packb(owner.peer_id + tail)) == "unowned"


def test_a_list_of_members_keeps_the_coordinator_and_itself_and_has_an_end() -> None:
    policy = RecordPolicy(SWARM, COORDINATOR.peer_id, (ALICE.peer_id,), own="own")
    policy.admit_only([BOB.peer_id])
    assert [policy.is_admitted(peer) for peer in (ALICE.peer_id, BOB.peer_id, "own", COORDINATOR.peer_id)] == [
        *(False, True, True, True)
    ]
    with pytest.raises(RecordRejected, match="the limit is"):
        policy.admit_only(str(number) for number in range(ADMITTED_MAX + 1))
    assert policy.is_admitted(BOB.peer_id) and not policy.is_admitted(ALICE.peer_id)
    policy.admit_configured()
    assert policy.is_admitted(ALICE.peer_id) and not policy.is_admitted(BOB.peer_id)


def test_the_known_round_only_grows_with_what_the_node_does() -> None:
    policy = RecordPolicy(SWARM, COORDINATOR.peer_id)
    policy.raise_round(100)
    policy.raise_round(99)
    assert policy.round == 100
    late = msgspec.structs.replace(REPORT, round=103)
    assert judge(signed_by(ALICE, late), late.key, policy) == "wrong-round"
    policy.raise_round(101)
    assert judge(signed_by(ALICE, late), late.key, policy) == ""
