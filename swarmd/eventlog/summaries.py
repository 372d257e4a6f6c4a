"""What was gathered from a log's whole life, kept beside it, so that the next reader goes on from there.

`summaries/<kind>.sum` beside the segments is a bookmark (`swarmd.eventlog.bookmark`), written by whoever reads much of
a log. One that was made by another version of its kind, or does not fit the log, is made anew.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.state import State
from swarmd.errors import SwarmdError
from swarmd.eventlog.bookmark import Place, Unfit, read_bookmark, unread_bytes, write_bookmark
from swarmd.eventlog.commit import Commit
from swarmd.eventlog.fold import Base, oldest_base
from swarmd.eventlog.reader import LogReader
from swarmd.eventlog.segment import first_seq_of, list_segments

WORTH_BYTES = 8 * 1024 * 1024  # of a log that the next reader is spared; below, nothing is kept

BEGINNING = Place(0, 0, 0)


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

    def version_from(self, first: int) -> str:
        """The version of a bookmark whose reader began at this event."""
        return f"{self.version}, from event {first}"


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


def gather(directory: Path, kind: SummaryKind, gathered: Gathered) -> int:
    """Have `gathered` take a log's commits, from where a summary ends that fits, and keep one for the next time.

    Where none can be written, the next reader takes longer.

    Returns:
        The number of the first event that was read.

    Raises:
        NotFoundError, LogDamaged, LogForeign, OtherVersion: as reading raises them.
    """
    oldest = oldest_base(directory) if kind.needs_state else Base(State(), _first_seq(directory))
    version = kind.version_from(oldest.seq)
    place = _resume(directory, kind.name, version, gathered)
    if place is None:
        gathered.begin(oldest)
    start = oldest.seq if place is None else place.seq
    within = start - (place is not None)  # its segment, so that the next one is compared with it
    with LogReader(directory, within) as reader:
        for commit in reader.read():
            if commit.end_seq > start:
                gathered.take(commit)
        end = reader.place
    with suppress(SwarmdError, OSError):
        if end is not None and unread_bytes(directory, place or BEGINNING) >= WORTH_BYTES:
            write_bookmark(directory, kind.name, version, end, [gathered.keep()])
    return start


def _first_seq(directory: Path) -> int:
    return first_seq_of(segments[0]) if (segments := list_segments(directory)) else 0


def _resume(directory: Path, name: str, version: str, gathered: Gathered) -> Place | None:
    """Go on from the summary that fits. Returns where it ends; None where there is none."""
    with suppress(Unfit, *DECODE_ERRORS, ValueError):
        found = read_bookmark(directory, name, version)
        if found is not None:
            place, (body,) = found
            gathered.resume(body)
            return place
    return None
