"""The event log as its single writer uses it: lock, recover, append, seal, and keep within a size budget.

- Only one process writes: it holds an advisory lock, which ends with the process.
- Opening the log truncates the remains of an interrupted append; any other damage is refused.
- Beyond the budget, old segments are removed only if a snapshot that was just read covers them: a fold can always start
  at the log's beginning.
"""

import fcntl
import os
from collections.abc import Sequence
from io import FileIO
from itertools import pairwise
from pathlib import Path

import msgspec

from swarmd.core.events import Event
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.errors import LogDamaged, LogForeign, LogInUse, LogWriteFailed, NoSpaceLeft
from swarmd.eventlog import segment
from swarmd.eventlog.fold import load_state, peer_id_of_log
from swarmd.eventlog.frame import Commit, classify_tail, decode_commit, digest_file, encode_commit, read_frames
from swarmd.eventlog.snapshot import (
    Snapshot,
    check_no_snapshot_ahead,
    list_snapshots,
    read_snapshot,
    snapshot_directory,
    snapshot_seq,
    write_snapshot,
)
from swarmd.files import TEMPORARY, make_directory, make_write_error, open_regular, sync_directory

LOCK_NAME = "writer.lock"
PID_BYTES_MAX = 32


def acquire_writer_lock(directory: Path) -> int:
    """Lock the log for writing, with this pid in the lock file. Returns the lock's descriptor. Raises LogInUse, which
    names the holder; NoSpaceLeft, LogWriteFailed if the file cannot be written."""
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise make_write_error(error, path, "opening") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise LogInUse(
            f"another process ({f'pid {holder}' if holder else 'pid unknown'}) writes the event log in {directory}",
            "Stop that daemon, or give this one a data directory of its own",
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise make_write_error(error, path, "locking") from error
    return descriptor


BLOCK_BYTES = 4096  # files take whole blocks, which matters for many small segments


def disk_bytes(path: Path) -> int:
    """Disk space of a file in whole blocks; 0 if it is gone."""
    try:
        return -(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES
    except FileNotFoundError:
        return 0


def log_disk_bytes(directory: Path) -> int:
    """Disk space of segments and snapshots together."""
    return sum(map(disk_bytes, (*segment.list_segments(directory), *list_snapshots(directory))))


def remove_old_segments(directory: Path, node: str, bytes_max: int) -> list[Path]:
    """Remove the oldest segments until the log fits its budget, as far as snapshots allow.

    A segment is removed only if a later one exists and a snapshot that was just read and checked covers all of it. All
    segments before that snapshot go together, so that a fold can start where the log begins. The log may exceed its
    budget by what was written since the newest snapshot.

    Returns:
        The removed files, oldest first.

    Raises:
        LogWriteFailed: a removal failed; the log itself is intact.
    """
    try:
        return _remove_old_segments(directory, node, bytes_max)
    except OSError as error:
        raise make_write_error(error, directory, "removal of old segments") from error


def _remove_old_segments(directory: Path, node: str, bytes_max: int) -> list[Path]:
    excess = log_disk_bytes(directory) - bytes_max
    if excess <= 0:
        return []
    segments = segment.list_segments(directory)
    removed: list[Path] = []
    for path in list_snapshots(directory):
        if excess <= 0:
            break
        covered = [old for old, after in pairwise(segments) if segment.first_seq_of(after) <= snapshot_seq(path)]
        doomed = [old for old in covered if old not in removed]
        if not doomed or not _is_snapshot_sound(path, node):
            continue
        excess -= sum(map(disk_bytes, doomed))
        removed += doomed
        for old in doomed:
            old.unlink(missing_ok=True)
    sync_directory(directory)
    return removed + _remove_stale_snapshots(directory)


def _is_snapshot_sound(path: Path, node: str) -> bool:
    try:
        read_snapshot(path, node)
    except LogDamaged:
        return False
    return True


def _remove_stale_snapshots(directory: Path) -> list[Path]:
    """Remove snapshots from before the log's beginning: the events after them are gone."""
    segments = segment.list_segments(directory)
    first_seq = segment.first_seq_of(segments[0]) if segments else 0
    stale = [path for path in list_snapshots(directory) if snapshot_seq(path) < first_seq]
    for path in stale:
        path.unlink(missing_ok=True)
    if stale:
        sync_directory(snapshot_directory(directory))
    return stale


SEGMENT_BYTES = 64 * 1024 * 1024
LOG_BYTES_MAX = 2 * 1024 * 1024 * 1024


class TailCut(msgspec.Struct, frozen=True):
    """The remains of an interrupted append, truncated when the log was opened."""

    path: Path
    offset: int
    size_bytes: int


class LogEnd(msgspec.Struct, frozen=True):
    """The end of the last segment: the next sequence number, and what the header of the next segment needs."""

    next_seq: int = 0
    digest: bytes = b""
    cut: TailCut | None = None


class EventLog:
    """A node's event log, open for writing; not thread-safe. `cut`: what recovery truncated, or None."""

    def __init__(self, directory: Path, node: str, run: str, segment_bytes: int, bytes_max: int, lock: int) -> None:
        self.directory = directory
        self._node = node
        self._run = run
        self._segment_bytes = segment_bytes
        self._bytes_max = bytes_max
        self._lock = lock
        self._segment: segment.SegmentWriter | None = None
        self._broken = False
        end = recover_log_end(directory, node)
        self.next_seq = end.next_seq
        self.cut = end.cut
        self._chain = end.digest
        self._loose_bytes = _bytes_since_snapshot(directory)

    @classmethod
    def open(
        cls, directory: Path, node: str, run: str, segment_bytes: int = SEGMENT_BYTES, bytes_max: int = LOG_BYTES_MAX
    ) -> "EventLog":
        """Lock the log, recover its end, and prepare to append. The first append creates this run's segment.

        Args:
            segment_bytes: a segment is sealed at this size.
            bytes_max: disk budget of the log, see `remove_old_segments`.

        Raises:
            LogInUse: another process writes it.
            LogForeign: it belongs to another node.
            OtherVersion: the last segment was written by a swarmd of another version.
            LogDamaged: the last segment has damage other than one interrupted append.
            NoSpaceLeft, LogWriteFailed: the directory or the lock cannot be written.
        """
        make_directory(directory)
        lock = acquire_writer_lock(directory)
        try:
            return cls(directory, node, run, segment_bytes, bytes_max, lock)
        except BaseException:
            os.close(lock)
            raise

    def append(self, at: float, events: Sequence[Event], commands_digest: bytes) -> Commit:
        """Write events as one durable frame. Raises CommitTooLarge, with nothing written; NoSpaceLeft, with nothing
        written, and later appends may succeed; LogWriteFailed if write or sync failed: all further appends fail."""
        commit = Commit(self.next_seq, at, RULES, tuple(events), commands_digest)
        payload = encode_commit(commit)
        writer = self._segment
        if writer is None or writer.size_bytes >= self._segment_bytes:
            writer = self._begin_segment()
        before = writer.size_bytes
        writer.append(payload)
        self._loose_bytes += writer.size_bytes - before
        self.next_seq = commit.end_seq
        return commit

    @property
    def is_snapshot_due(self) -> bool:
        """Whether to take a snapshot now: a segment's worth of events has none, and a new segment is about to begin."""
        at_boundary = self._segment is None or self._segment.size_bytes >= self._segment_bytes
        return at_boundary and self._loose_bytes >= self._segment_bytes

    def write_snapshot(self, state: State) -> Path:
        """Write `state`, the fold of all events so far, as a snapshot, and remove old segments beyond the budget.

        The next append begins a new segment, so that a fold can start there. Raises NoSpaceLeft, LogWriteFailed if the
        snapshot could not be written; the log stays usable.
        """
        path = write_snapshot(self.directory, Snapshot(self._node, self._run, self.next_seq, RULES, state))
        self._loose_bytes = 0
        self._seal_segment()
        remove_old_segments(self.directory, self._node, self._bytes_max)
        return path

    def close(self) -> None:
        """Release file and lock; nothing needs flushing."""
        if self._segment:
            self._segment.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin_segment(self) -> segment.SegmentWriter:
        if self._lock < 0 or self._broken:
            raise LogWriteFailed(f"the event log in {self.directory} takes no more events", "Start the node again")
        self._seal_segment()
        header = segment.SegmentHeader(self._node, self._run, self.next_seq, self._chain)
        try:
            self._segment = segment.SegmentWriter.create(self.directory, header, self._segment_bytes)
        except LogWriteFailed as error:
            self._broken = not isinstance(error, NoSpaceLeft)
            raise
        remove_old_segments(self.directory, self._node, self._bytes_max)
        return self._segment

    def _seal_segment(self) -> None:
        if self._segment:
            self._chain = self._segment.seal()
            self._segment = None


def recover_log_end(directory: Path, node: str) -> LogEnd:
    """Remove unfinished files, truncate an interrupted append, and find the log's end. Reads only the last segment;
    reading the log checks the others. Raises as `EventLog.open` does."""
    try:
        for path in (*directory.glob(f"*{TEMPORARY}"), *snapshot_directory(directory).glob(f"*{TEMPORARY}")):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise make_write_error(error, directory, "removal of unfinished files") from error
    segments = segment.list_segments(directory)
    if not segments:
        if list_snapshots(directory):
            raise LogDamaged(
                f"the event log in {directory} has snapshots but no segments: its events are lost",
                "Restore the segments from a copy, or move the data directory away and let the node start from nothing",
            )
        return LogEnd()
    try:
        return _recover_segment(segments[-1], node)
    except OSError as error:
        raise segment.unreadable(segments[-1], error) from error


def _recover_segment(path: Path, node: str) -> LogEnd:
    with open_regular(path) as file:
        opening = segment.read_header(file, path)
        if opening.header.node != node:
            raise LogForeign(
                f"the event log in {path.parent} belongs to node {opening.header.node}, this node is {node}",
                "Give this node a data directory of its own, or restore the identity that the log belongs to",
            )
        next_seq, offset = _find_segment_end(file, path, opening)
        tail = classify_tail(file, offset, opening.seed)
        if tail.verdict == "damaged":
            raise segment.damage_error(path, offset, "a broken frame with valid ones after it")
        check_no_snapshot_ahead(path.parent, next_seq)
        _truncate_segment(path, offset)
        cut = TailCut(path, offset, tail.torn_bytes) if tail.torn_bytes else None
        if offset == opening.size_bytes:
            return LogEnd(next_seq, opening.header.previous, cut)  # empty: the next segment replaces it
        return LogEnd(next_seq, digest_file(file), cut)


def _find_segment_end(file: FileIO, path: Path, opening: segment.ParsedHeader) -> tuple[int, int]:
    """Sequence number after the last valid frame of a segment, and the offset at which that frame ends."""
    offset = opening.size_bytes
    last: bytes | None = None
    for end, payload in read_frames(file, offset, opening.seed):
        offset, last = end, payload
    if last is None:
        return opening.header.first_seq, offset
    return decode_commit(last, path).end_seq, offset


def _truncate_segment(path: Path, offset: int) -> None:
    """Truncate a segment to its valid part, and sync it.

    The sync is needed even if nothing is cut: the run that wrote the file may have died before syncing it, and the next
    segment depends on what was read here.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.ftruncate(descriptor, offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise make_write_error(error, path, "recovery") from error


def _bytes_since_snapshot(directory: Path) -> int:
    seqs = [snapshot_seq(path) for path in list_snapshots(directory)]
    newest = max(seqs, default=0)
    return sum(path.stat().st_size for path in segment.list_segments(directory) if segment.first_seq_of(path) >= newest)


RUN = "compaction"  # run id in a compaction's snapshot; no segment has it


class CompactionResult(msgspec.Struct, frozen=True):
    """Disk space before and after, in bytes, and how many segments were removed."""

    before_bytes: int
    after_bytes: int
    segments: int


def compact_event_log(directory: Path, keep_bytes: int = 0) -> CompactionResult:
    """Snapshot the state at the log's end, then remove the oldest segments until at most `keep_bytes` are left.

    The last segment always stays. Removed events cannot be replayed any more.

    Raises:
        LogInUse: the node runs.
        LogDamaged and its subclasses: as reading does; nothing was removed.
        NoSpaceLeft, LogWriteFailed: the snapshot could not be written; nothing was removed.
    """
    before_bytes, segments = log_disk_bytes(directory), len(segment.list_segments(directory))
    with EventLog.open(directory, peer_id_of_log(directory), RUN, bytes_max=keep_bytes) as log:
        log.write_snapshot(load_state(directory)[0])
    return CompactionResult(before_bytes, log_disk_bytes(directory), segments - len(segment.list_segments(directory)))
