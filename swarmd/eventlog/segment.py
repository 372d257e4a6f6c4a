"""Segments: the files of the log. `<first seq, 20 digits>.seg` is a header and then frames to the end.

Each header holds the SHA-256 of the whole preceding file, so the segments form a chain.
"""

from __future__ import annotations

import re
import struct
from io import FileIO
from pathlib import Path

import msgspec
from crc32c import crc32c

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import LogDamaged, NotFoundError, OtherVersion

MAGIC = b"SWRMLOG1"
FORMAT = 1
SUFFIX = ".seg"
HEADER_BYTES_MAX = 4096
PREFIX = struct.Struct("<8sIII")  # magic, format, length of the rest, CRC32C of all but itself
CHECKED_BYTES = 16  # magic, format and length, the part of the prefix under the CRC

_NAME = re.compile(r"(\d{20})\.seg")


class SegmentHeader(msgspec.Struct, frozen=True):
    """What a segment says about itself, as a msgpack map.

    Attributes:
        node: peer id of the node the log belongs to; the same in all segments.
        run: id of the process life that wrote the segment; every life begins a segment of its own.
        first_seq: sequence number of the first event; also in the file's name.
        previous: SHA-256 of the whole preceding segment, 32 bytes; empty in the first segment of a log.
    """

    node: str
    run: str
    first_seq: int
    previous: bytes


class Opening(msgspec.Struct, frozen=True):
    """A header as read: where the frames begin, and the CRC theirs start from."""

    header: SegmentHeader
    size_bytes: int
    seed: int


def segment_name(first_seq: int) -> str:
    """The file's name."""
    return f"{first_seq:020d}{SUFFIX}"


def first_seq_of(path: Path) -> int:
    """The first sequence number, from the file's name."""
    return int(path.name.removesuffix(SUFFIX))


def list_segments(directory: Path) -> list[Path]:
    """Segments in their order. Raises NotFoundError when the directory does not exist."""
    try:
        return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no event log in {directory}", "Name a node's data directory") from error


def find_log(path: Path) -> Path:
    """The directory of segments, given it or the data directory around it. Raises NotFoundError."""
    inner = path / "events"
    directory = inner if inner.is_dir() else path
    if not list_segments(directory):
        raise NotFoundError(f"there is no event log in {path}", "Name a node's data directory, or its events directory")
    return directory


def encode_header(header: SegmentHeader) -> bytes:
    """The first bytes of a segment."""
    payload = msgspec.msgpack.encode(header)
    assert len(payload) <= HEADER_BYTES_MAX, "ids are short"
    checked = PREFIX.pack(MAGIC, FORMAT, len(payload), 0)[:CHECKED_BYTES]
    seed = crc32c(payload, crc32c(checked))
    return PREFIX.pack(MAGIC, FORMAT, len(payload), seed) + payload


def read_header(file: FileIO, path: Path) -> Opening:
    """Read and check the header of an open segment; `path` names it in errors.

    Raises:
        OtherVersion: it has another format.
        LogDamaged: it is no segment, or its header is damaged or does not fit its name.
    """
    file.seek(0)
    content = file.read(PREFIX.size + HEADER_BYTES_MAX)
    if len(content) < PREFIX.size or content[: len(MAGIC)] != MAGIC:
        raise damaged(path, 0, "it does not begin as a segment of a swarmd event log")
    _, version, length, seed = PREFIX.unpack_from(content)
    if version != FORMAT:
        raise OtherVersion.of(str(path), "log format", version, FORMAT)
    size_bytes = PREFIX.size + length
    payload = content[PREFIX.size : size_bytes]
    if len(payload) != length or crc32c(payload, crc32c(content[:CHECKED_BYTES])) != seed:
        raise damaged(path, 0, "its header is broken")
    try:
        header = msgspec.msgpack.decode(payload, type=SegmentHeader)
    except DECODE_ERRORS as error:
        raise damaged(path, 0, f"its header is none: {error}") from error
    if path.name != segment_name(header.first_seq):
        raise damaged(path, 0, f"its header says that it begins at seq {header.first_seq}")
    return Opening(header, size_bytes, seed)


def damaged(path: Path, offset: int, what: str) -> LogDamaged:
    """The error for a file that cannot be trusted."""
    return LogDamaged(
        f"the event log file {path} is damaged at byte {offset}: {what}",
        "Restore it from a copy, or move the data directory away and let the node begin anew",
    )
