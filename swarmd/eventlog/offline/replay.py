"""Replay: does the log still give the commands it gave, and what would other charts or settings have done with it?"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import msgspec

from swarmd.core.applied import StepRule, apply
from swarmd.core.commands import Command
from swarmd.core.events import Envelope, Event, tag_of
from swarmd.core.state import State
from swarmd.core.step import StateFold, step
from swarmd.errors import ReplayDifference, SwarmdError
from swarmd.eventlog.commit import Commit
from swarmd.eventlog.digest import digest_commands
from swarmd.eventlog.fold import Base, commits_from, fold_commit, node_of, oldest_base
from swarmd.eventlog.offline.changes import Change, changes_between
from swarmd.eventlog.offline.text import command_line
from swarmd.eventlog.offline.what_if import SettingsOverride
from swarmd.eventlog.snapshot import encode_state, list_snapshots, read_snapshot, snapshot_seq

Watch = Callable[[Iterator[Commit]], Iterator[Commit]]


class Verified(msgspec.Struct, frozen=True):
    """What a verification covered.

    Attributes:
        from_seq: where the fold began; above 0 when older segments were removed.
        snapshots: snapshots that were compared with the fold.
    """

    events: int
    commits: int
    from_seq: int = 0
    snapshots: int = 0


class CommandDifference(msgspec.Struct, frozen=True):
    """The first commit whose commands come out otherwise than they did."""

    seq: int
    events: tuple[Event, ...]
    expected: bytes  # digest in the log
    got: bytes  # digest of `commands`
    commands: tuple[Command, ...]


def verify(directory: Path, watch: Watch = iter, begin: Base | None = None, until: int | None = None) -> Verified:
    """Fold the whole log and compare every commit's commands, and every snapshot's state, with what is on disk.

    Args:
        directory: of the segments.
        watch: wraps the commits, to show progress.
        begin: where to start in place of the log's beginning; that its state is right is for others to see.
        until: the event before which to end, where a commit begins.

    Raises:
        ReplayDifference: naming the first difference.
        LogDamaged and its kin: as reading raises them.
    """
    base = begin or oldest_base(directory, whole=True)
    snapshots = _snapshot_digests(directory, base.seq, until)
    found = len(snapshots)
    state, end_seq, events, commits = StateFold(base.state), base.seq, 0, 0
    for commit in watch(commits_before(commits_from(directory, base), until)):
        _compare_snapshot(directory, snapshots, commit.seq, state)
        commands = fold_commit(state, commit)
        if (got := digest_commands(commands)) != commit.commands_digest:
            raise CommitDiffers(CommandDifference(commit.seq, commit.events, commit.commands_digest, got, commands))
        events += len(commit.events)
        commits += 1
        end_seq = commit.end_seq
    _compare_snapshot(directory, snapshots, end_seq, state)
    return Verified(events, commits, base.seq, found - len(snapshots))


class CommitDiffers(ReplayDifference):
    """A commit's commands come out otherwise than they did."""

    def __init__(self, difference: CommandDifference) -> None:
        tags = ", ".join(map(tag_of, difference.events))
        issued = "; ".join(map(command_line, difference.commands)) or "none"
        count = len(difference.events)
        span = f"seq {difference.seq}" if count == 1 else f"seqs {difference.seq} to {difference.seq + count - 1}"
        super().__init__(
            f"the replay differs first at {span} ({tags}): the log has commands digest {difference.expected.hex()}, "
            f"the replay gives {difference.got.hex()} for these commands: {issued}",
            "Replay with the swarmd that wrote it; if it is this one, the core was changed",
        )
        self.difference = difference


def commits_before(commits: Iterator[Commit], until: int | None) -> Iterator[Commit]:
    """Commits that begin before event `until`, all for None."""
    return commits if until is None else takewhile(lambda commit: commit.seq < until, commits)


def _snapshot_digests(directory: Path, after: int, upto: int | None) -> dict[int, bytes]:
    """SHA-256 of the encoded states of snapshots behind `after`, by seq."""
    node = node_of(directory)
    digests: dict[int, bytes] = {}
    for path in list_snapshots(directory):
        seq = snapshot_seq(path)
        if seq <= after or (upto is not None and seq > upto):
            continue
        digests[seq] = state_digest(read_snapshot(path, node).state)
    return digests


