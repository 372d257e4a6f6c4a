"""Inviting, withdrawing, and which peers' records count."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.identity.proof_of_work import find_work
from swarmd.dht.p2p.limits import RejectionCounter
from swarmd.dht.store.validator import Validator
from swarmd.dht.wire import names
from swarmd.dht.wire.invitations import (
    CHANGES_BURST,
    CHANGES_PER_S,
    HOSTS_MAX,
    ID_BYTES,
    INVITATION_BYTES_MAX,
    WITHDRAWN_MAX,
    AdmissionRule,
    HostWithdrawals,
    Invitation,
    OwnInvitations,
    Rule,
    Withdrawals,
    check_invitation,
    encoded_invitation_id,
    invitation_chain,
    invitation_from_text,
    invitation_to_text,
    make_invitation,
    pack_ids,
    parse_invitation_id,
    read_withdrawals,
    save_withdrawals,
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
    return make_invitation(COORDINATOR, swarm, CREATOR, guest.peer_id, until)


def of_alice(guest: Identity) -> bytes:
    """Alice was invited by the creator, and invites."""
    return make_invitation(ALICE, SWARM, CREATOR, guest.peer_id, 0.0, of_creator(ALICE))


def policy_of(rule: Rule, bits: int = 10, **more: int) -> RecordPolicy:
    return RecordPolicy(SWARM, CREATOR, own="own", admission=AdmissionRule(rule, SWARM, CREATOR, bits), **more)


def test_the_creator_invites_and_so_does_whom_it_invited() -> None:
    assert check_invitation(of_creator(ALICE), SWARM, CREATOR, ALICE.peer_id, NOW) == math.inf
    assert check_invitation(of_alice(BOB), SWARM, CREATOR, BOB.peer_id, NOW) == math.inf
    assert check_invitation(of_creator(ALICE, NOW + 5), SWARM, CREATOR, ALICE.peer_id, NOW) == NOW + 5
    assert invitation_from_text(invitation_to_text(of_alice(BOB))) == of_alice(BOB)


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
        make_invitation(BOB, SWARM, CREATOR, CARL.peer_id, 0.0, of_alice(BOB))
    with pytest.raises(ConfigError, match="cannot invite"):
        make_invitation(ALICE, SWARM, CREATOR, BOB.peer_id)
    with pytest.raises(ConfigError, match="RSA"):
        make_invitation(RSA, SWARM, RSA.peer_id, BOB.peer_id)
    with pytest.raises(ConfigError, match="is not a peer id"):
        make_invitation(COORDINATOR, SWARM, CREATOR, "nobody")
    with pytest.raises(ConfigError, match="is not a text"):
        invitation_from_text("!")


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


OF_ALICE = make_invitation(COORDINATOR, SWARM, CREATOR, ALICE.peer_id)

OF_BOB = make_invitation(ALICE, SWARM, CREATOR, BOB.peer_id, 0.0, OF_ALICE)


def ids(*encoded: bytes) -> bytes:
    return pack_ids(encoded_invitation_id(each) for each in encoded)


def withdrawing(withdrawals: Withdrawals) -> RecordPolicy:
    admission = AdmissionRule("invitation", SWARM, CREATOR, withdrawn=withdrawals.is_withdrawn)
    return RecordPolicy(SWARM, CREATOR, own="own", admission=admission)


@pytest.mark.parametrize(
    ("host", "withdrawn", "alice", "bob"),
    [
        (CREATOR, ids(OF_BOB), "", "withdrawn"),
        (CREATOR, ids(OF_ALICE), "withdrawn", "withdrawn"),
        (ALICE.peer_id, ids(OF_BOB), "", "withdrawn"),
        (ALICE.peer_id, ids(OF_ALICE), "", ""),
        (BOB.peer_id, ids(OF_ALICE, OF_BOB), "", ""),
        (CREATOR, b"\0" * ID_BYTES, "", ""),
    ],
    ids=["creator's guest's", "host's own voids its", "host of what it made", "not one's own", "no host", "another"],
)
def test_the_creator_withdraws_any_and_a_host_what_it_made(host: str, withdrawn: bytes, alice: str, bob: str) -> None:
    withdrawals = Withdrawals(CREATOR)
    policy = withdrawing(withdrawals)
    records = [signed_by(guest, replace(REPORT, invitation=own)) for guest, own in ((ALICE, OF_ALICE), (BOB, OF_BOB))]
    assert [judge(each, REPORT.key, policy) for each in records] == ["", ""]
    assert withdrawals.update_host(host, withdrawn, NOW)
    assert [judge(each, REPORT.key, policy) for each in records] == [alice, bob]
    assert withdrawals.update_host(host, b"", NOW + 1)
    assert [judge(each, REPORT.key, policy) for each in records] == ["", ""]


def test_a_record_that_was_judged_before_is_refused_once_its_invitation_is_withdrawn() -> None:
    withdrawals = Withdrawals(CREATOR)
    validator = Validator(withdrawing(withdrawals), RejectionCounter(lambda: 0.0))
    signed = signed_by(ALICE, replace(MEMBERSHIP, invitation=OF_ALICE))
    place = (names.key_id(MEMBERSHIP.key), signed.owner, signed.value, signed.expiration)
    assert validator.verify_record(*place) == signed
    withdrawals.update_host(CREATOR, ids(OF_ALICE), NOW)
    validator.clear_caches()
    with pytest.raises(RecordRejected) as refused:
        validator.verify_record(*place)
    assert refused.value.reason == "withdrawn"


def test_an_older_word_does_not_count_and_hosts_have_a_bound() -> None:
    withdrawals = Withdrawals(CREATOR)
    assert withdrawals.update_host(ALICE.peer_id, ids(OF_BOB), NOW)
    assert not withdrawals.update_host(ALICE.peer_id, b"", NOW - 1)
    assert not withdrawals.update_host(ALICE.peer_id, ids(OF_BOB), NOW + 1), "it is known"
    assert withdrawals.update_host(ALICE.peer_id, b"", NOW, latest=NOW - 5), "the last was of a clock that was ahead"
    assert not withdrawals.update_host(BOB.peer_id, b"", NOW), "who has withdrawn nothing takes no room"
    crowd = [withdrawals.update_host(f"host{number}", ids(OF_BOB), NOW) for number in range(HOSTS_MAX)]
    assert crowd.count(True) == HOSTS_MAX - 1
    assert withdrawals.update_host(CREATOR, ids(OF_BOB), NOW), "for the creator there is room"


def test_a_guest_that_changes_its_list_all_the_time_is_heard_now_and_then() -> None:
    now, lists = 0.0, [ids(OF_BOB), b""]
    withdrawals = Withdrawals(CREATOR, now=lambda: now)
    changed = [withdrawals.update_host(ALICE.peer_id, lists[number % 2], NOW + number) for number in range(100)]
    assert changed.count(True) == CHANGES_BURST
    now += 1 / CHANGES_PER_S
    assert withdrawals.update_host(ALICE.peer_id, ids(OF_BOB), NOW + 100)
    assert withdrawals.is_withdrawn(invitation_chain(OF_BOB)[0])
    assert all(withdrawals.update_host(CREATOR, lists[number % 2], NOW + number) for number in range(100))


def test_what_was_heard_is_kept_for_this_swarm(tmp_path: Path) -> None:
    withdrawals = Withdrawals(CREATOR)
    withdrawals.update_host(CREATOR, ids(OF_ALICE), NOW)
    path = tmp_path / "withdrawn.bin"
    assert read_withdrawals(path, SWARM) == ()
    save_withdrawals(path, SWARM, withdrawals.all_withdrawals)
    (again,) = [Withdrawals(CREATOR, read_withdrawals(path, SWARM))]
    assert again.is_withdrawn(invitation_chain(OF_ALICE)[0])
    assert read_withdrawals(path, "another") == ()
    path.write_bytes(b"\xc1noise")
    assert read_withdrawals(path, SWARM) == ()
    assert not Withdrawals(CREATOR, (HostWithdrawals(CREATOR, NOW, b"odd"),)).is_withdrawn(
        invitation_chain(OF_ALICE)[0]
    )


@pytest.mark.parametrize("packed", [bytes(ID_BYTES - 1), bytes((WITHDRAWN_MAX + 1) * ID_BYTES)])
def test_a_list_that_is_none_is_refused(packed: bytes) -> None:
    signed = signed_by(COORDINATOR, replace(MEMBERSHIP, withdrawn=packed))
    assert judge(signed, MEMBERSHIP.key, withdrawing(Withdrawals(CREATOR))) == "oversized"


# --- the list of those made here ---
def made_by(tmp_path: Path) -> OwnInvitations:
    return OwnInvitations(tmp_path / "network" / "invitations.json")


def test_those_made_are_listed_and_withdrawn_ones_travel_until_their_end(tmp_path: Path) -> None:
    made = made_by(tmp_path)
    assert made.read_all() == () and made.packed_withdrawals(NOW) == b""
    lasting = made.add_invitation(OF_ALICE, ALICE.peer_id, 0.0, NOW)
    ending = made.add_invitation(
        make_invitation(COORDINATOR, SWARM, CREATOR, BOB.peer_id, NOW + 50), BOB.peer_id, NOW + 50, NOW
    )
    assert [(each.id, each.guest) for each in made.read_all()] == [(lasting, ALICE.peer_id), (ending, BOB.peer_id)]
    assert made.withdraw(parse_invitation_id(lasting), False, NOW + 1).guest == ALICE.peer_id
    made.withdraw(parse_invitation_id(ending), False, NOW + 1)
    assert made.withdraw(parse_invitation_id(ending), False, NOW + 2).withdrawn_at == NOW + 1, "once is enough"
    assert made.packed_withdrawals(NOW + 2) == pack_ids((bytes.fromhex(lasting), bytes.fromhex(ending)))
    assert made.packed_withdrawals(NOW + 60) == bytes.fromhex(lasting)
    made.add_invitation(OF_ALICE, ALICE.peer_id, 0.0, NOW + 3)
    assert made.packed_withdrawals(NOW + 60) == bytes.fromhex(lasting), "made once more, it is the same invitation"


def test_a_list_that_cannot_be_read_is_named_and_a_running_node_goes_by_the_last(
    tmp_path: Path,
) -> None:
    made = made_by(tmp_path)
    made.withdraw(encoded_invitation_id(OF_BOB), True, NOW)
    assert made.latest_packed_withdrawals() == ids(OF_BOB)
    for broken in ("[{", '[{"id": "nothing"}]', '[{"id": "000000000000", "until": 1e400}]'):
        (tmp_path / "network" / "invitations.json").write_text(broken)
        with pytest.raises(ConfigError, match=os.fspath(tmp_path)):
            made.read_all()
    assert made.latest_packed_withdrawals() == ids(OF_BOB)
