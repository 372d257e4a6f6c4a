"""Summaries of a log, kept beside it, so that the next reader goes on from there.

`summaries/<kind>.sum` beside the segments is a bookmark: a place in the log, the end of any commit, and all that was
made of what lies before. It is a cache, and written whole or not at all.

- It is used only if the log up to its place is the one that was read: the header of the segment there has the SHA-256
  of the segment before, and so of all before that, and what of this segment lies before the place has the SHA-256 that
  it had.
- One that was made by another version of its kind, or does not fit the log, is made again.
"""

import contextlib
import hashlib
import os
import struct
import time
from collections.abc import Sequence
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.state import State
from swarmd.errors import LogDamaged, OtherVersion, SwarmdError
from swarmd.eventlog.fold import FoldBase, oldest_base
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.reader import LogReader
from swarmd.eventlog.segment import LogPosition, first_seq_of, list_segments, read_header, segment_name
from swarmd.files import TEMPORARY, make_directory, open_regular, read_regular, write_durably

MAGIC = b"SWRMMRK1"
LENGTH = struct.Struct("<I")
DIGEST_BYTES = 32
HEAD_BYTES_MAX = 4096
LEFT_S = 3600.0  # a temporary file so old is of a writer that was killed
CHUNK_BYTES = 1024 * 1024


class UnusableBookmark(SwarmdError):
    """A bookmark that cannot be used with this log; the message says why, as the end of a sentence."""


class BookmarkHeader(msgspec.Struct, frozen=True, array_like=True):
    """What stands before the body.

    Attributes:
        version: of who made it; another version makes its own.
        node: whose log it is.
        place: the end of what was read.
        previous: as in the header of the segment there.
        read: SHA-256 of that segment up to the place.
        body: SHA-256 of the body.
        sizes: of the parts that the body is made of, bytes.
    """

    version: str
    node: str
    place: LogPosition
    previous: bytes
    read: bytes
    body: bytes
    sizes: tuple[int, ...]


def bookmark_path(directory: Path, kind: str) -> Path:
    """Where the bookmark of a log lies."""
    return directory / "summaries" / f"{kind}.sum"


def write_bookmark(directory: Path, kind: str, version: str, place: LogPosition, parts: Sequence[bytes]) -> None:
    """Keep it durably, in the place of an earlier one. Raises NoSpaceLeft, LogWriteFailed: it could not be written; the
    next reader takes longer; LogDamaged, OtherVersion, OSError: the log cannot be read at that place."""
    node, previous, read = _log_fingerprint_at(directory, place)
    body = hashlib.sha256()
    for part in parts:
        body.update(part)
    sizes = tuple(map(len, parts))
    head = msgspec.msgpack.encode(BookmarkHeader(version, node, place, previous, read, body.digest(), sizes))
    path = bookmark_path(directory, kind)
    make_directory(path.parent)
    _remove_leftovers(path)
    write_durably(path, MAGIC + LENGTH.pack(len(head)) + hashlib.sha256(head).digest() + head, *parts)


def read_bookmark(directory: Path, kind: str, version: str) -> tuple[LogPosition, list[memoryview]] | None:
    """Place and parts of a bookmark that fits; None if there is none. Raises UnusableBookmark."""
    try:
        content = read_regular(bookmark_path(directory, kind))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnusableBookmark(f"it cannot be read: {error.strerror}") from error
    head, begin = _parse_header(content)
    body = memoryview(content)[begin:]
    if hashlib.sha256(body).digest() != head.body or sum(head.sizes) != len(body):
        raise UnusableBookmark("it is damaged")
    if head.version != version:
        raise UnusableBookmark(f"it is of swarmd {head.version}")
    try:
        fits = _log_fingerprint_at(directory, head.place) == (head.node, head.previous, head.read)
    except (OSError, LogDamaged, OtherVersion):
        fits = False
    if not fits:
        raise UnusableBookmark("it is of another log, or of one that was cut since")
    ends = list(accumulate(head.sizes))
    return head.place, [body[end - size : end] for end, size in zip(ends, head.sizes, strict=True)]


def unread_bytes(directory: Path, place: LogPosition) -> int:
    """How much of a log lies behind a place, with what is written ahead. Raises NotFoundError, OSError."""
    sizes = {first_seq_of(path): path.stat().st_size for path in list_segments(directory)}
    return sum(size for first, size in sizes.items() if first >= place.segment) - place.offset


