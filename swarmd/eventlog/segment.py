"""Segments: the log's files, each holding the frames from one event on.

`segment_name` sorts in log order. A header names the log's node and has the SHA-256 of the previous segment. The writer
appends frames to the newest segment and syncs them; it preallocates zeros, so that a sync need not wait for the file
system's journal.
"""

import contextlib
import hashlib
import os
import re
import struct
from io import FileIO
from pathlib import Path

import msgspec
from crc32c import crc32c

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import LogDamaged, LogWriteFailed, NoSpaceLeft, NotFoundError, OtherVersion
from swarmd.eventlog.frame import RESERVE_BYTES, encode_frame
from swarmd.files import advise_on_path_error, make_write_error, write_all, write_durably

MAGIC = b"SWRMLOG1"
FORMAT = 1
SUFFIX = ".seg"
HEADER_BYTES_MAX = 4096
PREFIX = struct.Struct("<8sIII")  # magic, format, length of the rest, CRC-32C of all the rest of the header
CHECKED_BYTES = 16  # magic, format and length: the part of the prefix that the CRC covers

_NAME = re.compile(r"(\d{20})\.seg")


class LogPosition(msgspec.Struct, frozen=True, array_like=True):
    """The end of a commit: `offset` in the segment that begins with event `segment`; event `seq` comes next."""

    seq: int
    segment: int
    offset: int

    def segment_path(self, directory: Path) -> Path:
        return directory / segment_name(self.segment)


class SegmentHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """A segment's header, as a msgpack map.

    Attributes:
        node: peer id of the node that owns the log; the same in all segments, except those from before a fork.
        run: id of the daemon run that wrote the segment; every run starts a new segment.
        first_seq: sequence number of the first event; also in the file's name.
        previous: SHA-256 of the whole preceding segment, 32 bytes; empty in the first segment of a log.
        forked_from: peer id of the parent, in a fork's first own segment.
    """

    node: str
    run: str
    first_seq: int
    previous: bytes
    forked_from: str = ""


class ParsedHeader(msgspec.Struct, frozen=True):
    """A header as read: where the frames begin, and the CRC that seeds theirs."""

    header: SegmentHeader
    size_bytes: int
    seed: int


def segment_name(first_seq: int) -> str:
    return f"{first_seq:020d}{SUFFIX}"


def first_seq_of(path: Path) -> int:
    return int(path.name.removesuffix(SUFFIX))


def list_segments(directory: Path) -> list[Path]:
    """Segments in log order. Raises NotFoundError when the directory does not exist."""
    try:
        return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no event log in {directory}", "Name a node's data directory") from error


def find_segment_directory(path: Path) -> Path:
    """The directory of segments, which `path` is or contains. Raises NotFoundError."""
    inner = path / "events"
    directory = inner if inner.is_dir() else path
    if not list_segments(directory):
        raise NotFoundError(f"there is no event log in {path}", "Name a node's data directory, or its events directory")
    return directory


def encode_header(header: SegmentHeader) -> bytes:
    payload = msgspec.msgpack.encode(header)
    assert len(payload) <= HEADER_BYTES_MAX, "ids are short"
    checked = PREFIX.pack(MAGIC, FORMAT, len(payload), 0)[:CHECKED_BYTES]
    seed = crc32c(payload, crc32c(checked))
    return PREFIX.pack(MAGIC, FORMAT, len(payload), seed) + payload


def read_header(file: FileIO, path: Path) -> ParsedHeader:
    """Read and check the header of an open segment; `path` names it in errors. Raises OtherVersion: it has another
    format; LogDamaged: it is not a segment, or its header is damaged or does not fit its name."""
    file.seek(0)
    content = file.read(PREFIX.size + HEADER_BYTES_MAX)
    if not content.strip(b"\0"):
        raise LogDamaged(
            f"the event log file {path} is empty",
            "Restore it from a copy, or move that file away: the segments before it stay, and what stood in it is lost",
        )
    if len(content) < PREFIX.size or content[: len(MAGIC)] != MAGIC:
        raise damage_error(path, 0, "it does not begin as a segment of a swarmd event log")
    _, version, length, seed = PREFIX.unpack_from(content)
    if version != FORMAT:
        raise OtherVersion.from_numbers(str(path), "log format", version, FORMAT)
    size_bytes = PREFIX.size + length
    payload = content[PREFIX.size : size_bytes]
    if len(payload) != length or crc32c(payload, crc32c(content[:CHECKED_BYTES])) != seed:
        raise damage_error(path, 0, "its header is broken")
    try:
        header = msgspec.msgpack.decode(payload, type=SegmentHeader)
    except DECODE_ERRORS as error:
        raise damage_error(path, 0, f"its header cannot be read: {error}") from error
    if path.name != segment_name(header.first_seq):
        raise damage_error(path, 0, f"its header says that it begins at seq {header.first_seq}")
    return ParsedHeader(header, size_bytes, seed)


def damage_error(path: Path, offset: int, what: str) -> LogDamaged:
    return LogDamaged(
        f"the event log file {path} is damaged at byte {offset}: {what}",
        "Restore it from a copy, or move the data directory away and let the node start from nothing",
    )


