"""The open end of the log: one segment that takes frames."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from swarmd.errors import LogWriteFailed, NoSpaceLeft
from swarmd.eventlog.frame import RESERVE_BYTES, encode_frame
from swarmd.eventlog.segment import PREFIX, SegmentHeader, encode_header, segment_name
from swarmd.files import write_all, write_durably, write_failure

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
    def create(cls, directory: Path, header: SegmentHeader, reserve_bytes: int = RESERVE_BYTES) -> SegmentWriter:
        """Put a new segment in place, durably, and open it, to be written up to `reserve_bytes` ahead.

        Raises NoSpaceLeft or LogWriteFailed.
        """
        path = directory / segment_name(header.first_seq)
        head = encode_header(header)
        write_durably(path, head)
        try:
            return cls(path, os.open(path, os.O_RDWR), head, min(reserve_bytes, RESERVE_BYTES))
        except OSError as error:
            raise write_failure(error, path, "opening") from error

    def append(self, payload: bytes) -> None:
        """Write one frame and make it durable.

        Raises:
            NoSpaceLeft: the disk is full; nothing of the frame remains, unless the message says otherwise.
            LogWriteFailed: the write or the sync failed, or the file was changed by somebody else.
        """
        frame = encode_frame(payload, self._seed)
        self._check()
        try:
            self._write(frame)
        except OSError as error:
            raise self._withdraw(error) from error
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._broken = "a sync failed"
            raise write_failure(error, self.path, "sync") from error
        self._digest.update(frame)
        self.size_bytes += len(frame)

    def _write(self, frame: bytes) -> None:
        """Write over the zeros ahead; where few are left, write new ones first. Raises OSError."""
        end = self.size_bytes + len(frame)
        if end + self._reserve_bytes // 2 > self._file_bytes:
            self._write_ahead(end)
        write_all(self._descriptor, frame, self.size_bytes)
        self._file_bytes = max(end, self._file_bytes)

    def _write_ahead(self, end: int) -> None:
        """Have zeros behind `end`, where the next frame will; without room for them it goes on without for a while."""
        if self._full_for:
            self._full_for -= 1
            return
        start = max(end, self._file_bytes)
        try:
            write_all(self._descriptor, bytes(end + self._reserve_bytes - start), start)
            self._file_bytes = end + self._reserve_bytes
        except OSError as error:
            if not isinstance(write_failure(error, self.path, "writing"), NoSpaceLeft):
                raise
            self._full_for = FULL_APPENDS
            os.ftruncate(self._descriptor, self._file_bytes)

    def seal(self) -> bytes:
        """Close the segment for good, durably without the zeros. Returns its SHA-256. Raises LogWriteFailed."""
        self._check()
        try:
            self._cut_reserve()
            os.fsync(self._descriptor)
        except OSError as error:
            self._broken = "a sync failed"
            raise write_failure(error, self.path, "sealing") from error
        self.close()
        return self._digest.digest()

    def close(self) -> None:
        """Close the file; all that was appended is durable already. Zeros that stay are cut off by the next life."""
        if self._descriptor < 0:
            return
        if not self._broken:
            with contextlib.suppress(OSError):
                self._cut_reserve()
        os.close(self._descriptor)
        self._descriptor = -1
        self._broken = "it is closed"

    def _cut_reserve(self) -> None:
        """Take the zeros off. Raises OSError."""
        if self._file_bytes > self.size_bytes:
            os.ftruncate(self._descriptor, self.size_bytes)
            self._file_bytes = self.size_bytes

    def _check(self) -> None:
        if self._broken:
            raise LogWriteFailed(f"{self.path} takes no more events: {self._broken}", "Start the node again")
        status = os.fstat(self._descriptor)
        if status.st_size != self._file_bytes or not status.st_nlink:
            self._broken = "it was removed or changed by somebody else"
            raise LogWriteFailed(f"{self.path} takes no more events: {self._broken}", "Start the node again")

    def _withdraw(self, error: OSError) -> LogWriteFailed:
        """Cut the torn frame off again; only a full disk leaves the writer usable."""
        failure = write_failure(error, self.path, "writing")
        self._broken = "a write failed"
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self.size_bytes)
            self._file_bytes = self.size_bytes
            if type(failure) is not LogWriteFailed:
                self._broken = ""
        return failure
