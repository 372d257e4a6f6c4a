"""Reading a log from anywhere in it: commits from a known place on, without reading what lies before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from swarmd.errors import LogDamaged, NotFoundError
from swarmd.eventlog.frame import Commit, decode_commit, read_frames
from swarmd.eventlog.segment import first_seq_of, list_segments, read_header
from swarmd.files import regular_descriptor

READ_BYTES = 64 * 1024


class Cursor(NamedTuple):
    """Where the commit of event `seq` begins, or would begin: an offset in a segment."""

    seq: int
    path: Path
    offset: int


class Gone(NotFoundError):
    """The log does not hold these events any more: old segments were removed."""


def begin_of(directory: Path) -> int:
    """The first event that the log still has; 0 for a log without segments."""
    segments = list_segments(directory)
    return first_seq_of(segments[0]) if segments else 0


def commits_at(directory: Path, place: Cursor | None, seq: int) -> Iterator[tuple[Commit, Cursor]]:
    """Commits in order up to the log's present end, each with the place behind it.

    Args:
        directory: of the segments.
        place: where to begin, at or before `seq`; None, or one that is gone: the start of the segment that holds `seq`.
        seq: the first event wanted; earlier ones come first where reading begins before it.

    Raises:
        Gone: the log begins later.
        LogDamaged: a segment cannot be read, or a commit is not the one that follows.
    """
    segments = list_segments(directory)
    firsts = [first_seq_of(path) for path in segments]
    if not segments:
        return
    if place is not None and place.path in segments:
        index, offset, next_seq = segments.index(place.path), place.offset, place.seq
    elif seq < firsts[0]:
        raise Gone(f"the log begins at event {firsts[0]}, event {seq} was removed", "Choose a later one")
    else:
        index = bisect_right(firsts, seq) - 1
        offset, next_seq = 0, firsts[index]
    for number, path in enumerate(segments[index:]):
        for commit, end in _frames_of(path, offset if number == 0 else 0):
            if commit.seq != next_seq:
                raise LogDamaged(f"{path}: event {next_seq} is expected, event {commit.seq} stands there")
            next_seq = commit.end_seq
            yield commit, Cursor(next_seq, path, end)


def _frames_of(path: Path, offset: int) -> Iterator[tuple[Commit, int]]:
    """Valid frames of one segment from `offset` on, 0 being its start, and the offset behind each."""
    try:
        with _Sparing(regular_descriptor(path)) as file:
            opening = read_header(file, path)
            for end, payload in read_frames(file, offset or opening.size_bytes, opening.seed):
                yield decode_commit(payload, path), end
    except FileNotFoundError as error:
        raise Gone(f"{path} was removed while it was read", "Ask again") from error
    except OSError as error:
        raise LogDamaged(f"{path} cannot be read: {error.strerror}") from error


class _Sparing(FileIO):
    """A file of which little is read at once: mostly one event is new, and a segment ends in a megabyte of zeros."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(READ_BYTES if size is None or size < 0 else min(size, READ_BYTES)) or b""
