"""Segments: the log's files, each with the frames from one event on.

`segment_name` puts them in order, a header says whose log it is and has the SHA-256 of the segment before. The writer
appends frames to the newest and syncs them; space is written ahead, so that a sync need not wait for the file system's
journal.
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
PREFIX = struct.Struct("<8sIII")  # magic, format, length of the rest, CRC32C of all but itself
CHECKED_BYTES = 16  # magic, format and length, the part of the prefix under the CRC

_NAME = re.compile(r"(\d{20})\.seg")


class LogPosition(msgspec.Struct, frozen=True, array_like=True):
    """The end of a commit: `offset` in the segment that begins with event `segment`; event `seq` comes next."""

    seq: int
    segment: int
    offset: int

    def segment_path(self, directory: Path) -> Path:
        return directory / segment_name(self.segment)


class SegmentHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a segment says about itself, as a msgpack map.

    Attributes:
        node: peer id of the node the log belongs to; the same in all segments, but those from before it was forked.
        run: id of the process life that wrote the segment; every life begins a segment of its own.
        first_seq: sequence number of the first event; also in the file's name.
        previous: SHA-256 of the whole preceding segment, 32 bytes; empty in the first segment of a log.
        forked_from: peer id of the node that the segments before are of, in the first that is of another node.
    """

    node: str
    run: str
    first_seq: int
    previous: bytes
    forked_from: str = ""


class ParsedHeader(msgspec.Struct, frozen=True):
    """A header as read: where the frames begin, and the CRC theirs start from."""

    header: SegmentHeader
    size_bytes: int
    seed: int


def segment_name(first_seq: int) -> str:
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


def find_segment_directory(path: Path) -> Path:
    """The directory of segments, given it or the data directory around it. Raises NotFoundError."""
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
    """The error for a file that cannot be trusted."""
    return LogDamaged(
        f"the event log file {path} is damaged at byte {offset}: {what}",
        "Restore it from a copy, or move the data directory away and let the node start from nothing",
    )


def unreadable(path: Path, error: OSError) -> LogDamaged:
    """The error for a file of the log that the system does not let be read."""
    return LogDamaged(f"{path} cannot be read: {error.strerror}", advise_on_path_error(error, path) or "Check the disk")


FULL_APPENDS = 64  # between two tries to write zeros on a full disk


class SegmentWriter:
    """Appends frames to a segment and keeps its running digest.

    Zeros are written ahead of the frames, so that most appends change neither the file's size nor its blocks: the sync
    then has no metadata to write and takes some three quarters of the time. More follow when half of them are used, so
    that what a node has to say when its disk is full can still be said. Closing the segment cuts them off.

    After a write that failed for want of space the segment is cut back and may be appended to again. After any other
    failure, and after every failed sync, what is on disk is unknown: the writer is broken and refuses further appends.
    """

    def __init__(self, path: Path, descriptor: int, head: bytes, reserve_bytes: int) -> None:
        self.path = path
        self.size_bytes = len(head)
        self._file_bytes = len(head)  # with the zeros
        self._reserve_bytes = reserve_bytes
        self._full_for = 0  # appends until zeros are tried again that the disk had no room for
        self._descriptor = descriptor
        self._seed: int = PREFIX.unpack_from(head)[-1]
        self._digest = hashlib.sha256(head)
        self._broken = ""

    @classmethod
    def create(cls, directory: Path, header: SegmentHeader, reserve_bytes: int = RESERVE_BYTES) -> "SegmentWriter":
        """Put a new segment in place, durably, and open it, to be written up to `reserve_bytes` ahead. Raises
        NoSpaceLeft or LogWriteFailed."""
        path = directory / segment_name(header.first_seq)
        head = encode_header(header)
        write_durably(path, head)
        try:
            return cls(path, os.open(path, os.O_RDWR), head, min(reserve_bytes, RESERVE_BYTES))
        except OSError as error:
            raise make_write_error(error, path, "opening") from error

    def append(self, payload: bytes) -> None:
        """Write one frame and make it durable. Raises NoSpaceLeft, after which nothing of it remains unless the message
        says so; LogWriteFailed: write or sync failed, or somebody else changed the file."""
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
        """Write over the zeros ahead; where few are left, write new ones first. Raises OSError."""
        end = self.size_bytes + len(frame)
        if end + self._reserve_bytes // 2 > self._file_bytes:
            self._write_zeros_ahead(end)
        write_all(self._descriptor, frame, self.size_bytes)
        self._file_bytes = max(end, self._file_bytes)

    def _write_zeros_ahead(self, end: int) -> None:
        """Write zeros behind `end`, the end of the next frame; if there is no room for them, do without for a while."""
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
        """Close the file; all that was appended is durable already. Zeros that stay are cut off by the next life."""
        if self._descriptor < 0:
            return
        if not self._broken:
            with contextlib.suppress(OSError):
                self._truncate_zeros()
        os.close(self._descriptor)
        self._descriptor = -1
        self._broken = "it is closed"

    def _truncate_zeros(self) -> None:
        """Take the zeros off. Raises OSError."""
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
        """Cut the torn frame off again; only a full disk leaves the writer usable."""
        failure = make_write_error(error, self.path, "writing")
        self._broken = "a write failed"
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self.size_bytes)
            self._file_bytes = self.size_bytes
            if type(failure) is not LogWriteFailed:
                self._broken = ""
        return failure
