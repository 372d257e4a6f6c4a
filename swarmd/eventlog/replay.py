"""Check and replay a log: is it intact, does it still give the same commands, and how would other charts or settings
have changed it?

- `check_log` reads from end to end; `verify_log` also folds, and compares commands and snapshots.
- `compare_replays` folds twice: as recorded, and with other charts, or with other settings at every start of the node.
"""

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from swarmd.config import ChainConfig, CoordinatorConfig, RoundConfig, WorkersConfig, advise_value
from swarmd.core.applied import StepRule, apply_event
from swarmd.core.commands import Command
from swarmd.core.events import Envelope, Event, NodeStarted, tag_of
from swarmd.core.state import State
from swarmd.core.step import StateFold, step
from swarmd.core.values import ChainSettings, CoordinatorSettings, Settings
from swarmd.errors import ConfigError, ReplayDifference, SwarmdError
from swarmd.eventlog.export import FieldChange, changes_between, format_command
from swarmd.eventlog.fold import apply_commit, commits_from, oldest_base, peer_id_of_log
from swarmd.eventlog.frame import Commit, digest_commands
from swarmd.eventlog.reader import LogReader
from swarmd.eventlog.segment import first_seq_of, list_segments
from swarmd.eventlog.snapshot import check_no_snapshot_ahead, encode_state, list_snapshots, read_snapshot, snapshot_seq


class LogCheckResult(msgspec.Struct, frozen=True):
    """What was checked. `torn_bytes`: size of an interrupted or unfinished append at the end."""

    node: str
    from_seq: int
    next_seq: int
    events: int
    commits: int
    segments: int
    snapshots: int
    torn_bytes: int


def check_log(directory: Path, last_segment: bool = False) -> LogCheckResult:
    """Check frames, sequence numbers, the chain of segments, and snapshots. `last_segment`: read only that one. Raises
    LogDamaged, LogForeign, OtherVersion, naming the file and, for a frame, the offset."""
    segments = list_segments(directory)
    from_seq = first_seq_of(segments[-1 if last_segment else 0]) if segments else 0
    events = commits = 0
    with LogReader(directory, from_seq) as reader:
        for commit in reader.read():
            events += len(commit.events)
            commits += 1
        check_no_snapshot_ahead(directory, reader.next_seq)
        snapshots = list_snapshots(directory)
        for path in snapshots:
            read_snapshot(path, reader.node)
        return LogCheckResult(
            reader.node, from_seq, reader.next_seq, events, commits, reader.segments, len(snapshots), reader.torn_bytes
        )


SECTIONS = {"round": RoundConfig, "workers": WorkersConfig, "coordinator": CoordinatorConfig, "chain": ChainConfig}
NESTED = {"coordinator": ("coordination", CoordinatorSettings), "chain": ("chain", ChainSettings)}  # in Settings


def _logged_config_keys() -> tuple[str, ...]:
    """Configuration keys that the core depends on and the log therefore records."""
    found = []
    for section, kind in SECTIONS.items():
        logged = NESTED[section][1] if section in NESTED else Settings
        found += [f"{section}.{name}" for name in kind.__struct_fields__ if name in logged.__struct_fields__]
    return tuple(found)


KEYS = _logged_config_keys()