def state_digest(state: State) -> bytes:
    """SHA-256 of a state, the same for equal states."""
    return hashlib.sha256(encode_state(state)).digest()


def _compare_snapshot(directory: Path, snapshots: dict[int, bytes], seq: int, fold: StateFold) -> None:
    """Compare the state before event `seq` with the snapshot of that seq, if there is one, and tick it off."""
    kept = snapshots.pop(seq, None)
    if kept is not None and kept != state_digest(fold.state):
        raise ReplayDifference(
            f"the snapshot of seq {seq} in {directory} is not the state that the events before it give",
            "Delete the snapshot while the log before it is whole",
        )


# --- other charts, other settings ---


class StepOutcome(msgspec.Struct, frozen=True):
    """What one side made of an event; `refused` says why it could not."""

    changes: tuple[Change, ...] = ()
    commands: tuple[Command, ...] = ()
    refused: str = ""


class Divergence(msgspec.Struct, frozen=True):
    """The first event at which the two sides part."""

    seq: int
    at: float
    event: Event
    here: StepOutcome
    there: StepOutcome


class Comparison(msgspec.Struct, frozen=True):
    """A log as it was ("here") and under other charts or settings ("there").

    Attributes:
        events: events folded under both; fewer than the log has when the other side refused one.
        first: where they part; None when nothing differs.
        here, there: commands by kind.
        changes: how the final states differ, here → there; without what was set otherwise.
        decisions: events of which other commands came.
    """

    events: int
    first: Divergence | None
    here: dict[str, int]
    there: dict[str, int]
    changes: tuple[Change, ...]
    decisions: int = 0


class _Side:
    """One of the two folds."""

    def __init__(self, state: State, step: StepRule) -> None:
        self.state = state
        self.step = step
        self.commands: Counter[str] = Counter()

    def apply(self, envelope: Envelope) -> StepOutcome:
        before = self.state
        try:
            applied = apply(before, envelope, self.step)
        except (SwarmdError, AssertionError, LookupError) as error:
            return StepOutcome(refused=f"{type(error).__name__}: {error}")
        self.state, commands = applied.after, applied.commands
        self.commands.update(str(type(command).__struct_config__.tag) for command in commands)
        return (
            StepOutcome((), commands) if self.state is before else StepOutcome(_changes(before, self.state), commands)
        )


NOTHING_SUPPOSED = SettingsOverride({})


def compare(
    directory: Path, other: StepRule = step, watch: Watch = iter, supposed: SettingsOverride = NOTHING_SUPPOSED
) -> Comparison:
    """Fold a log as it was, and under other charts or settings. Both sides are told the same events.

    Args:
        directory: of the segments.
        other: the core's step, with other charts bound where there are any.
        watch: wraps the commits, to show progress.
        supposed: settings in place of the log's.

    Raises:
        ConfigError: a setting means nothing in this log.
    """
    base = oldest_base(directory)
    here, there = _Side(base.state, step), _Side(supposed.state(base.state), other)
    first: Divergence | None = None
    events = decisions = 0
    for commit in watch(commits_from(directory, base)):
        for envelope in commit.envelopes():
            event = supposed.event(envelope.event)
            told = envelope if event is envelope.event else msgspec.structs.replace(envelope, event=event)
            ours, theirs = here.apply(envelope), there.apply(told)
            if first is None and ours != theirs:
                first = Divergence(envelope.seq, envelope.at, envelope.event, ours, theirs)
            if theirs.refused or ours.refused:
                return _comparison(events, first, here, there, decisions)
            events += 1
            decisions += ours.commands != theirs.commands
    return _comparison(events, first, here, there, decisions)


def _changes(before: State, after: State) -> tuple[Change, ...]:
    """What changed but for the settings, in which the two sides differ by themselves."""
    return tuple(change for change in changes_between(before, after) if change.path.partition(".")[0] != "settings")


def _comparison(events: int, first: Divergence | None, here: _Side, there: _Side, decisions: int) -> Comparison:
    changes = _changes(here.state, there.state)
    return Comparison(events, first, dict(here.commands), dict(there.commands), changes, decisions)