def unreadable(path: Path, error: OSError) -> LogDamaged:
    """The error for a log file that the operating system refuses to read."""
    return LogDamaged(f"{path} cannot be read: {error.strerror}", advise_on_path_error(error, path) or "Check the disk")


FULL_APPENDS = 64  # on a full disk, appends between tries to preallocate


class SegmentWriter:
    """Appends frames to a segment and keeps its running digest.

    It preallocates zeros, so that most appends change neither the file's size nor its blocks: the sync then has no
    metadata to write and takes some three quarters of the time. It adds more when half are used, so that a node whose
    disk is full can still log that. Closing the segment truncates them.

    After a write that failed for want of space, the segment is truncated and can be appended to again. After any other
    failure, including a failed sync, what is on disk is unknown: the writer refuses further appends.
    """

    def __init__(self, path: Path, descriptor: int, head: bytes, reserve_bytes: int) -> None:
        self.path = path
        self.size_bytes = len(head)
        self._file_bytes = len(head)  # preallocated zeros included
        self._reserve_bytes = reserve_bytes
        self._full_for = 0  # appends until preallocation is tried again on a full disk
        self._descriptor = descriptor
        self._seed: int = PREFIX.unpack_from(head)[-1]
        self._digest = hashlib.sha256(head)
        self._broken = ""

    @classmethod
    def create(cls, directory: Path, header: SegmentHeader, reserve_bytes: int = RESERVE_BYTES) -> "SegmentWriter":
        """Create a segment durably and open it, preallocating up to `reserve_bytes`. Raises NoSpaceLeft or
        LogWriteFailed."""
        path = directory / segment_name(header.first_seq)
        head = encode_header(header)
        write_durably(path, head)
        try:
            return cls(path, os.open(path, os.O_RDWR), head, min(reserve_bytes, RESERVE_BYTES))
        except OSError as error:
            raise make_write_error(error, path, "opening") from error

    def append(self, payload: bytes) -> None:
        """Write one frame durably. Raises NoSpaceLeft, after which none of it remains unless the message says so;
        LogWriteFailed if write or sync failed, or another process changed the file."""
        frame = encode_frame(payload, self._seed)
        self._check_writable()
        try:
            self._write_frame(frame)
        except OSError as error:
            raise self._undo_write(error) from error
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._broken = "a sync failed"
            raise make_write_error(error, self.path, "sync") from error
        self._digest.update(frame)
        self.size_bytes += len(frame)

    def _write_frame(self, frame: bytes) -> None:
        """Write over the preallocated zeros; if few are left, add new ones first. Raises OSError."""
        end = self.size_bytes + len(frame)
        if end + self._reserve_bytes // 2 > self._file_bytes:
            self._write_zeros_ahead(end)
        write_all(self._descriptor, frame, self.size_bytes)
        self._file_bytes = max(end, self._file_bytes)

    def _write_zeros_ahead(self, end: int) -> None:
        """Preallocate zeros after `end`, the end of the next frame; on a full disk, skip that for the next appends."""
        if self._full_for:
            self._full_for -= 1
            return
        start = max(end, self._file_bytes)
        try:
            write_all(self._descriptor, bytes(end + self._reserve_bytes - start), start)
            self._file_bytes = end + self._reserve_bytes
        except OSError as error:
            if not isinstance(make_write_error(error, self.path, "writing"), NoSpaceLeft):
                raise
            self._full_for = FULL_APPENDS
            os.ftruncate(self._descriptor, self._file_bytes)

    def seal(self) -> bytes:
        """Close the segment for good, durably without the zeros. Returns its SHA-256. Raises LogWriteFailed."""
        self._check_writable()
        try:
            self._truncate_zeros()
            os.fsync(self._descriptor)
        except OSError as error:
            self._broken = "a sync failed"
            raise make_write_error(error, self.path, "sealing") from error
        self.close()
        return self._digest.digest()

    def close(self) -> None:
        """Close the file. All appends are durable already; the next run truncates remaining zeros."""
        if self._descriptor < 0:
            return
        if not self._broken:
            with contextlib.suppress(OSError):
                self._truncate_zeros()
        os.close(self._descriptor)
        self._descriptor = -1
        self._broken = "it is closed"

    def _truncate_zeros(self) -> None:
        """Truncate the preallocated zeros. Raises OSError."""
        if self._file_bytes > self.size_bytes:
            os.ftruncate(self._descriptor, self.size_bytes)
            self._file_bytes = self.size_bytes

    def _check_writable(self) -> None:
        if self._broken:
            raise LogWriteFailed(f"{self.path} takes no more events: {self._broken}", "Start the node again")
        status = os.fstat(self._descriptor)
        if status.st_size != self._file_bytes or not status.st_nlink:
            self._broken = "it was removed or changed by somebody else"
            raise LogWriteFailed(f"{self.path} takes no more events: {self._broken}", "Start the node again")

    def _undo_write(self, error: OSError) -> LogWriteFailed:
        """Truncate the torn frame and make the error; the writer stays usable only if the disk was full."""
        failure = make_write_error(error, self.path, "writing")
        self._broken = "a write failed"
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self.size_bytes)
            self._file_bytes = self.size_bytes
            if type(failure) is not LogWriteFailed:
                self._broken = ""
        return failure
