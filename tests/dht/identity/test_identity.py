"""Keys of both kinds, and proof of work."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.core.commands import Announce, CollectReports, Gather, PublishReport
from swarmd.core.events import MemberSeen, ReportSeen, RolloutsGathered, RoundAnnounced
from swarmd.dht.identity.identity import (
    RSA_LENGTHS,
    create_identity,
    generate_identity,
    load_identity,
    lock_identity,
    parse_identity,
    public_key_of,
    read_identity,
    signature_size,
    verify,
)
from swarmd.dht.identity.proof_of_work import find_work, load_or_find_work, work_bits
from swarmd.errors import ExitCode, IdentityError, IdentityInUse, NotFoundError
from tests.dht.driver import Driver
from tests.dht.making import ALICE, OTHER_RSA, RSA, rsa_file, rsa_file_of
from tests.eventlog.making import flip


def test_a_new_identity_is_private_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    made = create_identity(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes()[:4] == b"\x08\x01\x12\x40"
    assert load_identity(path).peer_id == read_identity(path).peer_id == made.peer_id
    assert made.peer_id.startswith("12D3Koo")
    public_key_of(made.peer_id).verify(load_identity(path).sign(b"message"), b"message")


def test_the_mode_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        create_identity(tmp_path / "identity.key")
    finally:
        os.umask(before)
    assert (tmp_path / "identity.key").stat().st_mode & 0o777 == 0o600


def test_libp2p_agrees_about_the_peer_id(tmp_path: Path) -> None:
    from swarmd.dht.p2p.hivemind_api import PeerID

    made = create_identity(tmp_path / "identity.key")
    assert PeerID.from_base58(made.peer_id).to_base58() == made.peer_id
    assert PeerID.from_base58(made.peer_id).to_bytes()[6:] == made.public


def test_an_identity_is_never_overwritten_nor_made_by_reading(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    made = create_identity(path)
    with pytest.raises(IdentityError, match="exists already"):
        create_identity(path)
    assert load_identity(path).peer_id == made.peer_id
    with pytest.raises(NotFoundError, match="swarmd identity new"):
        load_identity(tmp_path / "other.key")
    assert not (tmp_path / "other.key").exists()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        *((partial(Path.chmod, mode=mode), "chmod 600 /.*identity.key") for mode in (0o640, 0o604, 0o644, 0o660)),
        (partial(flip, at=20), "does not belong to its secret"),
        pytest.param(
            partial(os.chown, uid=12345, gid=-1),
            "belongs to user 12345",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away"),
        ),
    ],
)
def test_a_file_that_is_spoilt_or_not_private_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "identity.key"
    create_identity(path)
    spoil(path)
    with pytest.raises(IdentityError, match=says):
        load_identity(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not an identity"),
        (b"\x08\x01\x12\x40" + bytes(63), "is not an identity"),
        (b"\x08\x01\x12\x40" + bytes(65), "is not an identity"),
        (b"\x08\x01\x12\x40" + bytes(64), "is damaged"),
        (b"\x08\x00\x12\xa9\x09" + bytes(1190), "RL Swarm"),
        (b"-----BEGIN PRIVATE KEY-----\n", "is not an identity"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match=says):
        load_identity(path)


def test_a_link_or_directory_is_refused(tmp_path: Path) -> None:
    create_identity(tmp_path / "identity.key")
    (tmp_path / "link").symlink_to(tmp_path / "identity.key")
    with pytest.raises(IdentityError, match=r"link cannot be opened: .*Name the file that it leads to"):
        load_identity(tmp_path / "link")
    with pytest.raises(IdentityError, match="not a regular file"):
        load_identity(tmp_path)


def test_the_identity_is_held_by_one_process(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    create_identity(path)
    program = (
        "import sys, pathlib\nfrom swarmd.dht.identity.identity import lock_identity\n"
        f"with lock_identity(pathlib.Path({str(path)!r})): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(IdentityInUse, match=f"process {other.pid}") as raised, lock_identity(path):
            pass
        assert raised.value.exit_code == ExitCode.IDENTITY_CONFLICT
        other.kill()
        other.wait()
    with lock_identity(path):
        assert load_identity(path).peer_id


def test_an_identity_does_not_show_its_secret() -> None:
    identity = generate_identity()
    assert repr(identity) == f"Identity({identity.peer_id})"


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
            parse_identity(content, "swarm.pem")


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_damaged_key_file_is_refused(data: st.DataObject) -> None:
    content = bytearray(RSA.encode())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(3, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(3, len(content) - 1)) :]
    with pytest.raises(IdentityError):
        parse_identity(bytes(content), "swarm.pem")


def test_a_signature_counts_for_its_owner_and_message_alone() -> None:
    assert verify(RSA.peer_id, SIGNATURE, MESSAGE)
    assert not verify(RSA.peer_id, SIGNATURE, b"another")
    assert not verify(OTHER_RSA.peer_id, SIGNATURE, MESSAGE)
    assert not verify(ALICE.peer_id, SIGNATURE, MESSAGE)
    assert not verify(RSA.peer_id, ALICE.sign(MESSAGE), MESSAGE)
    assert not verify(RSA.peer_id, OTHER_RSA.sign(MESSAGE), MESSAGE)
    assert not verify("nobody", SIGNATURE, MESSAGE)
    assert signature_size(RSA.peer_id, MESSAGE + SIGNATURE) == len(SIGNATURE)
    assert signature_size(ALICE.peer_id, MESSAGE + ALICE.sign(MESSAGE)) == 64


def test_a_signature_with_the_key_of_another_does_not_count() -> None:
    """The owner's key beside the forger's signature, and the forger's key beside the owner's id."""
    ours, theirs = SIGNATURE, OTHER_RSA.sign(MESSAGE)
    key_bytes, signed_bytes = RSA_LENGTHS.unpack(ours[-4:])
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
        await boss.join()
        member = Driver(tmp_path / "member", boss.peer_id, (await boss.address(),))
        nodes.append(member)
        await member.join()
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


class NotWaiting(Exception):
    pass


def test_the_least_number_that_is_worth_the_bits_is_found() -> None:
    number = find_work("s", "p", 10)
    assert work_bits("s", "p", number) >= 10
    assert all(work_bits("s", "p", less) < 10 for less in range(number))


MORE = 17  # bits, than every node does


def give_up() -> None:
    raise NotWaiting


def test_work_is_found_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "work"
    number = load_or_find_work(path, "s", "p", MORE, lambda: None)
    assert work_bits("s", "p", number) >= MORE
    assert load_or_find_work(path, "s", "p", MORE, give_up) == number, "it is not searched for again"
    assert [each.name for each in tmp_path.iterdir()] == ["work"]


@pytest.mark.parametrize(
    "content", [b"", b"12", b"\xff\x00", b"-5\n", b"9" * 400], ids=["empty", "torn", "no", "neg", "long"]
)
def test_a_damaged_number_is_found_anew_and_put_right(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "work"
    path.write_bytes(content)
    number = load_or_find_work(path, "s", "p", MORE, lambda: None)
    assert int(path.read_bytes()) == number == find_work("s", "p", MORE)
