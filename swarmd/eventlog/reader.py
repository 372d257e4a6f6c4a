"""Reading a log without a lock: from a data directory, a copy of one, or under a running daemon.

A reader may see the newest commit a moment before its sync; everything the daemon has acted on is durable.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from swarmd.errors import LogDamaged, LogForeign
from swarmd.eventlog import segment
from swarmd.eventlog.frame import Commit, classify_tail, decode_commit, digest_file, read_frames
from swarmd.files import open_regular


class LogReader:
    """Reads a log in order; `read` can be called again for commits added since.

    Args:
        from_seq: the first event wanted; its commit is returned whole. If the log begins later (old segments were
        removed), reading starts at its beginning.

    Attributes:
        next_seq: the next event to read.
        segments: how many were read.
        node: peer id of the node that wrote the open segment; empty before the first was read.
        torn_bytes: size of an interrupted or unfinished append at the end, as of the last `read`.
    """

    def __init__(self, directory: Path, from_seq: int = 0) -> None:
        self.next_seq = from_seq
        self.torn_bytes = 0
        self.segments = 0
        self._directory = directory
        self._from_seq = from_seq
        self._known: list[Path] = segment.list_segments(directory)
        self._path: Path | None = None
        self._file: FileIO | None = None
        self._opening: segment.ParsedHeader
        self._offset = 0
        self._left: segment.LogPosition | None = None  # `position` when this segment was opened
        self.node = ""

    def read(self) -> Iterator[Commit]:
        """Commits from where reading stopped up to the log's present end.

        Raises:
            LogDamaged: a bad frame that is not the end of the last segment, a gap, a broken chain, an unreadable file.
            LogForeign: a segment is of another node than those before it, which is no fork of that one.
            OtherVersion: something was written by a swarmd of another version.
        """
        if not self._ensure_segment_open():
            return
        while True:
            successor = self._next_segment()  # looked up first: if a next segment exists, this one is complete
            yield from self._read_open_segment()
            if successor is None:
                yield from self._read_log_end()
                return
            assert self._file is not None and self._path is not None
            self._open_segment(successor, digest=_check_sealed_segment(self._file, self._path, self._offset))

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def position(self) -> segment.LogPosition | None:
        """The end of the last commit that was read; None before the first."""
        if self._path is None or self._offset == self._opening.size_bytes:
            return self._left
        return segment.LogPosition(self.next_seq, segment.first_seq_of(self._path), self._offset)

    def _ensure_segment_open(self) -> bool:
        """Open the next segment unless one is open. Returns whether one is."""
        if self._path is None:
            self._known = self._known or segment.list_segments(self._directory)
            if not self._known:
                return False
            firsts = [segment.first_seq_of(path) for path in self._known]
            self._open_segment(self._known[max(0, bisect_right(firsts, self._from_seq) - 1)])
        elif self._offset == self._opening.size_bytes:
            self._open_segment(self._path)  # a restarted node replaces an empty segment
        return True

    def _next_segment(self) -> Path | None:
        assert self._path is not None
        if self._path == self._known[-1]:
            self._known = segment.list_segments(self._directory)
        index = bisect_right(self._known, self._path)
        return self._known[index] if index < len(self._known) else None

    def _open_segment(self, path: Path, digest: bytes | None = None) -> None:
        """Start reading a segment; `digest` is the SHA-256 of the previous one, if that was read."""
        try:
            file = open_regular(path)
        except FileNotFoundError as error:
            raise LogDamaged(f"{path} was removed while the log was read", "Read the log again") from error
        except OSError as error:
            raise segment.unreadable(path, error) from error
        self._left = self.position
        self.close()
        self._file = file
        self._opening = segment.read_header(file, path)
        header = self._opening.header
        if self.node and self.node not in (header.node, header.forked_from):
            raise LogForeign(
                f"{path} is of node {header.node}, the segments before it are of node {self.node}",
                "Take the foreign segments out of the directory",
            )
        if digest is not None:
            if header.first_seq != self.next_seq:
                raise segment.damage_error(
                    path, 0, f"it begins at seq {header.first_seq}, the one before ends at {self.next_seq}"
                )
            if header.previous != digest:
                raise segment.damage_error(path, 0, "the segment before it is not the one that it was written after")
        self.segments += path != self._path
        self._path, self.node, self._offset = path, header.node, self._opening.size_bytes
        self.next_seq = header.first_seq

    def _read_open_segment(self) -> Iterator[Commit]:
        """Valid frames of the open segment from the present offset on."""
        assert self._file is not None and self._path is not None
        next_seq, from_seq, path = self.next_seq, self._from_seq, self._path
        try:
            for offset, payload in read_frames(self._file, self._offset, self._opening.seed):
                commit = decode_commit(payload, path)
                if commit.seq != next_seq or not commit.events:
                    raise segment.damage_error(
                        path, self._offset, f"seq {next_seq} is expected, seq {commit.seq} is there"
                    )
                self._offset, self.next_seq = offset, (next_seq := commit.end_seq)
                if next_seq > from_seq:
                    yield commit
        except OSError as error:
            raise segment.unreadable(path, error) from error

    def _read_log_end(self) -> Iterator[Commit]:
        """Read what was completed meanwhile at the log's end, and raise for damage. While a writer truncates and
        overwrites a torn frame the end can look damaged once, so damage counts only if seen twice at the same place."""
        assert self._file is not None and self._path is not None
        suspect = -1
        while (tail := classify_tail(self._file, self._offset, self._opening.seed)).verdict in ("whole", "damaged"):
            if tail.verdict == "damaged" and suspect == self._offset:
                raise segment.damage_error(self._path, self._offset, "a broken frame with valid ones after it")
            suspect = self._offset if tail.verdict == "damaged" else -1
            yield from self._read_open_segment()
        self.torn_bytes = tail.torn_bytes


def _check_sealed_segment(file: FileIO, path: Path, read_bytes: int) -> bytes:
    """Check that nothing follows the part that was read. Returns the segment's SHA-256."""
    try:
        size_bytes = os.fstat(file.fileno()).st_size
        digest = digest_file(file)
    except OSError as error:
        raise segment.unreadable(path, error) from error
    if size_bytes != read_bytes:
        raise segment.damage_error(path, read_bytes, "a broken frame in a sealed segment")
    return digest


def read_commits(directory: Path, from_seq: int = 0) -> Iterator[Commit]:
    """Yield all commits from `from_seq` to the log's present end; arguments and errors as for `LogReader`."""
    with LogReader(directory, from_seq) as reader:
        yield from reader.read()


def follow_commits(directory: Path, from_seq: int, pause: Callable[[], bool]) -> Iterator[Commit]:
    """Like `read_commits`, then yield new commits until `pause`, called at each end of the log, returns False."""
    with LogReader(directory, from_seq) as reader:
        yield from reader.read()
        while pause():
            yield from reader.read()


def end_seq_of_log(directory: Path) -> int:
    """Sequence number after the last event. Reads only the last segment."""
    segments = segment.list_segments(directory)
    if not segments:
        return 0
    with LogReader(directory, segment.first_seq_of(segments[-1])) as reader:
        for _ in reader.read():
            continue
        return reader.next_seq
