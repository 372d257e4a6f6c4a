"""Cached summaries of a log, so that the next reader only reads what was added.

`summaries/<kind>.sum` beside the segments is a bookmark: a position in the log, at the end of a commit, and the summary
of everything before it. It is a cache, written atomically.

- It is used only if the log up to its position is unchanged: the segment there still names the same previous segment by
  SHA-256, which chains to all earlier ones, and the SHA-256 of this segment up to the position is the same.
- A bookmark of another version, or one that does not match the log, is rebuilt.
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
LEFT_S = 3600.0  # a temporary file of this age was left by a killed writer
CHUNK_BYTES = 1024 * 1024


class UnusableBookmark(SwarmdError):
    """A bookmark that cannot be used with this log; the message says why, as the end of a sentence."""


class BookmarkHeader(msgspec.Struct, frozen=True, array_like=True):
    """What precedes the body.

    Attributes:
        version: of the code that made it; other versions rebuild it.
        node: peer id of the log's owner.
        place: the position up to which the log was read.
        previous: as in the header of the segment there.
        read: SHA-256 of that segment up to the position.
        body: SHA-256 of the body.
        sizes: length of each part of the body, in bytes.
    """

    version: str
    node: str
    place: LogPosition
    previous: bytes
    read: bytes
    body: bytes
    sizes: tuple[int, ...]


def bookmark_path(directory: Path, kind: str) -> Path:
    return directory / "summaries" / f"{kind}.sum"


def write_bookmark(directory: Path, kind: str, version: str, place: LogPosition, parts: Sequence[bytes]) -> None:
    """Write a bookmark durably, replacing an earlier one. Raises NoSpaceLeft, LogWriteFailed if it could not be
    written, which only makes the next reader slower; LogDamaged, OtherVersion, OSError if the log cannot be read
    there."""
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
    """Position and parts of a matching bookmark; None if there is none. Raises UnusableBookmark."""
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
    """Bytes of the log after a position, preallocated ones included. Raises NotFoundError, OSError."""
    sizes = {first_seq_of(path): path.stat().st_size for path in list_segments(directory)}
    return sum(size for first, size in sizes.items() if first >= place.segment) - place.offset


def _parse_header(content: bytes) -> tuple[BookmarkHeader, int]:
    """The header, and the offset at which the body begins. Raises UnusableBookmark."""
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
    """Owner of the log, `previous` of the segment at `place`, and the SHA-256 of that segment up to there."""
    path = directory / segment_name(place.segment)
    with open_regular(path) as file:
        header = read_header(file, path).header
        return header.node, header.previous, _digest_upto(file, place.offset)


def _digest_upto(file: FileIO, size_bytes: int) -> bytes:
    """SHA-256 of the first `size_bytes` of a file, or of the whole if it is shorter."""
    digest, offset = hashlib.sha256(), 0
    while chunk := os.pread(file.fileno(), min(CHUNK_BYTES, size_bytes - offset), offset):
        digest.update(chunk)
        offset += len(chunk)
    return digest.digest()


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files that killed writers left for this bookmark."""
    with contextlib.suppress(OSError):
        for left in path.parent.glob(f"{path.name}.*{TEMPORARY}"):
            if time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()


WORTH_BYTES = 8 * 1024 * 1024  # write a bookmark only if it saves the next reader this much of the log

BEGINNING = LogPosition(0, 0, 0)


class SummaryKind(NamedTuple):
    """A kind of summary.

    Attributes:
        name: file name without the suffix.
        version: raise it when the same log gives other bytes.
        needs_state: whether `restart` needs the state before the first event; else reading begins with the first
        segment.
    """

    name: str
    version: int
    needs_state: bool = True

    def bookmark_version(self, first: int) -> str:
        """The version of a bookmark whose reader started at event `first`."""
        return f"{self.version}, from event {first}"


class Summary(Protocol):
    def restart(self, base: FoldBase) -> None:
        """Start over, from the state in `base`."""

    def restore(self, kept: bytes | memoryview) -> None:
        """Continue from what `encode` returned. Raises DecodeError, ValueError or LookupError for other bytes."""

    def encode(self) -> bytes:
        """The summary so far, as bytes for the bookmark."""


class CommitSummary(Summary, Protocol):
    """A summary that is built commit by commit; implemented by `swarmd.results.history` and others."""

    def add_commit(self, commit: Commit) -> None:
        """Add the next commit."""


def update_summary(directory: Path, kind: SummaryKind, gathered: CommitSummary) -> int:
    """Bring `gathered` up to the log's end, starting from a matching bookmark, and write a new one.

    If none can be written, the next reader just takes longer. Returns the number of the first event that was read.
    Raises NotFoundError, LogDamaged, LogForeign, OtherVersion as reading does.
    """
    firsts = [first_seq_of(path) for path in list_segments(directory)]
    oldest = oldest_base(directory) if kind.needs_state else FoldBase(State(), firsts[0] if firsts else 0)
    version = kind.bookmark_version(oldest.seq)
    place = _resume_summary(directory, kind.name, version, gathered)
    if place is None:
        gathered.restart(oldest)
    start = oldest.seq if place is None else place.seq
    within = start - (place is not None)  # reread that segment: the next one's link to it is checked
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
    """Restore from a matching bookmark. Returns its position; None if there is none."""
    with contextlib.suppress(UnusableBookmark, *DECODE_ERRORS, ValueError):
        found = read_bookmark(directory, name, version)
        if found is not None:
            place, (body,) = found
            gathered.restore(body)
            return place
    return None
