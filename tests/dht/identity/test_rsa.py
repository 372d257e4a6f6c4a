"""RL Swarm's RSA identities: the peer id that libp2p computes, and signatures that count for their owner alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.core.commands import Announce, CollectReports, Gather, PublishReport, Register
from swarmd.core.events import LinkUp, MemberSeen, Registered, ReportSeen, RolloutsGathered, RoundAnnounced
from swarmd.dht.identity.identity import load_identity
from swarmd.dht.identity.rsa import LENGTHS, parse_rsa
from swarmd.dht.identity.signatures import signature_bytes, verify
from swarmd.errors import IdentityError
from tests.dht.driver import Driver
from tests.dht.making import ALICE, OTHER_RSA, RSA, rsa_file, rsa_file_of

PLAIN = serialization.NoEncryption()
DER, PKCS1 = serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL
MESSAGE = b"message"
SIGNATURE = RSA.sign(MESSAGE)


@pytest.mark.anyio
@pytest.mark.parametrize("bits", [2048, 3072, 4096])
async def test_p2pd_runs_with_the_key_under_the_same_peer_id(tmp_path: Path, bits: int) -> None:
    from swarmd.dht.p2p.hivemind_api import P2P

    path = tmp_path / "swarm.pem"
    if bits == 2048:
        P2P.generate_identity(str(path))
    else:
        rsa_file(path, bits)
    p2p = await P2P.create(identity_path=str(path), host_maddrs=["/ip4/127.0.0.1/tcp/0"], check_if_identity_free=False)
    try:
        assert load_identity(path).peer_id == p2p.peer_id.to_base58()
    finally:
        await p2p.shutdown()


@pytest.mark.parametrize(("bits", "exponent", "says"), [(1024, 65537, "1024 bits"), (2048, 3, "exponent")])
def test_a_key_that_peers_would_not_take_is_refused(tmp_path: Path, bits: int, exponent: int, says: str) -> None:
    rsa_file(tmp_path / "swarm.pem", bits, exponent)
    with pytest.raises(IdentityError, match=says):
        load_identity(tmp_path / "swarm.pem")


def test_other_keys_in_the_same_wrapping_are_refused(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    pkcs8 = key.private_bytes(DER, serialization.PrivateFormat.PKCS8, PLAIN)
    curve = ec.generate_private_key(ec.SECP256R1()).private_bytes(DER, PKCS1, PLAIN)
    public = key.public_key().public_bytes(DER, serialization.PublicFormat.PKCS1)
    padded = key.private_bytes(DER, PKCS1, PLAIN) + b"\0"
    for der in (pkcs8, curve, public, padded, b"", b"x" * 300):
        content = rsa_file_of(tmp_path / "swarm.pem", der)
        with pytest.raises(IdentityError, match="damaged"):
            parse_rsa(content, "swarm.pem")


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_damaged_key_file_is_refused(data: st.DataObject) -> None:
    content = bytearray(RSA.encode())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(3, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(3, len(content) - 1)) :]
    with pytest.raises(IdentityError):
        parse_rsa(bytes(content), "swarm.pem")


def test_a_signature_counts_for_its_owner_and_message_alone() -> None:
    assert verify(RSA.peer_id, SIGNATURE, MESSAGE)
    assert not verify(RSA.peer_id, SIGNATURE, b"another")
    assert not verify(OTHER_RSA.peer_id, SIGNATURE, MESSAGE)
    assert not verify(ALICE.peer_id, SIGNATURE, MESSAGE)
    assert not verify(RSA.peer_id, ALICE.sign(MESSAGE), MESSAGE)
    assert not verify(RSA.peer_id, OTHER_RSA.sign(MESSAGE), MESSAGE)
    assert not verify("nobody", SIGNATURE, MESSAGE)
    assert signature_bytes(RSA.peer_id, MESSAGE + SIGNATURE) == len(SIGNATURE)
    assert signature_bytes(ALICE.peer_id, MESSAGE + ALICE.sign(MESSAGE)) == 64


def test_a_signature_with_the_key_of_another_does_not_count() -> None:
    """The owner's key beside the forger's signature, and the forger's key beside the owner's id."""
    ours, theirs = SIGNATURE, OTHER_RSA.sign(MESSAGE)
    key_bytes, signed_bytes = LENGTHS.unpack(ours[-4:])
    mixed = ours[:key_bytes] + theirs[key_bytes : key_bytes + signed_bytes] + ours[-4:]
    assert not verify(RSA.peer_id, mixed, MESSAGE)
    assert not verify(OTHER_RSA.peer_id, mixed, MESSAGE)


@pytest.mark.anyio
async def test_rsa_and_ed25519_nodes_share_a_swarm(tmp_path: Path) -> None:
    """Clock, memberships, reports and rollouts, in both directions."""
    for name in ("boss", "member"):
        (tmp_path / name).mkdir()
    rsa_file(tmp_path / "boss" / "identity.key")
    boss = Driver(tmp_path / "boss")
    nodes = [boss]
    try:
        assert boss.peer_id.startswith("Qm")
        await boss.start()
        member = Driver(tmp_path / "member", boss.peer_id, (await boss.address(),))
        nodes.append(member)
        await member.start()
        for node in nodes:
            await node.expect(LinkUp)
            await node.do(Register("register"))
            await node.expect(Registered)
        await boss.expect(MemberSeen, peer=member.peer_id)
        await member.expect(MemberSeen, peer=boss.peer_id)
        await boss.do(Announce("announce/3/0/1", 3, 0, 1.7e9, 1.7e9 + 60))
        await member.expect(RoundAnnounced, round=3)
        for node, other in ((boss, member), (member, boss)):
            await node.do(CollectReports("collect/3/0", 3, 0))
            await other.do(PublishReport("report/3/0", 3, 0, 0.5, other.put([other.peer_id], 4, (3, 0))))
            await node.expect(ReportSeen, peer=other.peer_id, reward=0.5)
        for node, other in ((boss, member), (member, boss)):
            await node.do(Gather("gather/4/0", 4, 0, 3, 0, time.time() + 10))
            gathered = await node.expect(RolloutsGathered)
            assert [ref.peer for ref in gathered.rollouts] == [other.peer_id]
    finally:
        for node in nodes:
            await node.clean()
