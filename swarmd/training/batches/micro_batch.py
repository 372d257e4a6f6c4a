"""Into how small parts a batch is cut, learnt from running out of memory and kept for the next process."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.files import remove_left
from swarmd.logger import get_logger

PARTS = "parts.json"

log = get_logger(__name__)


class MicroBatchSize(msgspec.Struct, frozen=True):
    """`rows`: completions in one forward and backward pass, of a batch of so many whose parts began with `first`."""

    rows: int
    first: int
    batch: int


def load_rows(directory: Path, first: int, batch: int) -> int:
    """Completions in a pass: what an earlier process of the same settings came to, or `first`."""
    try:
        parts = msgspec.json.decode((directory / PARTS).read_bytes(), type=MicroBatchSize)
    except (OSError, *DECODE_ERRORS):
        return first  # only a shortcut: without it memory runs out once more
    same = (parts.first, parts.batch) == (first, batch) and 0 < parts.rows <= first and batch % parts.rows == 0
    return parts.rows if same else first


def keep_rows(directory: Path, rows: int, first: int, batch: int) -> None:
    """Remember for the next process, whole or not at all: several ranks may do so at once. What cannot be kept costs
    that process a try, and this one nothing.
    """
    fresh = directory / f".{PARTS}.{os.getpid()}"
    try:
        fresh.write_bytes(msgspec.json.encode(MicroBatchSize(rows, first, batch)))
        fresh.replace(directory / PARTS)
    except OSError as error:
        remove_left(fresh)
        log.warning("into how small parts batches are cut is not kept", directory=str(directory), reason=str(error))


def halve_rows(rows: int) -> int:
    """The largest proper divisor that is at most half: what to try when memory ran out. 0 where there is none."""
    return next((count for count in range(rows // 2, 0, -1) if rows % count == 0), 0)
