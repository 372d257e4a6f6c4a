"""The fold: turns commits into states and commands, without carrying the commands out."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from swarmd.core import applied
from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import Command
from swarmd.core.state import State
from swarmd.core.step import StateFold
from swarmd.errors import LogDamaged, NotFoundError
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.reader import LogReader, read_commits
from swarmd.eventlog.segment import first_seq_of, list_segments
from swarmd.eventlog.snapshot import check_no_snapshot_ahead, list_snapshots, read_snapshot, snapshot_seq


class FoldBase(msgspec.Struct, frozen=True):
    """A point from which a fold starts: `state` is the fold of all events before `seq`."""

    state: State = State()
    seq: int = 0


def fold_commits(commits: Iterable[Commit], state: State | None = None) -> Iterator[AppliedEvent]:
    """Apply commits event by event, see `swarmd.core.applied.fold_envelopes`. `commits`: without gaps, starting at the
    event after `state`. `state`: by default the empty state before event 0."""
    return applied.fold_envelopes((envelope for commit in commits for envelope in commit.envelopes()), state)


def fold_log(directory: Path, base: FoldBase | None = None) -> Iterator[AppliedEvent]:
    """Apply a log event by event from `base`, by default from `oldest_base`. Raises NotFoundError, LogDamaged,
    LogForeign, OtherVersion as reading does."""
    base = base or oldest_base(directory)
    return fold_commits(commits_from(directory, base), base.state)


def apply_commit(fold: StateFold, commit: Commit) -> tuple[Command, ...]:
    """Apply a commit in place. Returns all commands it causes, in order."""
    commands: tuple[Command, ...] = ()
    for envelope in commit.envelopes():
        commands += fold.apply(envelope)
    return commands


def load_state(directory: Path) -> tuple[State, int]:
    """The state after the whole log, and the sequence number of the next event.

    Starts from the newest snapshot if there is one; earlier segments are not read. Raises NotFoundError, LogDamaged,
    LogForeign, OtherVersion as reading does, or if the log's beginning is gone and there is no snapshot to start from.
    """
    base = newest_base(directory)
    state = StateFold(base.state)
    with LogReader(directory, base.seq) as reader:
        for commit in reader.read():
            apply_commit(state, commit)
        check_no_snapshot_ahead(directory, reader.next_seq)
        return state.state, reader.next_seq


def newest_base(directory: Path) -> FoldBase:
    """The latest point a fold can start from: the newest snapshot, or else `oldest_base`."""
    return next(_snapshot_bases(directory), None) or oldest_base(directory)


def base_upto(directory: Path, seq: int) -> FoldBase:
    """The latest point at or before event `seq` that a fold can start from: a snapshot, or else `oldest_base`."""
    oldest = oldest_base(directory)
    found = (base for base in _snapshot_bases(directory, seq) if base.seq > oldest.seq)
    return next(found, oldest)


def check_not_removed(directory: Path, last: int) -> None:
    """Raise NotFoundError if event `last` was removed with the log's beginning, so that the state after it is lost."""
    first = oldest_base(directory).seq
    if last < first - 1:
        gone = f"event {last} was removed from the log in {directory}, which begins at event {first}"
        raise NotFoundError(gone, f"Ask for the state after event {first - 1}, or for a later one")


def bases_where(directory: Path, holds: Callable[[State], bool]) -> Iterator[FoldBase]:
    """Yield bases to try in turn: the latest snapshot whose state satisfies `holds`, then ever earlier ones.

    The number of snapshots skipped doubles each time, and the last base is `oldest_base`; so folding from each until
    one suffices reads at most three times the log.
    """
    earlier = (base for base in _snapshot_bases(directory) if holds(base.state))
    for place, base in enumerate(earlier, 1):
        if place & (place - 1) == 0:  # 1, 2, 4, 8, ...
            yield base
    yield oldest_base(directory)


def _snapshot_bases(directory: Path, upto: int | None = None) -> Iterator[FoldBase]:
    """Valid snapshots, the latest first, optionally only those at or before event `upto`."""
    node = peer_id_of_log(directory)
    for path in reversed(list_snapshots(directory)):
        if upto is not None and snapshot_seq(path) > upto:
            continue
        try:
            snapshot = read_snapshot(path, node)
        except LogDamaged:
            continue  # skip it: a snapshot is a cache, and `log verify` names the bad one
        yield FoldBase(snapshot.state, snapshot.seq)


def oldest_base(directory: Path, whole: bool = False) -> FoldBase:
    """The earliest point a fold can start from: the empty state before event 0, or the oldest valid snapshot. `whole`:
    require that all events on disk come after it, as for verifying. Raises LogDamaged if the log starts after event 0
    and no valid snapshot covers what was removed."""
    segments = list_segments(directory)
    first_seq = first_seq_of(segments[0]) if segments else 0
    if first_seq == 0:
        return FoldBase()
    node = peer_id_of_log(directory)
    damage: LogDamaged | None = None
    for path in list_snapshots(directory):
        if snapshot_seq(path) < first_seq:
            continue
        try:
            snapshot = read_snapshot(path, node)
        except LogDamaged as error:
            if whole:
                raise
            damage = damage or error
        else:
            return FoldBase(snapshot.state, snapshot.seq)
    raise damage or LogDamaged(
        f"the event log in {directory} begins at seq {first_seq}, and no snapshot holds the state before it",
        "Restore the missing segments or a snapshot from a copy",
    )


def peer_id_of_log(directory: Path) -> str:
    """Peer id of the node that owns the log, from the last segment; empty if there is no segment yet."""
    segments = list_segments(directory)
    if not segments:
        return ""
    with LogReader(directory, first_seq_of(segments[-1])) as reader:
        next(reader.read(), None)
        return reader.node


def commits_from(directory: Path, base: FoldBase) -> Iterator[Commit]:
    return read_commits(directory, base.seq)
