"""RSA identities, as RL Swarm makes them (`swarm.pem`): key files, peer ids, and signatures that bring their key.

The file is the libp2p protobuf ``PrivateKey``: bytes 08 00 12, a varint length and the key as PKCS#1 DER. The peer id
is the sha256 multihash of the protobuf ``PublicKey`` (bytes 08 00 12, a varint length and the DER
SubjectPublicKeyInfo), so the public key cannot be read out of it. A signature here is therefore

    SubjectPublicKeyInfo || RSA signature || length of the first (u16, big-endian) || length of the second (u16)

and it is the peer's only when the key in it hashes to the peer id.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache

import base58
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from swarmd.dht.identity.identity import RSA_PEER_PREFIX, RSA_PREFIX, Identity, key_digest_of, varint
from swarmd.errors import IdentityDamaged

BITS_MIN, BITS_MAX = 2048, 4096
EXPONENT = 65537  # the one that everybody uses; large ones make verifying slow
KEY_BYTES_MAX = 600  # a SubjectPublicKeyInfo of 4096 bits has 550
KEYS_KEPT = 1024  # public keys that need not be parsed again
LENGTHS = struct.Struct(">HH")

_FIX = "Take another copy of it, from a backup or from where RL Swarm ran"


class RsaIdentity(Identity):
    """A loaded RSA key.

    Args:
        key: checked as `parse_rsa` does.
    """

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key
        self._public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.kind = f"rsa-{key.key_size}"
        self.peer_id = rsa_peer_id(self._public)

    def sign(self, message: bytes) -> bytes:
        """PKCS#1 v1.5 with SHA-256, between the public key and the lengths."""
        signature = self._key.sign(message, padding.PKCS1v15(), hashes.SHA256())
        return self._public + signature + LENGTHS.pack(len(self._public), len(signature))

    def encode(self) -> bytes:
        """The key file's contents, as RL Swarm wrote them."""
        return _protobuf(_encode_private(self._key))

    def is_whole(self) -> bool:
        """True: an RSA key is proved when it is parsed."""
        return True


def parse_rsa(raw: bytes, origin: str) -> RsaIdentity:
    """The key in a `swarm.pem`; `origin` names the file in errors.

    Raises:
        IdentityError: it is damaged, no RSA key, or of a size or exponent that peers would not take.
    """
    try:
        key = serialization.load_der_private_key(_der_in(raw), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityDamaged(
            f"{origin} is damaged: it begins as an RSA identity and holds no RSA key", _FIX
        ) from error
    if not isinstance(key, rsa.RSAPrivateKey) or _protobuf(_encode_private(key)) != raw:
        raise IdentityDamaged(f"{origin} is damaged: what it holds is not an RSA key in PKCS#1 form alone", _FIX)
    problem = _problem_of(key.public_key())
    if problem:
        raise IdentityDamaged(f"{origin} cannot be used: {problem}")
    return RsaIdentity(key)


def _der_in(raw: bytes) -> bytes:
    """What the protobuf holds; a length that does not fit shows when the outcome is encoded again."""
    length_bytes = next((count for count, byte in enumerate(raw[len(RSA_PREFIX) :], 1) if byte < 0x80), 0)
    return raw[len(RSA_PREFIX) + length_bytes :]


def _encode_private(key: rsa.RSAPrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, plain)


def _protobuf(der: bytes) -> bytes:
    return RSA_PREFIX + varint(len(der)) + der


def _problem_of(key: rsa.RSAPublicKey) -> str:
    """Why peers would not take a key; empty when they do."""
    if not BITS_MIN <= key.key_size <= BITS_MAX:
        return f"an RSA key of {key.key_size} bits; {BITS_MIN} to {BITS_MAX} are taken"
    if key.public_numbers().e != EXPONENT:
        return f"an RSA key with another exponent than {EXPONENT}"
    return ""


def rsa_peer_id(public: bytes) -> str:
    """The base58 peer id (Qm...) of an RSA public key, given as DER SubjectPublicKeyInfo."""
    digest = hashlib.sha256(_protobuf(public)).digest()
    return str(base58.b58encode(RSA_PEER_PREFIX + digest).decode("ascii"))


def rsa_signature_bytes(value: bytes) -> int:
    """How many bytes of the end of `value` are an RSA signature with its key. Raises ValueError when none is there."""
    if len(value) < LENGTHS.size:
        raise ValueError("too short for an RSA signature")
    key_bytes, signature_bytes = LENGTHS.unpack(value[-LENGTHS.size :])
    length = key_bytes + signature_bytes + LENGTHS.size
    fits = key_bytes <= KEY_BYTES_MAX and BITS_MIN <= 8 * signature_bytes <= BITS_MAX and length < len(value)
    if not fits:
        raise ValueError("no RSA signature at its end")
    return int(length)


def verify_rsa(peer_id: str, signature: bytes, message: bytes) -> bool:
    """True when the key in `signature` is the one that `peer_id` is made of, and it signed exactly `message`."""
    try:
        key_bytes, signature_bytes = LENGTHS.unpack(signature[-LENGTHS.size :])
        if key_bytes > KEY_BYTES_MAX or key_bytes + signature_bytes + LENGTHS.size != len(signature):
            return False
        key = _public_key(peer_id, signature[:key_bytes])
        key.verify(signature[key_bytes : -LENGTHS.size], message, padding.PKCS1v15(), hashes.SHA256())
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, struct.error):
        return False
    return True


@lru_cache(maxsize=KEYS_KEPT)
def _public_key(peer_id: str, public: bytes) -> rsa.RSAPublicKey:
    """The key, if the peer id is made of it. Raises ValueError or UnsupportedAlgorithm."""
    if hashlib.sha256(_protobuf(public)).digest() != key_digest_of(peer_id):  # before anything parses it
        raise ValueError("the key is not the peer's")
    key = serialization.load_der_public_key(public)
    if not isinstance(key, rsa.RSAPublicKey) or _problem_of(key):
        raise ValueError("no RSA key that is taken")
    return key
