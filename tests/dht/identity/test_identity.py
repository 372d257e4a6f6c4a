"""The identity: made once, kept private, held by one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.dht.identity.identity import (
    create_identity,
    generate_identity,
    hold_identity,
    load_identity,
    public_key_of,
    read_identity,
)
from swarmd.errors import ExitCode, IdentityError, IdentityInUse, NotFoundError


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


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.key"
    create_identity(path)
    path.chmod(mode)
    with pytest.raises(IdentityError, match=f"chmod 600 {path}"):
        load_identity(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is no identity"),
        (b"\x08\x01\x12\x40" + bytes(63), "is no identity"),
        (b"\x08\x01\x12\x40" + bytes(65), "is no identity"),
        (b"\x08\x01\x12\x40" + bytes(64), "is damaged"),
        (b"\x08\x00\x12\xa9\x09" + bytes(1190), "RL Swarm"),
        (b"-----BEGIN PRIVATE KEY-----\n", "is no identity"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match=says):
        load_identity(path)


def test_one_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    raw = bytearray(create_identity(path).encode())
    raw[20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(IdentityError, match="does not belong to its secret"):
        load_identity(path)


def test_a_link_or_directory_is_refused(tmp_path: Path) -> None:
    create_identity(tmp_path / "identity.key")
    (tmp_path / "link").symlink_to(tmp_path / "identity.key")
    with pytest.raises(IdentityError, match=r"link cannot be opened: .*Name the file that it leads to"):
        load_identity(tmp_path / "link")
    with pytest.raises(IdentityError, match="not a regular file"):
        load_identity(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    create_identity(path)
    os.chown(path, 12345, -1)
    with pytest.raises(IdentityError, match="belongs to user 12345"):
        load_identity(path)


def test_the_identity_is_held_by_one_process(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    create_identity(path)
    program = (
        "import sys, pathlib\nfrom swarmd.dht.identity.identity import hold_identity\n"
        f"with hold_identity(pathlib.Path({str(path)!r})): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(IdentityInUse, match=f"process {other.pid}") as raised, hold_identity(path):
            pass
        assert raised.value.exit_code == ExitCode.IDENTITY_CONFLICT
        other.kill()
        other.wait()
    with hold_identity(path):
        assert load_identity(path).peer_id


def test_an_identity_does_not_show_its_secret() -> None:
    identity = generate_identity()
    assert repr(identity) == f"Identity({identity.peer_id})"
