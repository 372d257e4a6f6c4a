"""The open end of the log: one segment that takes frames."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from swarmd.errors import LogWriteFailed
from swarmd.eventlog.files import write_all, write_durably, write_failure
from swarmd.eventlog.frame import encode_frame
from swarmd.eventlog.segment import PREFIX, Header, encode_header, segment_name


class SegmentWriter:
    """Appends frames to a segment and keeps its running digest.

    After a write that failed for want of space the segment is cut back and may be appended to again. After any other
    failure, and after every failed sync, what is on disk is unknown: the writer is broken and refuses further appends.
    """

    def __init__(self, path: Path, descriptor: int, head: bytes) -> None:
        self.path = path
        self.size_bytes = len(head)
        self._descriptor = descriptor
        self._seed: int = PREFIX.unpack_from(head)[-1]
        self._digest = hashlib.sha256(head)
        self._broken = ""

    @classmethod
    def create(cls, directory: Path, header: Header) -> SegmentWriter:
        """Put a new segment in place, durably, and open it. Raises NoSpaceLeft or LogWriteFailed."""
        path = directory / segment_name(header.first_seq)
        head = encode_header(header)
        write_durably(path, head)
        try:
            return cls(path, os.open(path, os.O_RDWR), head)
        except OSError as error:
            raise write_failure(error, path, "opening") from error

    @property
    def digest(self) -> bytes:
        """SHA-256 of all that was written."""
        return self._digest.digest()

    def append(self, payload: bytes) -> None:
        """Write one frame and make it durable.

        Raises:
            NoSpaceLeft: the disk is full; nothing of the frame remains, unless the message says otherwise.
            LogWriteFailed: the write or the sync failed, or the file was changed by somebody else.
        """
        frame = encode_frame(payload, self._seed)
        self._check()
        try:
            write_all(self._descriptor, frame, self.size_bytes)
        except OSError as error:
            raise self._withdraw(error) from error
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._broken = "a sync failed"
            raise write_failure(error, self.path, "sync") from error
        self._digest.update(frame)
        self.size_bytes += len(frame)

    def close(self) -> None:
        """Close the file; all that was appended is durable already."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._broken = "it is closed"

    def _check(self) -> None:
        if self._broken:
            raise LogWriteFailed(f"{self.path} takes no more events: {self._broken}", "Start the node again")
        status = os.fstat(self._descriptor)
        if status.st_size != self.size_bytes or not status.st_nlink:
            self._broken = "it was removed or changed by somebody else"
            raise LogWriteFailed(f"{self.path} takes no more events: {self._broken}", "Start the node again")

    def _withdraw(self, error: OSError) -> LogWriteFailed:
        """Cut the torn frame off again; only a full disk leaves the writer usable."""
        failure = write_failure(error, self.path, "writing")
        self._broken = "a write failed"
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self.size_bytes)
            if type(failure) is not LogWriteFailed:
                self._broken = ""
        return failure