def _parse_header(content: bytes) -> tuple[BookmarkHeader, int]:
    """The head, and where the body begins. Raises UnusableBookmark."""
    begin = len(MAGIC) + LENGTH.size + DIGEST_BYTES
    if content[: len(MAGIC)] != MAGIC or len(content) < begin:
        raise UnusableBookmark("it is damaged")
    end = begin + min(LENGTH.unpack_from(content, len(MAGIC))[0], HEAD_BYTES_MAX)
    if hashlib.sha256(content[begin:end]).digest() != content[begin - DIGEST_BYTES : begin]:
        raise UnusableBookmark("it is damaged")
    try:
        return msgspec.msgpack.decode(content[begin:end], type=BookmarkHeader), end
    except DECODE_ERRORS as error:
        raise UnusableBookmark("it is of another swarmd") from error


def _log_fingerprint_at(directory: Path, place: LogPosition) -> tuple[str, bytes, bytes]:
    """Whose log it is, `previous` of the segment at a place, and the SHA-256 of that segment up to there."""
    path = directory / segment_name(place.segment)
    with open_regular(path) as file:
        header = read_header(file, path).header
        return header.node, header.previous, _digest_upto(file, place.offset)


def _digest_upto(file: FileIO, size_bytes: int) -> bytes:
    """SHA-256 of the first bytes of a file, or of the whole if it is shorter."""
    digest, offset = hashlib.sha256(), 0
    while chunk := os.pread(file.fileno(), min(CHUNK_BYTES, size_bytes - offset), offset):
        digest.update(chunk)
        offset += len(chunk)
    return digest.digest()


def _remove_leftovers(path: Path) -> None:
    """Remove what writers that were killed have left of this file."""
    with contextlib.suppress(OSError):
        for left in path.parent.glob(f"{path.name}.*{TEMPORARY}"):
            if time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()


WORTH_BYTES = 8 * 1024 * 1024  # of a log that the next reader is spared; below, nothing is kept

BEGINNING = LogPosition(0, 0, 0)


class SummaryKind(NamedTuple):
    """What is gathered.

    Attributes:
        name: of the file.
        version: grows when the same log gives other bytes.
        needs_state: whether `begin` needs the state before the first event; else reading begins with the first segment.
    """

    name: str
    version: int
    needs_state: bool = True

    def bookmark_version(self, first: int) -> str:
        """The version of a bookmark whose reader began at this event."""
        return f"{self.version}, from event {first}"


class Summary(Protocol):
    """What is made of a log, in the making."""

    def restart(self, base: FoldBase) -> None:
        """Start from nothing, after this state."""

    def restore(self, kept: bytes | memoryview) -> None:
        """Go on where `encode` was called. Raises DecodeError, ValueError or LookupError for other bytes."""

    def encode(self) -> bytes:
        """All that was made of it so far."""


class CommitSummary(Summary, Protocol):
    """Figures of a log's whole life, gathered commit by commit; implemented by `swarmd.results.history` and others."""

    def add_commit(self, commit: Commit) -> None:
        """Take the commit that follows."""


def update_summary(directory: Path, kind: SummaryKind, gathered: CommitSummary) -> int:
    """Have `gathered` take a log's commits, from the end of a summary that fits, and keep one for the next time.

    If none can be written, the next reader takes longer. Returns the number of the first event that was read. Raises
    NotFoundError, LogDamaged, LogForeign, OtherVersion: as reading raises them.
    """
    firsts = [first_seq_of(path) for path in list_segments(directory)]
    oldest = oldest_base(directory) if kind.needs_state else FoldBase(State(), firsts[0] if firsts else 0)
    version = kind.bookmark_version(oldest.seq)
    place = _resume_summary(directory, kind.name, version, gathered)
    if place is None:
        gathered.restart(oldest)
    start = oldest.seq if place is None else place.seq
    within = start - (place is not None)  # its segment, so that the next one is compared with it
    with LogReader(directory, within) as reader:
        for commit in reader.read():
            if commit.end_seq > start:
                gathered.add_commit(commit)
        end = reader.position
    with contextlib.suppress(SwarmdError, OSError):
        if end is not None and unread_bytes(directory, place or BEGINNING) >= WORTH_BYTES:
            write_bookmark(directory, kind.name, version, end, [gathered.encode()])
    return start


def _resume_summary(directory: Path, name: str, version: str, gathered: CommitSummary) -> LogPosition | None:
    """Go on from the summary that fits. Returns its place; None if there is none."""
    with contextlib.suppress(UnusableBookmark, *DECODE_ERRORS, ValueError):
        found = read_bookmark(directory, name, version)
        if found is not None:
            place, (body,) = found
            gathered.restore(body)
            return place
    return None
