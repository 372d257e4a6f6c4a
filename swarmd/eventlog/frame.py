"""Frames: u32 length, u32 CRC32C, payload; little-endian.

The CRC starts from the CRC of the segment's header, so bytes that were a frame elsewhere (in another segment, or
planted by a peer in a record that an event carries) are no frame here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import FileIO
from typing import Literal, NamedTuple

from crc32c import crc32c

from swarmd.eventlog.commit import COMMIT_BYTES_MAX
from swarmd.eventlog.part_sums import PartSums

HEAD = struct.Struct("<II")
FRAME_BYTES_MAX = HEAD.size + COMMIT_BYTES_MAX
RESERVE_BYTES = 1024 * 1024  # zeros written ahead of the frames, see `swarmd.eventlog.segment_writer`
TAIL_BYTES_MAX = FRAME_BYTES_MAX + RESERVE_BYTES  # the most that one interrupted append can leave behind
CHUNK_BYTES = 1024 * 1024
LOOKED_AT_MAX = 1024 * 1024 * 1024  # bytes gone through for CRCs in a tail before those of parts are put together


class Tail(NamedTuple):
    """What lies behind the last valid frame.

    Attributes:
        verdict: "end": nothing, or zeros written ahead. "whole": a valid frame (it was still being written when reading
            stopped). "torn": the remains of one interrupted append. "damaged": more than that, or a valid frame behind
            the bad bytes.
        torn_bytes: of the interrupted append.
    """

    verdict: Literal["end", "whole", "torn", "damaged"]
    torn_bytes: int = 0


def encode_frame(payload: bytes, seed: int) -> bytes:
    """One frame; `seed` is the CRC of the segment's header."""
    return HEAD.pack(len(payload), crc32c(payload, seed)) + payload


def read_frames(file: FileIO, offset: int, seed: int) -> Iterator[tuple[int, bytes]]:
    """Valid frames from `offset` on, each as (offset behind it, payload).

    Ends at the end of the file or at the first bytes that are no valid frame; `judge_tail` tells the two apart.
    """
    file.seek(offset)
    unpack, head_bytes = HEAD.unpack_from, HEAD.size
    rest = b""
    while chunk := file.read(CHUNK_BYTES):
        buffer = rest + chunk
        last_start = len(buffer) - head_bytes
        position = 0
        while position <= last_start:
            length, check = unpack(buffer, position)
            start = position + head_bytes
            end = start + length
            if end > len(buffer):
                if length > COMMIT_BYTES_MAX:
                    return
                break
            payload = buffer[start:end]
            if crc32c(payload, seed) != check or not length:
                return
            position = end
            yield offset + end, payload
        offset += position
        rest = buffer[position:]


def judge_tail(file: FileIO, offset: int, seed: int) -> Tail:
    """What lies at `offset`, where reading stopped."""
    file.seek(offset)
    rest = _read_upto(file, TAIL_BYTES_MAX + 1)
    if _frame_at(rest, 0, seed):
        return Tail("whole")
    if len(rest) > TAIL_BYTES_MAX:
        return Tail("damaged")
    torn_bytes = len(rest.rstrip(b"\0"))
    if not torn_bytes:
        return Tail("end")
    return Tail("damaged") if _holds_frame(rest, torn_bytes, seed) else Tail("torn", torn_bytes)


def _holds_frame(buffer: bytes, end: int, seed: int) -> bool:
    """Whether a valid frame begins before `end`, but at the very beginning.

    Peers may have written much of it: lengths at every place, each of which reaches far.
    """
    view, size_bytes, looked_at = memoryview(buffer), len(buffer), 0
    sums: PartSums | None = None
    for position in range(1, min(end, size_bytes - HEAD.size)):
        length, check = HEAD.unpack_from(buffer, position)
        start = position + HEAD.size
        if not 0 < length <= size_bytes - start:
            continue
        looked_at += length
        if sums is None and looked_at > LOOKED_AT_MAX:
            sums = PartSums(buffer)
        stop = start + length
        if check == (crc32c(view[start:stop], seed) if sums is None else sums.crc(start, stop, seed)):
            return True
    return False


def _frame_at(buffer: bytes, position: int, seed: int) -> bool:
    if len(buffer) - position < HEAD.size:
        return False
    length, check = HEAD.unpack_from(buffer, position)
    start = position + HEAD.size
    if not 0 < length <= len(buffer) - start:
        return False
    return bool(crc32c(buffer[start : start + length], seed) == check)


def _read_upto(file: FileIO, size_bytes: int) -> bytes:
    """Up to `size_bytes`, however few bytes a single read gives."""
    parts = bytearray()
    while len(parts) < size_bytes and (chunk := file.read(size_bytes - len(parts))):
        parts += chunk
    return bytes(parts)
