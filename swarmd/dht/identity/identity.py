"""A node's identity: one key in libp2p's own file format, from which the peer id is made.

swarmd makes Ed25519 keys. Their file holds the libp2p protobuf ``PrivateKey``: bytes 08 01 12 40, then the 32-byte
seed, then the 32-byte public key; the public key is the peer id.

RL Swarm's RSA keys (`swarm.pem`) can be used, too. Their file holds bytes 08 00 12, a varint length and the key as
PKCS#1 DER. The peer id is the sha256 multihash of the protobuf ``PublicKey`` (bytes 08 00 12, a varint length and the
DER SubjectPublicKeyInfo), so the public key cannot be read out of it. A signature by such a key is therefore

    SubjectPublicKeyInfo || RSA signature || length of the first (u16, big-endian) || length of the second (u16)

and it is the peer's only if the key in it hashes to the peer id.

- A key file is made only on request, never because a path was wrong. It must belong to the user, and nobody else may be
  able to read it.
- `cryptography` is imported only where a key signs, verifies or is parsed as RSA: the daemon learns the peer id of an
  Ed25519 key without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
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
from swarmd.paths import quote_for_shell
from swarmd.secret_files import Secret, SecretKind, read_secret, write_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

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
PEERS_KEPT = 16384  # peer ids whose decoded form is cached: more than can have records under one key
PEER_ID_LENGTH_MAX = 60  # base58 characters; real ones have 52, or 46 with RSA

RSA_BITS_MIN, RSA_BITS_MAX = 2048, 4096
RSA_EXPONENT = 65537  # the usual one; large ones make verifying slow
RSA_KEY_BYTES_MAX = 600  # a SubjectPublicKeyInfo of 4096 bits has 550
RSA_KEYS_KEPT = 1024  # public keys whose parsed form is cached
RSA_LENGTHS = struct.Struct(">HH")

_RESTORE = "Restore it from a backup with `swarmd identity restore`"
_NAME = "Name a node's identity.key, or restore it from a backup with `swarmd identity restore`"
_ANOTHER_COPY = "Take another copy of it, from a backup or from where RL Swarm ran"

ED25519_BYTES = 64
ED25519_START = "12D3KooW"  # of every Ed25519 peer id

SUFFIX = ".called"  # identity.key.called
NOTE_BYTES_MAX = 4096
NAME_CHARS_MAX = 100


class Identity(ABC):
    """A loaded private key."""

    kind: str  # "ed25519", or "rsa-" and the bits
    peer_id: str

    @abstractmethod
    def sign(self, message: bytes) -> bytes:
        """Return a signature of `message` that `swarmd.dht.identity.identity.verify` accepts for the peer id."""

    @abstractmethod
    def encode(self) -> bytes:
        """Return the key file's contents."""

    @abstractmethod
    def has_valid_key_pair(self) -> bool:
        """Return whether the public half belongs to the secret half."""

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"


class Ed25519Identity(Identity):
    """An Ed25519 key, the kind that swarmd generates."""

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
        return self._key.sign(message)

    def encode(self) -> bytes:
        """Return the key file's contents, 68 bytes."""
        return FILE_PREFIX + self._seed + self.public

    def has_valid_key_pair(self) -> bool:
        """Return whether the public half belongs to the secret half. Imports `cryptography`."""
        return self._key.public_key().public_bytes_raw() == self.public


