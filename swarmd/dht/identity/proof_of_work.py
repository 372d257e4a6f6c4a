"""Work that an identity has cost: a number whose hash, with swarm and peer, begins with zero bits.

It is found once for an identity in a swarm and checked with one hash. Of peers whom nobody knows yet, those come first
that have worked more; so identities made by the thousand cost what they displace (docs/PROTOCOL.md, "Room").
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgpack  # type: ignore[import-untyped]

DOMAIN = b"swarmd-work-v1\x00"
WORK_BITS = 16  # what every node does: less than a tenth of a second
WORK_BITS_MAX = 32  # more counts no more: nobody can buy all room for ever with one identity
NUMBER_BYTES = 8
NUMBER_MAX = 2**63 - 1
LOOK_NUMBERS = 2**16  # between two looks at whether somebody still waits: less than a tenth of a second


def _begin(swarm: str, peer: str) -> hashlib._Hash:
    return hashlib.sha256(DOMAIN + bytes(msgpack.packb([swarm, peer])))


def work_bits(swarm: str, peer: str, number: int) -> int:
    """How many zero bits a number is worth, up to `WORK_BITS_MAX`."""
    if not 0 <= number <= NUMBER_MAX:
        return 0
    begun = _begin(swarm, peer)
    begun.update(number.to_bytes(NUMBER_BYTES, "big"))
    return min(WORK_BITS_MAX, 256 - int.from_bytes(begun.digest(), "big").bit_length())


def find_work(swarm: str, peer: str, bits: int, look: Callable[[], None] = lambda: None) -> int:
    """The least number that is worth so many bits. Takes 2^bits hashes, about a microsecond each: minutes from 27 on.

    Args:
        look: called every `LOOK_NUMBERS`; what it raises ends the search.
    """
    begun, bound = _begin(swarm, peer), (1 << (64 - bits)).to_bytes(9, "big")[1:] if bits else b"\xff" * 8
    number = 0
    while True:
        if not number % LOOK_NUMBERS:
            look()
        attempt = begun.copy()
        attempt.update(number.to_bytes(NUMBER_BYTES, "big"))
        if attempt.digest()[:8] < bound or not bits:
            return number
        number += 1
