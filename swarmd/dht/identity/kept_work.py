"""The number that an identity has worked for, found once and kept on disk: at 28 bits finding it takes minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from swarmd.dht.identity.proof_of_work import LOOK_NUMBERS, WORK_BITS, find_work, work_bits
from swarmd.errors import LogWriteFailed
from swarmd.files import read_start, write_durably
from swarmd.logger import get_logger

NUMBER_CHARS_MAX = 20
TELL_S = 30.0  # between two lines about how far a search is
MILLION = 1_000_000

log = get_logger(__name__)


def take_work(path: Path, swarm: str, peer: str, bits: int, look: Callable[[], None]) -> int:
    """A number that is worth so many bits: the one that is kept, else one that is found now, and kept.

    What is kept is believed no further than its hash says, which names swarm and peer: torn, or another's, it is worth
    nothing. The little work that every node does is done anew.

    Args:
        look: called now and then during a search; what it raises ends it.
    """
    if bits <= WORK_BITS:
        return find_work(swarm, peer, bits, look)
    kept = _read(path)
    if work_bits(swarm, peer, kept) >= bits:
        return kept
    number = find_work(swarm, peer, bits, SearchNews(bits, look))
    try:
        write_durably(path, b"%d\n" % number)
    except LogWriteFailed as error:
        log.warning("the work of this identity is not kept, and the next start does it anew: %s", error)
    return number


def _read(path: Path) -> int:
    """The number in the file; -1, which is worth nothing, where there is none."""
    try:
        return int(read_start(path, NUMBER_CHARS_MAX))
    except (OSError, ValueError):
        return -1


class SearchNews:
    """Says how far a search is, at each look of it."""

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