class RsaIdentity(Identity):
    def __init__(self, key: RSAPrivateKey) -> None:
        from cryptography.hazmat.primitives import serialization

        self._key = key
        self._public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.kind = f"rsa-{key.key_size}"
        self.peer_id = rsa_peer_id(self._public)

    def sign(self, message: bytes) -> bytes:
        """Sign by PKCS#1 v1.5 with SHA-256; returns public key || signature || their lengths."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        signature = self._key.sign(message, padding.PKCS1v15(), hashes.SHA256())
        return self._public + signature + RSA_LENGTHS.pack(len(self._public), len(signature))

    def encode(self) -> bytes:
        """Return the key file's contents, in RL Swarm's format."""
        return _wrap_rsa_protobuf(_encode_rsa_private_key(self._key))

    def has_valid_key_pair(self) -> bool:
        """Return True: an RSA key is checked when it is parsed."""
        return True


def peer_id_of(public: bytes) -> str:
    """Return the base58 peer id (12D3Koo...) of an Ed25519 public key."""
    return str(base58.b58encode(PEER_PREFIX + public).decode("ascii"))


@lru_cache(maxsize=4096)
def public_key_of(peer_id: str) -> Ed25519PublicKey:
    """Return the public key inside a peer id. Raises ValueError: it is not the id of an Ed25519 key. An RSA peer's id
    is a hash, from which no key can be read."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = _decode_peer_id(peer_id)
    if not raw.startswith(PEER_PREFIX):
        raise ValueError("not the peer id of an Ed25519 key")
    return Ed25519PublicKey.from_public_bytes(raw[len(PEER_PREFIX) :])


def is_peer_id(text: str) -> bool:
    """Return True for the canonical id of an Ed25519 or RSA peer."""
    try:
        _decode_peer_id(text)
    except ValueError:
        return False
    return True


def key_digest_of(peer_id: str) -> bytes | None:
    """Return the sha256 in an RSA peer's id; None for an Ed25519 peer. Raises ValueError if it is not a peer id."""
    raw = _decode_peer_id(peer_id)
    return raw[len(RSA_PEER_PREFIX) :] if raw.startswith(RSA_PEER_PREFIX) else None


@lru_cache(maxsize=PEERS_KEPT)
def _decode_peer_id(peer_id: str) -> bytes:
    if len(peer_id) > PEER_ID_LENGTH_MAX:
        raise ValueError("too long for a peer id")
    raw = bytes(base58.b58decode(peer_id))
    ed25519 = len(raw) == PEER_BYTES and raw.startswith(PEER_PREFIX)
    rsa = len(raw) == RSA_PEER_BYTES and raw.startswith(RSA_PEER_PREFIX)
    if not ed25519 and not rsa:
        raise ValueError("not the peer id of an Ed25519 or RSA key")
    if base58.b58encode(raw).decode("ascii") != peer_id:  # the decoder ignores trailing white space
        raise ValueError("not as libp2p writes it")
    return raw


def encode_varint(number: int) -> bytes:
    """Encode a non-negative integer as a protobuf varint: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def generate_identity() -> Ed25519Identity:
    """Return a new random key, in memory only."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return Ed25519Identity(key.private_bytes_raw(), public)


def create_identity(path: Path) -> Ed25519Identity:
    """Generate a key and write it durably, mode 0600. Raises IdentityError: the file exists, or cannot be written."""
    identity = generate_identity()
    write_private_file(path, identity.encode())
    return identity


def write_private_file(path: Path, content: bytes) -> None:
    """Write a new file durably, mode 0600. Raises IdentityError: it exists already, or cannot be written."""
    write_secret(path, content, PRIVATE_FILE)


def load_identity(path: Path) -> Identity:
    """Read a key and check that its halves belong together. Raises NotFoundError: there is no such file; IdentityError:
    wrong type, owner or mode, or a damaged file."""
    identity = read_identity(path)
    if not identity.has_valid_key_pair():
        raise IdentityDamaged(f"{path} is damaged: its public key does not belong to its secret", _RESTORE)
    return identity


def read_identity(path: Path) -> Identity:
    """Read a key without checking its halves, a check that needs `cryptography` for an Ed25519 key. Raises as
    `load_identity`."""
    if not os.path.lexists(path):
        raise NotFoundError(
            f"there is no identity {path}",
            f"Bring it back with `swarmd identity restore BACKUP {quote_for_shell(path)}`; a new node's is made with "
            f"`swarmd identity new {quote_for_shell(path)}`",
        )
    return parse_identity(read_secret(Secret(path), KEY_FILE), str(path))


