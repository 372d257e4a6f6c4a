"""Records of both kinds of owners, and whose records count while a node runs."""

from __future__ import annotations

import time

import msgpack
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from swarmd.dht.identity.identity import Ed25519Identity, Identity
from swarmd.dht.limits.rejections import Rejections
from swarmd.dht.store.validator import Validator
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ADMITTED_MAX, Payload, RecordPolicy, decode_signed, sign
from swarmd.dht.wire.sizes import PAYLOAD_BYTES_MAX
from swarmd.errors import RecordRejected
from tests.dht.making import (
    ALICE,
    BOB,
    COORDINATOR,
    MEMBERSHIP,
    OTHER_RSA,
    REPORT,
    ROLLOUTS,
    RSA,
    SWARM,
    judge,
    signed_by,
)

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
    assert owner.peer_id == "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB" and owner.is_whole()
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


@BOTH
def test_a_list_of_members_takes_effect_for_what_is_known_already(owner: Identity) -> None:
    """The storer's memory of checked signatures is no way around it."""
    policy = RecordPolicy(SWARM, COORDINATOR.peer_id, own="own")
    validator = Validator(policy, Rejections(time.monotonic))
    signed = signed_by(owner, REPORT)
    place = (names.key_id(REPORT.key), msgpack.packb(owner.peer_id), signed.value, signed.expiration)
    assert validator.judge(*place) == validator.judge(*place) == signed
    policy.admit([BOB.peer_id])
    with pytest.raises(RecordRejected) as refused:
        validator.judge(*place)
    assert refused.value.reason == "not-a-member"
    policy.admit_configured()
    assert validator.judge(*place) == signed


def test_a_list_of_members_keeps_the_coordinator_and_itself_and_has_an_end() -> None:
    policy = RecordPolicy(SWARM, COORDINATOR.peer_id, (ALICE.peer_id,), own="own")
    policy.admit([BOB.peer_id])
    assert [policy.admits(peer) for peer in (ALICE.peer_id, BOB.peer_id, "own", COORDINATOR.peer_id)] == [
        *(False, True, True, True)
    ]
    with pytest.raises(RecordRejected, match="the limit is"):
        policy.admit(str(number) for number in range(ADMITTED_MAX + 1))
    assert policy.admits(BOB.peer_id) and not policy.admits(ALICE.peer_id)
    policy.admit_configured()
    assert policy.admits(ALICE.peer_id) and not policy.admits(BOB.peer_id)


def test_the_known_round_only_grows_with_what_the_node_does() -> None:
    policy = RecordPolicy(SWARM, COORDINATOR.peer_id)
    policy.reach(100)
    policy.reach(99)
    assert policy.round == 100
    late = msgspec.structs.replace(REPORT, round=103)
    assert judge(signed_by(ALICE, late), late.key, policy) == "wrong-round"
    policy.reach(101)
    assert judge(signed_by(ALICE, late), late.key, policy) == ""
