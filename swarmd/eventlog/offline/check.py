"""Reading a log from end to end to see whether every byte is as it was written."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarmd.eventlog.reader import LogReader
from swarmd.eventlog.segment import first_seq_of, list_segments
from swarmd.eventlog.snapshot import check_not_ahead, list_snapshots, read_snapshot


class LogCheck(msgspec.Struct, frozen=True):
    """What was checked.

    Attributes:
        torn_bytes: at the end, of an append that was interrupted or is in progress.
    """

    node: str
    from_seq: int
    next_seq: int
    events: int
    commits: int
    segments: int
    snapshots: int
    torn_bytes: int


def check_log(directory: Path) -> LogCheck:
    """Check frames, sequence numbers, the chain of segments, and snapshots.

    Raises:
        LogDamaged, LogForeign, OtherVersion: naming the file and, for a frame, the offset.
    """
    segments = list_segments(directory)
    from_seq = first_seq_of(segments[0]) if segments else 0
    events = commits = 0
    with LogReader(directory) as reader:
        for commit in reader.read():
            events += len(commit.events)
            commits += 1
        check_not_ahead(directory, reader.next_seq)
        snapshots = list_snapshots(directory)
        for path in snapshots:
            read_snapshot(path, reader.node)
        return LogCheck(
            reader.node,
            from_seq,
            reader.next_seq,
            events,
            commits,
            reader.segments,
            len(snapshots),
            reader.torn_bytes,
        )