def parse_identity(raw: bytes, origin: str, fix: str = _NAME) -> Identity:
    """Return the key in a key file's contents. Raises IdentityError, which names `origin` and advises `fix`."""
    if raw.startswith(RSA_PREFIX):
        return _parse_rsa(raw, origin)
    if len(raw) != FILE_BYTES or not raw.startswith(FILE_PREFIX):
        raise IdentityDamaged(
            f"{origin} is not an identity: a libp2p key of {FILE_BYTES} bytes (Ed25519) expected", fix
        )
    return Ed25519Identity(raw[4:36], raw[36:68])


def _parse_rsa(raw: bytes, origin: str) -> RsaIdentity:
    """Return the key in a `swarm.pem`; `origin` names the file in errors. Raises IdentityError: it is damaged, not an
    RSA key, or has a size or exponent that peers would not accept."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    try:
        key = serialization.load_der_private_key(_extract_rsa_der(raw), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityDamaged(
            f"{origin} is damaged: it begins as an RSA identity and holds no RSA key", _ANOTHER_COPY
        ) from error
    if not isinstance(key, rsa.RSAPrivateKey) or _wrap_rsa_protobuf(_encode_rsa_private_key(key)) != raw:
        raise IdentityDamaged(
            f"{origin} is damaged: what it holds is not an RSA key in PKCS#1 form alone", _ANOTHER_COPY
        )
    problem = _rsa_problem(key.public_key())
    if problem:
        raise IdentityDamaged(f"{origin} cannot be used: {problem}", "Make another with `swarmd identity new`")
    return RsaIdentity(key)


def _extract_rsa_der(raw: bytes) -> bytes:
    """Return the DER in the protobuf. A wrong length shows when the caller encodes the key again."""
    length_bytes = next((count for count, byte in enumerate(raw[len(RSA_PREFIX) :], 1) if byte < 0x80), 0)
    return raw[len(RSA_PREFIX) + length_bytes :]


def _encode_rsa_private_key(key: RSAPrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, plain)


def _wrap_rsa_protobuf(der: bytes) -> bytes:
    return RSA_PREFIX + encode_varint(len(der)) + der


def _rsa_problem(key: RSAPublicKey) -> str:
    """Return why peers would refuse a key; empty if they would not."""
    if not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
        return f"an RSA key of {key.key_size} bits; {RSA_BITS_MIN} to {RSA_BITS_MAX} are taken"
    if key.public_numbers().e != RSA_EXPONENT:
        return f"an RSA key with another exponent than {RSA_EXPONENT}"
    return ""


def rsa_peer_id(public: bytes) -> str:
    """Return the base58 peer id (Qm...) of an RSA public key, given as DER SubjectPublicKeyInfo."""
    digest = hashlib.sha256(_wrap_rsa_protobuf(public)).digest()
    return str(base58.b58encode(RSA_PEER_PREFIX + digest).decode("ascii"))


def _rsa_signature_size(value: bytes) -> int:
    """Return the size of the RSA signature, with its key, at the end of `value`. Raises ValueError if there is none."""
    if len(value) < RSA_LENGTHS.size:
        raise ValueError("too short for an RSA signature")
    key_bytes, signature_bytes = RSA_LENGTHS.unpack(value[-RSA_LENGTHS.size :])
    length = key_bytes + signature_bytes + RSA_LENGTHS.size
    fits = (
        key_bytes <= RSA_KEY_BYTES_MAX and RSA_BITS_MIN <= 8 * signature_bytes <= RSA_BITS_MAX and length < len(value)
    )
    if not fits:
        raise ValueError("no RSA signature at its end")
    return int(length)


def _verify_rsa(peer_id: str, signature: bytes, message: bytes) -> None:
    """Raise ValueError, UnsupportedAlgorithm or InvalidSignature unless the key in `signature` belongs to `peer_id` and
    signed exactly `message`."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    if len(signature) < RSA_LENGTHS.size:
        raise ValueError("too short for an RSA signature")
    key_bytes, signature_bytes = RSA_LENGTHS.unpack(signature[-RSA_LENGTHS.size :])
    if key_bytes > RSA_KEY_BYTES_MAX or key_bytes + signature_bytes + RSA_LENGTHS.size != len(signature):
        raise ValueError("not an RSA signature")
    key = _load_rsa_public_key(peer_id, signature[:key_bytes])
    key.verify(signature[key_bytes : -RSA_LENGTHS.size], message, padding.PKCS1v15(), hashes.SHA256())


