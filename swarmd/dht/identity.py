"""A node's identity: one Ed25519 key in libp2p's own file format. The public key is the peer id.

The file holds the libp2p protobuf ``PrivateKey``: bytes 08 01 12 40, then the 32-byte seed, then the 32-byte public
key. It is made only when asked for, never by a wrong path; it must belong to the user and be readable by nobody else.
Only signing loads `cryptography`, so that the daemon can learn its peer id without it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import base58

from swarmd.errors import IdentityError, IdentityInUse, NotFoundError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FILE_PREFIX = b"\x08\x01\x12\x40"
FILE_BYTES = len(FILE_PREFIX) + 64
RSA_PREFIX = b"\x08\x00\x12"  # RL Swarm's swarm.pem
PEER_PREFIX = b"\x00\x24\x08\x01\x12\x20"  # identity multihash of a libp2p Ed25519 PublicKey
PEER_BYTES = len(PEER_PREFIX) + 32
PEER_ID_LENGTH_MAX = 60  # base58 characters; real ones have 52


class Identity:
    """A loaded key.

    Args:
        seed: the 32 secret bytes.
        public: the 32 bytes of the public key.
    """

    def __init__(self, seed: bytes, public: bytes) -> None:
        self._seed = seed
        self.public = public
        self.peer_id = peer_id_of(public)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._seed)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of `message`."""
        return self._key.sign(message)

    def encode(self) -> bytes:
        """The file's contents."""
        return FILE_PREFIX + self._seed + self.public

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"


def peer_id_of(public: bytes) -> str:
    """The base58 peer id (12D3Koo...) of an Ed25519 public key."""
    return str(base58.b58encode(PEER_PREFIX + public).decode("ascii"))


@lru_cache(maxsize=4096)
def public_key_of(peer_id: str) -> Ed25519PublicKey:
    """The public key inside a peer id. Raises ValueError when it is not the id of an Ed25519 key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(_public_bytes(peer_id))


def is_peer_id(text: str) -> bool:
    """True for the id of an Ed25519 peer."""
    try:
        _public_bytes(text)
    except ValueError:
        return False
    return True


def _public_bytes(peer_id: str) -> bytes:
    if len(peer_id) > PEER_ID_LENGTH_MAX:
        raise ValueError("too long for a peer id")
    raw = base58.b58decode(peer_id)
    if len(raw) != PEER_BYTES or not raw.startswith(PEER_PREFIX):
        raise ValueError("not the peer id of an Ed25519 key")
    return bytes(raw[len(PEER_PREFIX) :])


def generate_identity() -> Identity:
    """A new random key, in memory only."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return Identity(key.private_bytes_raw(), public)


def create_identity(path: Path) -> Identity:
    """Make a new key and write it durably with mode 0600.

    Raises:
        IdentityError: the file exists already (it is never overwritten) or cannot be written.
    """
    identity = generate_identity()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise IdentityError(f"{path} exists already", "Move it away first: an identity is never overwritten") from error
    except OSError as error:
        fix = "" if path.parent.is_dir() else f"Make its directory first: `mkdir -m 700 -p {path.parent}`"
        raise IdentityError(f"the identity {path} cannot be created: {error.strerror}", fix) from error
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, identity.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _sync_directory(path.parent)
    return identity


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_identity(path: Path) -> Identity:
    """Read a key and prove that it is whole.

    Raises:
        NotFoundError: there is no such file; none is made.
        IdentityError: wrong type, owner or mode, an RSA key of RL Swarm, or a damaged file.
    """
    identity = read_identity(path)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    derived = Ed25519PrivateKey.from_private_bytes(identity._seed).public_key().public_bytes_raw()
    if derived != identity.public:
        raise IdentityError(f"{path} is damaged: its public key does not belong to its secret", _RESTORE)
    return identity


_RESTORE = "Restore it from a backup"


def read_identity(path: Path) -> Identity:
    """As `load_identity`, without the proof that needs `cryptography`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no identity {path}", f"Make one with `swarmd identity new {path}`") from error
    except OSError as error:
        raise IdentityError(f"the identity {path} cannot be opened: {error.strerror}") from error
    try:
        _check_file(path, os.fstat(descriptor))
        return _parse(path, os.read(descriptor, 8192))
    finally:
        os.close(descriptor)


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise IdentityError(f"the identity {path} is not a regular file")
    if status.st_uid != os.geteuid():
        fix = f"Run as that user, or give the file away with `chown {os.geteuid()} {path}`"
        raise IdentityError(f"the identity {path} belongs to user {status.st_uid}, not to {os.geteuid()}", fix)
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise IdentityError(f"the identity {path} has mode {mode:04o}: others may read it", f"Run `chmod 600 {path}`")


def _parse(path: Path, raw: bytes) -> Identity:
    if raw.startswith(RSA_PREFIX):
        fix = "Keep that file for RL Swarm and make a new one with `swarmd identity new`"
        raise IdentityError(f"{path} is an RSA identity (RL Swarm's swarm.pem); swarmd needs Ed25519", fix)
    if len(raw) != FILE_BYTES or not raw.startswith(FILE_PREFIX):
        raise IdentityError(f"{path} is no identity: {FILE_BYTES} bytes of a libp2p Ed25519 key expected", _RESTORE)
    return Identity(raw[4:36], raw[36:68])


@contextmanager
def hold_identity(path: Path) -> Iterator[None]:
    """Keep the identity for this process alone; the kernel lets go of it when the process ends.

    Raises:
        IdentityInUse: another process on this host holds it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder_of(os.fstat(descriptor).st_ino)
            who = f"process {holder}" if holder else "another process"
            fix = "Stop the other node; one identity runs one node only"
            raise IdentityInUse(f"the identity {path} is in use by {who}", fix) from error
        yield
    finally:
        os.close(descriptor)


def _holder_of(inode: int) -> int:
    """Pid of the process that holds a flock on the file, 0 when it cannot be told (Linux only)."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and int(fields[5].rsplit(":", 1)[1]) == inode:
                return int(fields[4])
    return 0
