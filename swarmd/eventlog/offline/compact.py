"""Making the log of a stopped node smaller than its budget asks for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarmd.eventlog.fold import load, node_of
from swarmd.eventlog.retention import log_bytes
from swarmd.eventlog.segment import list_segments
from swarmd.eventlog.store import EventLog

RUN = "compaction"  # no segment is begun under it


class Compacted(msgspec.Struct, frozen=True):
    """What the log takes on disk, in bytes, and how many segments went."""

    before_bytes: int
    after_bytes: int
    segments: int


def compact(directory: Path, keep_bytes: int = 0) -> Compacted:
    """Snapshot the state at the log's end, then remove the oldest segments until at most `keep_bytes` are left.

    The last segment stays in any case. What is removed cannot be replayed any more.

    Raises:
        LogInUse: the node runs.
        LogDamaged and its kin: as reading raises them; nothing was removed.
        NoSpaceLeft, LogWriteFailed: the snapshot could not be written; nothing was removed.
    """
    before_bytes, segments = log_bytes(directory), len(list_segments(directory))
    with EventLog.open(directory, node_of(directory), RUN, bytes_max=keep_bytes) as log:
        log.write_snapshot(load(directory)[0])
    return Compacted(before_bytes, log_bytes(directory), segments - len(list_segments(directory)))
