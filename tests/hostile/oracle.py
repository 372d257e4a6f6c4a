"""Checks whether a record is genuine, written from docs/PROTOCOL.md without any code of swarmd."""

import hashlib
import math
import struct
from typing import Any

import base58
import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa

FIELDS: dict[str, tuple[str, ...]] = {  # after the swarm's id, those of which the key's name is made
    "membership": ("members",),
    "clock": ("clock",),
    "report": ("reports", "round", "stage"),
    "rollouts": ("rollouts", "round", "stage"),
    "leaderboard": ("leaderboard", "round"),
}
LIFE_MAX_S = 3600.0 + 60.0
BOUNDS = {"round": 2**31 - 1, "stage": 1023, "groups": 256, "size_bytes": 16 * 1024 * 1024, "work": 2**63 - 1}
REALS = ("reward", "joined_at", "opened_at", "deadline_at")


class Forged(Exception):
    """A record that is not what it claims to be; the message says why."""


def check_genuine(
    swarm: str, coordinator: str, key: bytes, owner: str, value: bytes, expiration: float, now: float
) -> dict[str, Any]:
    """The payload's fields of a record under a key. Raises Forged."""
    if not math.isfinite(expiration) or expiration > now + LIFE_MAX_S:
        raise Forged(f"it expires at {expiration}")
    payload = _signed_payload(key, owner, value, expiration)
    fields: dict[str, Any] = msgpack.unpackb(payload, unicode_errors="surrogateescape", strict_map_key=False)
    if fields.get("kind") not in FIELDS or fields.get("swarm") != swarm:
        raise Forged(f"it is of no kind, or of another swarm: {fields}")
    if fields["kind"] in ("clock", "leaderboard") and owner != coordinator:
        raise Forged(f"a {fields['kind']} by {owner}")
    _check_numbers(fields)
    first, *others = FIELDS[fields["kind"]]
    name = "/".join(("swarmd", swarm, first, *(str(fields[field]) for field in others)))
    if hashlib.sha1(msgpack.packb(name)).digest() != key:
        raise Forged(f"it lies under another key than {name}")
    return fields


def _check_numbers(fields: dict[str, Any]) -> None:
    for name, bound in BOUNDS.items():
        number = fields.get(name, 0)
        if type(number) is not int or not 0 <= number <= bound:
            raise Forged(f"{name} is {number!r:.80}")
    for name in REALS:
        if not isinstance(fields.get(name, 0.0), int | float) or not abs(fields.get(name, 0.0)) <= 2**53:
            raise Forged(f"{name} is {fields[name]!r:.80}")


def _signed_payload(key: bytes, owner: str, value: bytes, expiration: float) -> bytes:
    raw = base58.b58decode(owner)
    if raw.startswith(b"\x00\x24\x08\x01\x12\x20") and len(raw) == 38:
        payload, signature = value[:-64], value[-64:]
        public: Any = ed25519.Ed25519PublicKey.from_public_bytes(raw[6:])
        how: tuple[Any, ...] = ()
    else:
        payload, signature, public = _open_rsa(raw, value)
        how = (padding.PKCS1v15(), hashes.SHA256())
    message = b"swarmd-record-v1\x00" + msgpack.packb([key, owner, payload, expiration])
    try:
        public.verify(signature, message, *how)
    except InvalidSignature as error:
        raise Forged(f"it is not signed by {owner}") from error
    return payload


def _open_rsa(raw: bytes, value: bytes) -> tuple[bytes, bytes, rsa.RSAPublicKey]:
    key_bytes, signature_bytes = struct.unpack(">HH", value[-4:])
    ends = len(value) - 4 - signature_bytes
    der, signature = value[ends - key_bytes : ends], value[ends:-4]
    framed = b"\x08\x00\x12" + bytes((len(der) & 0x7F | 0x80, len(der) >> 7)) + der
    if raw != b"\x12\x20" + hashlib.sha256(framed).digest():
        raise Forged("the key is not the owner's")
    public = serialization.load_der_public_key(der)
    assert isinstance(public, rsa.RSAPublicKey)
    return value[: ends - key_bytes], signature, public