@lru_cache(maxsize=RSA_KEYS_KEPT)
def _load_rsa_public_key(peer_id: str, public: bytes) -> RSAPublicKey:
    """Return the key if it hashes to the peer id. Raises ValueError or UnsupportedAlgorithm."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    if hashlib.sha256(_wrap_rsa_protobuf(public)).digest() != key_digest_of(peer_id):  # before the key is parsed
        raise ValueError("the key is not the peer's")
    key = serialization.load_der_public_key(public)
    if not isinstance(key, rsa.RSAPublicKey) or _rsa_problem(key):
        raise ValueError("not an RSA key that peers take")
    return key


@contextmanager
def lock_identity(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the identity; the kernel releases it when the process ends. Raises IdentityInUse:
    another process on this host holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _lock_holder_pid(os.fstat(descriptor).st_ino)
            who = f"process {holder}" if holder else "another process"
            fix = "Stop the other node; one identity runs one node only"
            raise IdentityInUse(f"the identity {path} is in use by {who}", fix) from error
        yield
    finally:
        os.close(descriptor)


def _lock_holder_pid(inode: int) -> int:
    """Return the pid of the process that holds a flock on the file, 0 if unknown (Linux only)."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and int(fields[5].rsplit(":", 1)[1]) == inode:
                return int(fields[4])
    return 0


def signature_size(peer_id: str, value: bytes) -> int:
    """Return the size in bytes of the owner's signature at the end of a signed `value`, by the owner's kind of key.
    Raises ValueError: there is none, or `peer_id` is not a peer id."""
    if not peer_id.startswith(ED25519_START) and key_digest_of(peer_id) is not None:
        return _rsa_signature_size(value)
    if len(value) <= ED25519_BYTES:
        raise ValueError("too short to be signed")
    return ED25519_BYTES


def verify(peer_id: str, signature: bytes, message: bytes) -> bool:
    """Return True if the peer signed exactly this message; False for anything else."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        if key_digest_of(peer_id) is None:
            public_key_of(peer_id).verify(signature, message)
        else:
            _verify_rsa(peer_id, signature, message)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


class RlSwarmName(msgspec.Struct, frozen=True):
    """A peer's name in RL Swarm, derived from a word list that swarmd does not ship."""

    peer: str
    rl_swarm: str


def write_rl_swarm_name(key: Path, peer: str, rl_swarm: str) -> None:
    """Write the RL Swarm name of a key's peer beside the key. Raises OSError."""
    key.with_name(key.name + SUFFIX).write_bytes(msgspec.json.encode(RlSwarmName(peer, rl_swarm)))


def read_rl_swarm_name(key: Path, peer: str) -> str:
    """Return the peer's name in RL Swarm; empty if none was written beside the key."""
    try:
        called = msgspec.json.decode(read_start(key.with_name(key.name + SUFFIX), NOTE_BYTES_MAX), type=RlSwarmName)
    except (OSError, *DECODE_ERRORS):
        return ""
    sound = called.peer == peer and len(called.rl_swarm) <= NAME_CHARS_MAX and called.rl_swarm.isprintable()
    return called.rl_swarm if sound else ""
