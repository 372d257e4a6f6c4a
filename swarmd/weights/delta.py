"""Deltas: what has changed between two files of weights, exactly, and small where little has.

Both files are taken as 16-bit words, which bfloat16 values are. A training step moves few of them, and most of those
by one unit in the last place; so a delta holds where words changed, and by how much, block by block:

    "swarmd-delta-1\\0", then for each block of 1 Mi words: u32 little-endian length, and so many bytes of zlib, of
    u32 n; n bytes of gaps; the low bytes of the changes, then the high bytes.

A gap is the number of unchanged words before a changed one; 255 stands for 255 of them and no change. A change is the
difference of the words modulo 2^16, zigzag: 0, -1, 1, -2 … become 0, 1, 2, 3 …. Files of other dtypes travel as
exactly, only larger; both files have the same size and the same header.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from swarmd.errors import RecordRejected

MAGIC = b"swarmd-delta-1\0"
BLOCK_WORDS = 1024 * 1024
SKIP = 255
LEVEL = 9
PLAIN_BYTES_MAX = 4 + BLOCK_WORDS * 3 + BLOCK_WORDS // SKIP + 1  # of a block before zlib
PACKED_BYTES_MAX = PLAIN_BYTES_MAX + PLAIN_BYTES_MAX // 100 + 1024

Words = NDArray[np.uint16]
Octets = NDArray[np.uint8]


def write_delta(base: Path, new: Path, to: Path) -> None:
    """Write what leads from one file to another. Raises ValueError where their sizes differ, OSError."""
    if base.stat().st_size != new.stat().st_size:
        raise ValueError(f"{base.name} and {new.name} have different sizes")
    with base.open("rb") as first, new.open("rb") as second, to.open("wb") as delta:
        delta.write(MAGIC)
        for old, now in zip(_blocks(first), _blocks(second), strict=True):
            packed = zlib.compress(_encode(_words(old), _words(now)), LEVEL)
            delta.write(len(packed).to_bytes(4, "little") + packed)


def apply_delta(base: Path, delta: Path, to: Path) -> None:
    """Write the file that a delta makes of its base; whether it is the one that was meant, its digest says.

    Raises:
        RecordRejected: "malformed" or "oversized": the delta is damaged, or does not belong to this base.
        OSError: a file cannot be read or written.
    """
    with base.open("rb") as first, delta.open("rb") as changes, to.open("wb") as new:
        if changes.read(len(MAGIC)) != MAGIC:
            raise RecordRejected("malformed", "no delta of weights")
        for old in _blocks(first):
            words = _words(old)
            _apply(words, _next_plain(changes))
            new.write(words.tobytes()[: len(old)])
        if changes.read(1):
            raise RecordRejected("malformed", "the delta goes on after the end of its base")


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(2 * BLOCK_WORDS):
        yield block


def _words(block: bytes) -> Words:
    """A block as words that may be changed; an odd last byte becomes one of its own."""
    return np.frombuffer(block + b"\0" * (len(block) % 2), dtype="<u2").copy()


def _encode(old: Words, new: Words) -> bytes:
    places = np.flatnonzero(old != new)
    change = (new[places] - old[places]).view(np.int16)
    folded = ((change << 1) ^ (change >> 15)).view(np.uint16)
    gaps = np.diff(places, prepend=-1) - 1
    skips = gaps // SKIP
    coded: Octets = np.full(int(skips.sum()) + len(places), SKIP, dtype=np.uint8)
    coded[np.cumsum(skips + 1) - 1] = (gaps % SKIP).astype(np.uint8)
    low, high = (folded & 0xFF).astype(np.uint8), (folded >> 8).astype(np.uint8)
    return len(coded).to_bytes(4, "little") + coded.tobytes() + low.tobytes() + high.tobytes()


def _next_plain(changes: BinaryIO) -> bytes:
    """The next block of a delta, unpacked within its bound."""
    length = int.from_bytes(changes.read(4), "little")
    if not 0 < length <= PACKED_BYTES_MAX:
        raise RecordRejected("oversized", f"a block of a delta of {length} bytes")
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(changes.read(length), PLAIN_BYTES_MAX + 1)
    except zlib.error as error:
        raise RecordRejected("malformed", f"a block of a delta is no zlib stream: {error}") from error
    if not stream.eof or stream.unused_data or not 4 <= len(plain) <= PLAIN_BYTES_MAX:
        raise RecordRejected("malformed", "a block of a delta is cut, too long, or followed by more")
    return plain


def _apply(words: Words, plain: bytes) -> None:
    """Change words in place. Raises RecordRejected."""
    count = int.from_bytes(plain[:4], "little")
    coded = np.frombuffer(plain[4 : 4 + count], dtype=np.uint8)
    rest = np.frombuffer(plain[4 + count :], dtype=np.uint8)
    ends = np.flatnonzero(coded != SKIP)
    if len(coded) != count or len(rest) != 2 * len(ends) or (count and ends[-1:].tolist() != [count - 1]):
        raise RecordRejected("malformed", "a block of a delta has other gaps than changes")
    steps = coded.astype(np.int64) + (coded != SKIP)
    places = np.cumsum(steps)[ends] - 1
    if len(places) and places[-1] >= len(words):
        raise RecordRejected("malformed", "a delta changes what its base does not have")
    folded = rest[: len(ends)].astype(np.uint16) | (rest[len(ends) :].astype(np.uint16) << 8)
    words[places] += (folded >> 1) ^ (0 - (folded & 1)).astype(np.uint16)
