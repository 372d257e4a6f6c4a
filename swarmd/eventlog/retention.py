"""Which parts of a log may go when it is over its budget: only what a snapshot stands in for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from swarmd.errors import LogDamaged
from swarmd.eventlog.segment import first_seq_of, list_segments
from swarmd.eventlog.snapshot import list_snapshots, read_snapshot, snapshot_directory, snapshot_seq
from swarmd.files import sync_directory, write_failure

BLOCK_BYTES = 4096  # a file takes whole blocks, so many small segments count for what they cost


def disk_bytes(path: Path) -> int:
    """What a file takes on disk, in whole blocks; 0 when it is gone."""
    try:
        return -(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES
    except FileNotFoundError:
        return 0


def log_bytes(directory: Path) -> int:
    """What segments and snapshots take on disk."""
    return sum(map(disk_bytes, (*list_segments(directory), *list_snapshots(directory))))


def retain(directory: Path, node: str, bytes_max: int) -> list[Path]:
    """Remove the oldest segments until the log fits its budget, as far as snapshots allow.

    A segment may go only when a later one exists and a snapshot that was just read and checked begins at or behind its
    end; all segments before that snapshot go together, so that the log begins where a fold can begin. The log may
    therefore stay over its budget by what was written since the newest snapshot.

    Returns:
        What was removed, the oldest first.

    Raises:
        LogWriteFailed: a removal failed; the log itself is sound.
    """
    try:
        return _retain(directory, node, bytes_max)
    except OSError as error:
        raise write_failure(error, directory, "removal of old segments") from error


def _retain(directory: Path, node: str, bytes_max: int) -> list[Path]:
    excess = log_bytes(directory) - bytes_max
    if excess <= 0:
        return []
    segments = list_segments(directory)
    removed: list[Path] = []
    for path in list_snapshots(directory):
        if excess <= 0:
            break
        covered = [old for old, after in pairwise(segments) if first_seq_of(after) <= snapshot_seq(path)]
        doomed = [old for old in covered if old not in removed]
        if not doomed or not _is_sound(path, node):
            continue
        excess -= sum(map(disk_bytes, doomed))
        removed += doomed
        for old in doomed:
            old.unlink(missing_ok=True)
    sync_directory(directory)
    return removed + _drop_snapshots(directory)


def _is_sound(path: Path, node: str) -> bool:
    try:
        read_snapshot(path, node)
    except LogDamaged:
        return False
    return True


def _drop_snapshots(directory: Path) -> list[Path]:
    """Remove snapshots from before the log's present beginning: nothing is left that follows on them."""
    segments = list_segments(directory)
    first_seq = first_seq_of(segments[0]) if segments else 0
    stale = [path for path in list_snapshots(directory) if snapshot_seq(path) < first_seq]
    for path in stale:
        path.unlink(missing_ok=True)
    if stale:
        sync_directory(snapshot_directory(directory))
    return stale