class SettingsOverride:
    """Replaces settings recorded in a log, by configuration key. Raises ConfigError for a key that logs do not record,
    or a value that a configuration would not accept."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {key: _check_value(key, value) for key, value in values.items()}

    def override_event(self, event: Event) -> Event:
        """Replace the settings in a `NodeStarted`. Raises ConfigError if the node lacks that table."""
        if not isinstance(event, NodeStarted):
            return event
        return msgspec.structs.replace(event, settings=self._override_settings(event.settings))

    def override_state(self, state: State) -> State:
        """Replace the settings in a state from which a fold starts."""
        if state.settings is None:
            return state
        return msgspec.structs.replace(state, settings=self._override_settings(state.settings))

    def _override_settings(self, settings: Settings) -> Settings:
        for key, value in self._values.items():
            section, _, name = key.partition(".")
            if section not in NESTED:
                settings = msgspec.structs.replace(settings, **{name: value})
                continue
            place = NESTED[section][0]
            inner = getattr(settings, place)
            if inner is None:
                raise ConfigError(f"{key} means nothing in this log: the node had no [{section}] to go by")
            settings = msgspec.structs.replace(settings, **{place: msgspec.structs.replace(inner, **{name: value})})
        return settings


def _check_value(key: str, value: Any) -> Any:
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Those are: {', '.join(KEYS)}"
        raise ConfigError(f"{key} is not a setting that a log holds", hint)
    section, _, name = key.partition(".")
    try:
        return msgspec.convert(value, get_type_hints(SECTIONS[section], include_extras=True)[name])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{key}: {error}", advise_value(f"{name}: {error}", SECTIONS[section])) from error


Watch = Callable[[Iterator[Commit]], Iterator[Commit]]


class VerifyResult(msgspec.Struct, frozen=True):
    """What was verified. `from_seq`: where the fold began, above 0 if older segments were removed. `snapshots`: how
    many were compared with the fold."""

    events: int
    commits: int
    from_seq: int = 0
    snapshots: int = 0


class CommandDifference(msgspec.Struct, frozen=True):
    """The first commit that causes other commands than recorded."""

    seq: int
    events: tuple[Event, ...]
    expected: bytes  # digest in the log
    got: bytes  # digest of `commands`
    commands: tuple[Command, ...]


def verify_log(directory: Path, watch: Watch = iter) -> VerifyResult:
    """Fold the log and compare every commit's commands and every snapshot's state with what is on disk. `watch`: wraps
    the commits to show progress; if it ends early, so does the comparison. Raises ReplayDifference naming the first
    difference; LogDamaged and its subclasses as reading does."""
    base = oldest_base(directory, whole=True)
    snapshots = _snapshot_digests(directory, base.seq)
    found = len(snapshots)
    state, end_seq, events, commits = StateFold(base.state), base.seq, 0, 0
    for commit in watch(commits_from(directory, base)):
        _compare_snapshot(directory, snapshots, commit.seq, state)
        commands = apply_commit(state, commit)
        if (got := digest_commands(commands)) != commit.commands_digest:
            raise CommitDiffers(CommandDifference(commit.seq, commit.events, commit.commands_digest, got, commands))
        events += len(commit.events)
        commits += 1
        end_seq = commit.end_seq
    _compare_snapshot(directory, snapshots, end_seq, state)
    return VerifyResult(events, commits, base.seq, found - len(snapshots))


class CommitDiffers(ReplayDifference):
    """A commit causes other commands than recorded."""

    def __init__(self, difference: CommandDifference) -> None:
        tags = ", ".join(map(tag_of, difference.events))
        issued = "; ".join(map(format_command, difference.commands)) or "none"
        count = len(difference.events)
        span = f"seq {difference.seq}" if count == 1 else f"seqs {difference.seq} to {difference.seq + count - 1}"
        super().__init__(
            f"the replay differs first at {span} ({tags}): the log has commands digest {difference.expected.hex()}, "
            f"the replay gives {difference.got.hex()} for these commands: {issued}",
            "Replay with the swarmd that wrote it; if it is this one, the core was changed",
        )
        self.difference = difference


def _snapshot_digests(directory: Path, after: int) -> dict[int, bytes]:
    """SHA-256 of the state in each snapshot later than `after`, by seq."""
    node = peer_id_of_log(directory)
    paths = [path for path in list_snapshots(directory) if snapshot_seq(path) > after]
    return {snapshot_seq(path): state_digest(read_snapshot(path, node).state) for path in paths}


def state_digest(state: State) -> bytes:
    """SHA-256 of a state, the same for equal states."""
    return hashlib.sha256(encode_state(state)).digest()


def _compare_snapshot(directory: Path, snapshots: dict[int, bytes], seq: int, fold: StateFold) -> None:
    """Compare the state before event `seq` with the snapshot of that seq, if there is one, and drop it from
    `snapshots`."""
    kept = snapshots.pop(seq, None)
    if kept is not None and kept != state_digest(fold.state):
        raise ReplayDifference(
            f"the snapshot of seq {seq} in {directory} is not the state that the events before it give",
            "Delete the snapshot while the log before it is whole",
        )


# --- other charts, other settings ---


class StepOutcome(msgspec.Struct, frozen=True):
    """How one side handled an event; `refused`: the error, if it failed."""

    changes: tuple[FieldChange, ...] = ()
    commands: tuple[Command, ...] = ()
    refused: str = ""


class Divergence(msgspec.Struct, frozen=True):
    """The first event that the two sides handle differently."""

    seq: int
    at: float
    event: Event
    here: StepOutcome
    there: StepOutcome


class ReplayComparison(msgspec.Struct, frozen=True):
    """A log as recorded ("here") against other charts or settings ("there").

    Attributes:
        events: events folded on both sides; fewer than the log has if one side failed.
        first: where the sides diverge; None if nothing differs.
        here, there: number of commands, by kind.
        changes: how the final states differ, here → there; without the overridden settings.
        decisions: events that caused different commands.
    """

    events: int
    first: Divergence | None
    here: dict[str, int]
    there: dict[str, int]
    changes: tuple[FieldChange, ...]
    decisions: int = 0


class _ReplaySide:
    def __init__(self, state: State, step: StepRule) -> None:
        self.state = state
        self.step = step
        self.commands: Counter[str] = Counter()

    def apply(self, envelope: Envelope) -> StepOutcome:
        before = self.state
        try:
            applied = apply_event(before, envelope, self.step)
        except (SwarmdError, AssertionError, LookupError) as error:
            return StepOutcome(refused=f"{type(error).__name__}: {error}")
        self.state, commands = applied.after, applied.commands
        self.commands.update(str(type(command).__struct_config__.tag) for command in commands)
        return (
            StepOutcome((), commands)
            if self.state is before
            else StepOutcome(_changes_but_settings(before, self.state), commands)
        )


NOTHING_SUPPOSED = SettingsOverride({})


def compare_replays(
    directory: Path, other: StepRule = step, watch: Watch = iter, supposed: SettingsOverride = NOTHING_SUPPOSED
) -> ReplayComparison:
    """Fold a log twice over the same events: as recorded, and under other charts or settings. `other`: the core's step,
    possibly with other charts. `supposed`: settings that replace the log's. Raises ConfigError if a setting does not
    apply to this log."""
    base = oldest_base(directory)
    here, there = _ReplaySide(base.state, step), _ReplaySide(supposed.override_state(base.state), other)
    first: Divergence | None = None
    events = decisions = 0
    for commit in watch(commits_from(directory, base)):
        for envelope in commit.envelopes():
            event = supposed.override_event(envelope.event)
            told = envelope if event is envelope.event else msgspec.structs.replace(envelope, event=event)
            ours, theirs = here.apply(envelope), there.apply(told)
            if first is None and ours != theirs:
                first = Divergence(envelope.seq, envelope.at, envelope.event, ours, theirs)
            if theirs.refused or ours.refused:
                return _make_comparison(events, first, here, there, decisions)
            events += 1
            decisions += ours.commands != theirs.commands
    return _make_comparison(events, first, here, there, decisions)


def _changes_but_settings(before: State, after: State) -> tuple[FieldChange, ...]:
    """Differences between two states, without the settings, which differ by design."""
    return tuple(change for change in changes_between(before, after) if change.path.partition(".")[0] != "settings")


def _make_comparison(
    events: int, first: Divergence | None, here: _ReplaySide, there: _ReplaySide, decisions: int
) -> ReplayComparison:
    changes = _changes_but_settings(here.state, there.state)
    return ReplayComparison(events, first, dict(here.commands), dict(there.commands), changes, decisions)
