"""Identities with proof of work, the same in every run: finding it takes seconds."""

from functools import cache
from hashlib import sha256

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarmd.dht.identity.identity import Ed25519Identity, Identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, work_bits
from swarmd.dht.wire.records import Payload
from tests.dht.driver import SWARM

NUMBERS = (  # `find_work` of each in the swarm of the tests
    *(25491, 5075, 26888, 4293, 49691, 91807, 46557, 41652, 33401, 27058, 18280, 3509, 86162, 78276, 8629, 141299),
    *(831, 30446, 30009, 25557, 11384, 12570, 145529, 67525, 149546, 29280, 22910, 19857, 50596, 72544, 18061, 9808),
    *(15302, 55146, 147715, 56793, 55021, 48134, 148005, 215553),
)


@cache
def worked() -> dict[Identity, int]:
    """Identity → number that is worth the work."""
    found = {identity_of(sha256(f"worked {index}".encode()).digest()): number for index, number in enumerate(NUMBERS)}
    assert all(work_bits(SWARM, each.peer_id, number) >= WORK_BITS for each, number in found.items())
    return found


def identity_of(seed: bytes) -> Ed25519Identity:
    """The identity of a seed."""
    return Ed25519Identity(seed, Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())


def with_work(identity: Identity, content: Payload) -> Payload:
    """A record's content with the owner's work, where it has done some."""
    number = worked().get(identity)
    return content if number is None else msgspec.structs.replace(content, work=number)
