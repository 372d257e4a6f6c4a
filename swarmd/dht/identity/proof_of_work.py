"""Proof of work of an identity: a number whose hash, with swarm and peer, begins with zero bits.

A node searches for it once per identity and swarm and keeps it on disk, because at 28 bits the search takes minutes;
checking it takes one hash. Among peers without credit those with more work come first, so identities made by the
thousand cost as much as those that they displace (docs/PROTOCOL.md, "Capacity").
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import msgpack  # type: ignore[import-untyped]

from swarmd.errors import LogWriteFailed
from swarmd.files import read_start, write_durably
from swarmd.logger import get_logger

DOMAIN = b"swarmd-work-v1\x00"
WORK_BITS = 16  # what every node does: less than a tenth of a second
WORK_BITS_MAX = 32  # more does not count, so that no identity can buy all capacity for ever
NUMBER_BYTES = 8
NUMBER_MAX = 2**63 - 1
LOOK_NUMBERS = 2**16  # hashes between two checks for cancellation: less than a tenth of a second

NUMBER_CHARS_MAX = 20
TELL_S = 30.0  # interval of log lines about a search
MILLION = 1_000_000

log = get_logger(__name__)


def _start_hash(swarm: str, peer: str) -> "hashlib._Hash":
    return hashlib.sha256(DOMAIN + bytes(msgpack.packb([swarm, peer])))


def work_bits(swarm: str, peer: str, number: int) -> int:
    """Return how many zero bits a number's hash begins with, up to `WORK_BITS_MAX`."""
    if not 0 <= number <= NUMBER_MAX:
        return 0
    begun = _start_hash(swarm, peer)
    begun.update(number.to_bytes(NUMBER_BYTES, "big"))
    return min(WORK_BITS_MAX, 256 - int.from_bytes(begun.digest(), "big").bit_length())


def find_work(swarm: str, peer: str, bits: int, look: Callable[[], None] = lambda: None) -> int:
    """Return the least number that is worth `bits`. Takes 2^bits hashes, about a microsecond each: minutes from 27 bits
    on. `look` is called every `LOOK_NUMBERS` hashes; an error that it raises ends the search."""
    begun, bound = _start_hash(swarm, peer), (1 << (64 - bits)).to_bytes(9, "big")[1:] if bits else b"\xff" * 8
    number = 0
    while True:
        if not number % LOOK_NUMBERS:
            look()
        attempt = begun.copy()
        attempt.update(number.to_bytes(NUMBER_BYTES, "big"))
        if attempt.digest()[:8] < bound or not bits:
            return number
        number += 1


def load_or_find_work(path: Path, swarm: str, peer: str, bits: int, look: Callable[[], None]) -> int:
    """Return a number that is worth `bits`: the one in the file, or a new one, which is then saved.

    A number in the file counts only if its hash is good for this swarm and peer: a torn one, or another peer's, is
    worth nothing. The small default amount of work is not saved. `look` is called now and then during a search; an
    error that it raises ends the search.
    """
    if bits <= WORK_BITS:
        return find_work(swarm, peer, bits, look)
    kept = _read_number(path)
    if work_bits(swarm, peer, kept) >= bits:
        return kept
    number = find_work(swarm, peer, bits, SearchProgressLog(bits, look))
    try:
        write_durably(path, b"%d\n" % number)
    except LogWriteFailed as error:
        log.warning("the work of this identity is not kept, and the next start does it again: %s", error)
    return number


def _read_number(path: Path) -> int:
    """Return the number in the file; -1, which is worth nothing, if there is none."""
    try:
        return int(read_start(path, NUMBER_CHARS_MAX))
    except (OSError, ValueError):
        return -1


class SearchProgressLog:
    """Logs the progress of a search, at each of its checks."""

    def __init__(self, bits: int, look: Callable[[], None]) -> None:
        self._expected = 2**bits // MILLION
        self._look = look
        self._tried = 0
        self._told_at = time.monotonic()
        log.info(
            "this identity does its work, once: about %d million hashes, each million takes a second", self._expected
        )

    def __call__(self) -> None:
        self._look()
        if time.monotonic() - self._told_at >= TELL_S:
            self._told_at = time.monotonic()
            log.info("this identity's work: %d of about %d million hashes", self._tried // MILLION, self._expected)
        self._tried += LOOK_NUMBERS
