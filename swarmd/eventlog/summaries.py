"""What was gathered from a log up to one of its last segments, kept beside it, so that a reader goes on from there.

`summaries/<kind>.sum` beside the segments is a cache: whoever reads a long log writes it, and all may be deleted. One
is used only where it fits the log: made by the same version of its kind, from the same first event on, up to a segment
whose header has the SHA-256 of the segment before, and so of all before that, as it was then.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.state import State
from swarmd.errors import LogDamaged, LogWriteFailed
from swarmd.eventlog.commit import Commit
from swarmd.eventlog.files import make_directory, open_regular, read_regular, write_durably
from swarmd.eventlog.fold import Base, oldest_base
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.segment import SegmentHeader, first_seq_of, list_segments, read_header

MAGIC = b"SWRMSUM1"
SUFFIX = ".sum"
DIGEST_BYTES = 32
WORTH_BYTES = 8 * 1024 * 1024  # of segments that the next reader is spared; below, nothing is kept


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


class Gathered(Protocol):
    """Figures of a log's whole life, gathered commit by commit; implemented by `swarmd.results.history` and others."""

    def begin(self, base: Base) -> None:
        """Begin anew, after this state."""

    def resume(self, kept: bytes | memoryview) -> None:
        """Go on where `keep` was called. Raises msgspec.DecodeError where these are not its bytes."""

    def take(self, commit: Commit) -> None:
        """Take the commit that follows."""

    def keep(self) -> bytes:
        """All that was gathered so far."""


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """What was gathered from events `first` to `seq - 1`; `previous` stands in the header of the segment at `seq`."""

    version: int
    node: str
    first: int
    seq: int
    previous: bytes
    body: memoryview  # of what was read: a long log's is large, and is held once only


def gather(directory: Path, kind: SummaryKind, gathered: Gathered) -> int:
    """Have `gathered` take a log's commits, from where a summary ends that fits, and keep one for the next time.

    Where none can be written, the next reader takes longer.

    Returns:
        The number of the first event that was read.

    Raises:
        NotFoundError, LogDamaged, LogForeign, LogNewer: as reading raises them.
    """
    oldest = oldest_base(directory) if kind.needs_state else Base(State(), _first_seq(directory))
    start = _resume(directory, kind, gathered, oldest)
    border = _border(directory, start)
    for commit in read_commits(directory, start):
        if border is not None and commit.seq >= border.first_seq:
            _write(directory, kind, border, oldest.seq, gathered.keep())
            border = None
        gathered.take(commit)
    return start


def summary_path(directory: Path, kind: SummaryKind) -> Path:
    """Where the summary of a log lies."""
    return directory / "summaries" / f"{kind.name}{SUFFIX}"


def _first_seq(directory: Path) -> int:
    return first_seq_of(segments[0]) if (segments := list_segments(directory)) else 0


def _resume(directory: Path, kind: SummaryKind, gathered: Gathered, oldest: Base) -> int:
    """Begin from the summary that fits, or else from the log's beginning. Returns the event that comes next."""
    summary = _read(summary_path(directory, kind))
    if summary is not None and summary.version == kind.version and summary.first == oldest.seq:
        border = _header(directory, summary.seq)
        if border is not None and (border.previous, border.node) == (summary.previous, summary.node):
            with suppress(*DECODE_ERRORS):
                gathered.resume(summary.body)
                return summary.seq
    gathered.begin(oldest)
    return oldest.seq


def _border(directory: Path, start: int) -> SegmentHeader | None:
    """The header of the last segment, where enough lies between `start` and it."""
    segments = list_segments(directory)
    sealed = [path for path in segments[:-1] if first_seq_of(path) >= start]
    with suppress(OSError):
        if sealed and sum(path.stat().st_size for path in sealed) >= WORTH_BYTES:
            return _header(directory, first_seq_of(segments[-1]))
    return None


def _header(directory: Path, seq: int) -> SegmentHeader | None:
    """The header of the segment that begins at `seq`, if there is one that can be read."""
    for path in list_segments(directory):
        if first_seq_of(path) == seq:
            with suppress(OSError, LogDamaged), open_regular(path) as file:
                return read_header(file, path).header
    return None


def _read(path: Path) -> Summary | None:
    try:
        content = read_regular(path)
    except OSError:
        return None
    head = len(MAGIC) + DIGEST_BYTES
    payload = memoryview(content)[head:]
    if content[: len(MAGIC)] != MAGIC or hashlib.sha256(payload).digest() != content[len(MAGIC) : head]:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=Summary)
    except DECODE_ERRORS:
        return None


def _write(directory: Path, kind: SummaryKind, border: SegmentHeader, first: int, body: bytes) -> None:
    summary = Summary(kind.version, border.node, first, border.first_seq, border.previous, memoryview(body))
    payload = msgspec.msgpack.encode(summary)
    path = summary_path(directory, kind)
    with suppress(LogWriteFailed):
        make_directory(path.parent)
        write_durably(path, MAGIC + hashlib.sha256(payload).digest(), payload)
