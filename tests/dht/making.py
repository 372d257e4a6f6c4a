"""Records for tests."""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from swarmd.dht.identity.identity import RSA_PREFIX, Identity, RsaIdentity, generate_identity
from swarmd.dht.wire import names
from swarmd.dht.wire.records import (
    ClockRecord,
    LeaderboardRecord,
    Membership,
    Payload,
    RecordPolicy,
    ReportRecord,
    RolloutsRecord,
    SignedRecord,
    check_record,
    decode_owner,
    sign,
    signed_message,
)
from swarmd.errors import RecordRejected

SWARM = "test-swarm"
DIGEST = "0123456789abcdef" * 4
ALICE, BOB, COORDINATOR = generate_identity(), generate_identity(), generate_identity()
RSA, OTHER_RSA = (RsaIdentity(rsa.generate_private_key(65537, 2048)) for _ in range(2))
POLICY = RecordPolicy(SWARM, COORDINATOR.peer_id)

MEMBERSHIP = Membership(SWARM, "alice", "nonce", 1.7e9, addresses=("/ip4/1.2.3.4/tcp/1",))
CLOCK = ClockRecord(SWARM, 3, 0, 1.7e9, 1.7e9 + 60)
REPORT = ReportRecord(SWARM, 3, 0, 0.5, DIGEST, 1000, 16)
ROLLOUTS = RolloutsRecord(SWARM, 3, 0, DIGEST, 1000, 16, b"body")
LEADERBOARD = LeaderboardRecord(SWARM, 3, DIGEST, 1000)


def signed_by(identity: Identity, content: Payload, ttl_s: float = 60.0) -> SignedRecord:
    """A genuine record."""
    return sign(identity, content, time.time() + ttl_s)


def forged(identity: Identity, content: Any, ttl_s: float = 60.0, key: str = "", payload: bytes = b"") -> SignedRecord:
    """A record with a good signature over what `sign` would never sign."""
    payload = payload or msgpack.packb(content)
    expiration = time.time() + ttl_s
    key_id = names.key_id(key or REPORT.key)
    signature = identity.sign(signed_message(key_id, identity.peer_id, payload, expiration))
    return SignedRecord(identity.peer_id, payload, expiration, signature)


def judge(signed: SignedRecord, key: str = "", policy: RecordPolicy = POLICY, **changes: Any) -> str:
    """The reason why a record is refused, empty when it counts."""
    parts = {
        "key": names.key_id(key or REPORT.key),
        "subkey": msgpack.packb(signed.owner),
        "value": signed.value,
        "expiration": signed.expiration,
    } | changes
    try:
        check_record(policy, owner=decode_owner(parts.pop("subkey")), **parts)
    except RecordRejected as error:
        return error.reason
    return ""


def rsa_file(path: Path, bits: int = 2048, exponent: int = 65537) -> bytes:
    """Write an RSA key as RL Swarm does, of whatever size; the file's contents."""
    der = rsa.generate_private_key(exponent, bits).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return rsa_file_of(path, der)


def rsa_file_of(path: Path, der: bytes) -> bytes:
    """Write what claims to be an RSA key; the file's contents."""
    content = RSA_PREFIX + bytes((len(der) & 0x7F | 0x80, len(der) >> 7)) + der
    path.write_bytes(content)
    path.chmod(0o600)
    return content


PROMISED_BYTES_MAX = 16 << 20  # of room for a few levels of arrays whose elements never come: a thousand take 500 MB


def peak_bytes(read: Callable[[bytes], Any], encoded: bytes) -> int:
    """Most of Python's memory that is in use at once while foreign bytes are refused."""
    tracemalloc.start()
    try:
        with pytest.raises(RecordRejected):
            read(encoded)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Topic:
    """Keeps who listens, so that a test can bring it messages."""

    take: Any = None

    def listen(self, take: Any) -> None:
        self.take = take
