"""Who may write in swarms that ask for an invitation, or for work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec
import pytest

from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.identity.proof_of_work import find_work
from swarmd.dht.members.admission import (
    INVITATION_BYTES_MAX,
    Admission,
    Invitation,
    Rule,
    check_invitation,
    invite,
    read_invitation,
    write_invitation,
)
from swarmd.dht.wire.records import Payload, RecordPolicy
from swarmd.errors import ConfigError, RecordRejected
from tests.dht.making import (
    ALICE,
    BOB,
    COORDINATOR,
    MEMBERSHIP,
    REPORT,
    ROLLOUTS,
    RSA,
    SWARM,
    judge,
    signed_by,
)

CREATOR = COORDINATOR.peer_id
CARL = generate_identity()
NOW = 1.7e9


def of_creator(guest: Identity, until: float = 0.0, swarm: str = SWARM) -> bytes:
    return invite(COORDINATOR, swarm, CREATOR, guest.peer_id, until)


def of_alice(guest: Identity) -> bytes:
    """Alice was invited by the creator, and invites."""
    return invite(ALICE, SWARM, CREATOR, guest.peer_id, 0.0, of_creator(ALICE))


def policy_of(rule: Rule, bits: int = 10, **more: int) -> RecordPolicy:
    return RecordPolicy(SWARM, CREATOR, own="own", admission=Admission(rule, SWARM, CREATOR, bits), **more)


def test_the_creator_invites_and_so_does_whom_it_invited() -> None:
    assert check_invitation(of_creator(ALICE), SWARM, CREATOR, ALICE.peer_id, NOW) == math.inf
    assert check_invitation(of_alice(BOB), SWARM, CREATOR, BOB.peer_id, NOW) == math.inf
    assert check_invitation(of_creator(ALICE, NOW + 5), SWARM, CREATOR, ALICE.peer_id, NOW) == NOW + 5
    assert read_invitation(write_invitation(of_alice(BOB))) == of_alice(BOB)


def forged(change: Callable[[Invitation], Invitation]) -> bytes:
    return msgspec.msgpack.encode(change(msgspec.msgpack.decode(of_alice(BOB), type=Invitation)))


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"noise",
        of_creator(CARL),
        of_creator(BOB, NOW - 1),
        of_creator(BOB, swarm="another"),
        forged(lambda given: msgspec.structs.replace(given, until=NOW * 2)),
        forged(lambda given: msgspec.structs.replace(given, own=b"")),
        forged(lambda given: msgspec.structs.replace(given, own=of_creator(ALICE, NOW - 1))),
        forged(lambda given: msgspec.structs.replace(given, host=CREATOR)),
        forged(lambda given: msgspec.structs.replace(given, until=math.nan)),
        forged(lambda given: msgspec.structs.replace(given, own=bytes(INVITATION_BYTES_MAX))),
        of_alice(BOB) + b"\x00",
        b"\x91" * 40,
    ],
)
def test_nothing_else_is_an_invitation(encoded: bytes) -> None:
    with pytest.raises(RecordRejected) as refused:
        check_invitation(encoded, SWARM, CREATOR, BOB.peer_id, NOW)
    assert refused.value.reason == "not-invited"


@pytest.mark.parametrize(
    "own", [b"\xc1", b"noise", of_alice(BOB), of_creator(ALICE)], ids=["bad", "noise", "long", "good"]
)
def test_what_a_guest_puts_into_its_creators_invitation_is_refused_and_counted(own: bytes) -> None:
    """The creator's signature is not over it, so that one invitation would be any number of them."""
    given = msgspec.msgpack.decode(of_creator(BOB), type=Invitation)
    filled = msgspec.msgpack.encode(msgspec.structs.replace(given, own=own))
    signed = signed_by(BOB, msgspec.structs.replace(REPORT, invitation=filled))
    assert judge(signed, REPORT.key, policy_of("invitation")) == "not-invited"


def test_a_guest_of_a_guest_of_a_guest_is_nobody_s() -> None:
    with pytest.raises(ConfigError, match="cannot invite"):
        invite(BOB, SWARM, CREATOR, CARL.peer_id, 0.0, of_alice(BOB))
    with pytest.raises(ConfigError, match="cannot invite"):
        invite(ALICE, SWARM, CREATOR, BOB.peer_id)
    with pytest.raises(ConfigError, match="RSA"):
        invite(RSA, SWARM, RSA.peer_id, BOB.peer_id)
    with pytest.raises(ConfigError, match="no peer id"):
        invite(COORDINATOR, SWARM, CREATOR, "nobody")
    with pytest.raises(ConfigError, match="no text"):
        read_invitation("!")


@pytest.mark.parametrize("content", [MEMBERSHIP, REPORT, ROLLOUTS], ids=lambda content: type(content).__name__)
def test_records_count_by_the_swarms_rule(content: Payload) -> None:
    work = find_work(SWARM, BOB.peer_id, 10)
    plain = signed_by(BOB, content)
    invited = signed_by(BOB, msgspec.structs.replace(content, invitation=of_alice(BOB)))  # type: ignore[type-var]
    borrowed = signed_by(BOB, msgspec.structs.replace(content, invitation=of_creator(ALICE)))  # type: ignore[type-var]
    worked = signed_by(BOB, msgspec.structs.replace(content, work=work))  # type: ignore[type-var]
    reasons = {
        rule: [judge(signed, content.key, policy_of(rule)) for signed in (plain, invited, borrowed, worked)]
        for rule in ("open", "invitation", "work")
    }
    assert reasons == {
        "open": [""] * 4,
        "invitation": ["not-invited", "", "not-invited", "not-invited"],
        "work": ["no-work", "no-work", "no-work", ""],
    }
    assert judge(signed_by(COORDINATOR, content), content.key, policy_of("invitation")) == "", "the creator needs none"


def test_an_invitation_ends_while_its_guest_is_known() -> None:
    now = time.time()
    policy = policy_of("invitation")
    signed = signed_by(BOB, msgspec.structs.replace(REPORT, invitation=of_creator(BOB, now + 30)))
    assert judge(signed, REPORT.key, policy) == ""
    policy.now = lambda: now + 31
    assert judge(signed, REPORT.key, policy) == "not-invited"
