"""A node's identity: one key in libp2p's own file format, of which the peer id is made.

swarmd makes Ed25519 keys. Their file holds the libp2p protobuf ``PrivateKey``: bytes 08 01 12 40, then the 32-byte
seed, then the 32-byte public key; the public key is the peer id. RL Swarm's RSA keys (`swarm.pem`) are understood too:
`swarmd.dht.identity.rsa`. A file is made only when asked for, never by a wrong path; it must belong to the user and be
readable by nobody else. Of an Ed25519 key, only signing loads `cryptography`: the daemon can learn its peer id without
it.
"""

from __future__ import annotations

import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import base58
import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import IdentityDamaged, IdentityError, IdentityInUse, NotFoundError
from swarmd.files import read_start
from swarmd.paths import quoted
from swarmd.secret_files import Secret, SecretKind, read_secret, write_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FILE_PREFIX = b"\x08\x01\x12\x40"
FILE_BYTES = len(FILE_PREFIX) + 64
FILE_BYTES_MAX = 8192  # read at most; an RSA key of 4096 bits has 2,400
KEY_FILE = SecretKind("identity", IdentityError, FILE_BYTES_MAX)
PRIVATE_FILE = SecretKind("private file", IdentityError, FILE_BYTES_MAX)
RSA_PREFIX = b"\x08\x00\x12"  # RL Swarm's swarm.pem
PEER_PREFIX = b"\x00\x24\x08\x01\x12\x20"  # identity multihash of a libp2p Ed25519 PublicKey
PEER_BYTES = len(PEER_PREFIX) + 32
RSA_PEER_PREFIX = b"\x12\x20"  # sha256 multihash of a libp2p RSA PublicKey
RSA_PEER_BYTES = len(RSA_PEER_PREFIX) + 32
PEERS_KEPT = 16384  # peer ids that need not be decoded again: more than may have records under a key
PEER_ID_LENGTH_MAX = 60  # base58 characters; real ones have 52, or 46 with RSA

_RESTORE = "Restore it from a backup with `swarmd identity restore`"
_NAME = "Name a node's identity.key, or restore it from a backup with `swarmd identity restore`"

ED25519_BYTES = 64
ED25519_START = "12D3KooW"  # of every Ed25519 peer id

SUFFIX = ".called"  # identity.key.called
NOTE_BYTES_MAX = 4096
NAME_CHARS_MAX = 100


class Identity(ABC):
    """A loaded key."""

    kind: str  # "ed25519", or "rsa-" and the bits
    peer_id: str

    @abstractmethod
    def sign(self, message: bytes) -> bytes:
        """A signature of `message` that `swarmd.dht.identity.identity.verify` accepts for the peer id."""

    @abstractmethod
    def encode(self) -> bytes:
        """The key file's contents."""

    @abstractmethod
    def is_whole(self) -> bool:
        """Does the public half belong to the secret one?"""

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"


class Ed25519Identity(Identity):
    """swarmd's own kind.

    Args:
        seed: the 32 secret bytes.
        public: the 32 bytes of the public key.
    """

    kind = "ed25519"

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
        """The key file's contents, 68 bytes."""
        return FILE_PREFIX + self._seed + self.public

    def is_whole(self) -> bool:
        """Does the public half belong to the secret one? Loads `cryptography`."""
        return self._key.public_key().public_bytes_raw() == self.public


def peer_id_of(public: bytes) -> str:
    """The base58 peer id (12D3Koo...) of an Ed25519 public key."""
    return str(base58.b58encode(PEER_PREFIX + public).decode("ascii"))


@lru_cache(maxsize=4096)
def public_key_of(peer_id: str) -> Ed25519PublicKey:
    """The public key inside a peer id.

    Raises:
        ValueError: it is not the id of an Ed25519 key. An RSA peer's key cannot be read out of its id, which is a hash.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = _raw_of(peer_id)
    if not raw.startswith(PEER_PREFIX):
        raise ValueError("not the peer id of an Ed25519 key")
    return Ed25519PublicKey.from_public_bytes(raw[len(PEER_PREFIX) :])


def is_peer_id(text: str) -> bool:
    """True for the id of an Ed25519 or RSA peer, written as libp2p writes it."""
    try:
        _raw_of(text)
    except ValueError:
        return False
    return True


def key_digest_of(peer_id: str) -> bytes | None:
    """The sha256 that an RSA peer's id is made of; None for an Ed25519 peer. Raises ValueError for no peer id."""
    raw = _raw_of(peer_id)
    return raw[len(RSA_PEER_PREFIX) :] if raw.startswith(RSA_PEER_PREFIX) else None


@lru_cache(maxsize=PEERS_KEPT)
def _raw_of(peer_id: str) -> bytes:
    if len(peer_id) > PEER_ID_LENGTH_MAX:
        raise ValueError("too long for a peer id")
    raw = bytes(base58.b58decode(peer_id))
    ed25519 = len(raw) == PEER_BYTES and raw.startswith(PEER_PREFIX)
    rsa = len(raw) == RSA_PEER_BYTES and raw.startswith(RSA_PEER_PREFIX)
    if not ed25519 and not rsa:
        raise ValueError("not the peer id of an Ed25519 or RSA key")
    if base58.b58encode(raw).decode("ascii") != peer_id:  # the decoder ignores white space after it
        raise ValueError("not as libp2p writes it")
    return raw


def varint(number: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def generate_identity() -> Ed25519Identity:
    """A new random key, in memory only."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return Ed25519Identity(key.private_bytes_raw(), public)


def create_identity(path: Path) -> Ed25519Identity:
    """Make a new key and write it durably with mode 0600.

    Raises:
        IdentityError: the file exists already (it is never overwritten) or cannot be written.
    """
    identity = generate_identity()
    write_private(path, identity.encode())
    return identity


def write_private(path: Path, content: bytes) -> None:
    """Write a new file durably, with mode 0600.

    Raises:
        IdentityError: the file exists already (it is never overwritten) or cannot be written.
    """
    write_secret(path, content, PRIVATE_FILE)


def load_identity(path: Path) -> Identity:
    """Read a key and prove that it is whole.

    Raises:
        NotFoundError: there is no such file; none is made.
        IdentityError: wrong type, owner or mode, or a damaged file.
    """
    identity = read_identity(path)
    if not identity.is_whole():
        raise IdentityDamaged(f"{path} is damaged: its public key does not belong to its secret", _RESTORE)
    return identity


def read_identity(path: Path) -> Identity:
    """As `load_identity`, without the proof that needs `cryptography` where the key is Ed25519."""
    if not os.path.lexists(path):
        raise NotFoundError(
            f"there is no identity {path}",
            f"Bring it back with `swarmd identity restore BACKUP {quoted(path)}`; a new node's is made with "
            f"`swarmd identity new {quoted(path)}`",
        )
    return parse_identity(read_secret(Secret(path), KEY_FILE), str(path))


def parse_identity(raw: bytes, origin: str, fix: str = _NAME) -> Identity:
    """The key in a key file's contents; `origin` names them, and `fix` helps, in errors. Raises IdentityError."""
    if raw.startswith(RSA_PREFIX):
        from swarmd.dht.identity.rsa import parse_rsa

        return parse_rsa(raw, origin)
    if len(raw) != FILE_BYTES or not raw.startswith(FILE_PREFIX):
        raise IdentityDamaged(
            f"{origin} is no identity: a libp2p key of {FILE_BYTES} bytes (Ed25519) expected",
            fix,
        )
    return Ed25519Identity(raw[4:36], raw[36:68])


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


def signature_bytes(peer_id: str, value: bytes) -> int:
    """How many bytes of the end of a signed `value` are the signature that the owner's kind of key makes.

    Raises:
        ValueError: there is none, or `peer_id` is no peer id.
    """
    if not peer_id.startswith(ED25519_START) and key_digest_of(peer_id) is not None:
        from swarmd.dht.identity.rsa import rsa_signature_bytes

        return rsa_signature_bytes(value)
    if len(value) <= ED25519_BYTES:
        raise ValueError("too short to be signed")
    return ED25519_BYTES


def verify(peer_id: str, signature: bytes, message: bytes) -> bool:
    """True when the peer signed exactly this; False whatever else is given."""
    from cryptography.exceptions import InvalidSignature

    try:
        if key_digest_of(peer_id) is not None:
            from swarmd.dht.identity.rsa import verify_rsa

            return verify_rsa(peer_id, signature, message)
        public_key_of(peer_id).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class ForeignName(msgspec.Struct, frozen=True):
    """A name in RL Swarm, made of words that swarmd does not ship."""

    peer: str
    rl_swarm: str


def note_name(key: Path, peer: str, rl_swarm: str) -> None:
    """Write down what a key's peer is called in RL Swarm. Raises OSError."""
    key.with_name(key.name + SUFFIX).write_bytes(msgspec.json.encode(ForeignName(peer, rl_swarm)))


def known_name(key: Path, peer: str) -> str:
    """What this peer is called in RL Swarm, empty where no note says it."""
    try:
        called = msgspec.json.decode(read_start(key.with_name(key.name + SUFFIX), NOTE_BYTES_MAX), type=ForeignName)
    except (OSError, *DECODE_ERRORS):
        return ""
    sound = called.peer == peer and len(called.rl_swarm) <= NAME_CHARS_MAX and called.rl_swarm.isprintable()
    return called.rl_swarm if sound else ""
