"""The fold of a log in bounded memory, with keyframes from which any earlier state can be folded quickly.

- Commits are read from a known position on, without reading what lies before.
- Some states are kept, compressed, as keyframes. A keyframe and the events after it give any other state.
- A snapshot of the fold is saved beside the log, so that the next process reads only what came since.
"""

import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from swarmd import __version__
from swarmd.bounds import DECODE_ERRORS
from swarmd.core.applied import AppliedEvent, Projection
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.errors import LogDamaged, NotFoundError, SwarmdError
from swarmd.eventlog.fold import FoldBase, fold_commits, oldest_base
from swarmd.eventlog.frame import Commit, decode_commit, read_frames
from swarmd.eventlog.segment import LogPosition, first_seq_of, list_segments, read_header, unreadable
from swarmd.eventlog.snapshot import decode_state, encode_state
from swarmd.eventlog.summaries import Summary, UnusableBookmark, read_bookmark, write_bookmark
from swarmd.files import open_regular_descriptor
from swarmd.logger import get_logger
from swarmd.observe.story import highest_known_round

READ_BYTES = 64 * 1024


class EventsRemoved(NotFoundError):
    """The log no longer holds these events: old segments were removed."""


def find_first_seq(directory: Path) -> int:
    """Sequence number of the first event that the log still has; 0 for a log without segments."""
    segments = list_segments(directory)
    return first_seq_of(segments[0]) if segments else 0


def read_commits_from(directory: Path, place: LogPosition | None, seq: int) -> Iterator[tuple[Commit, LogPosition]]:
    """Iterate over commits up to the log's present end, each with the position after it.

    Args:
        directory: of the segments.
        place: where to begin, at or before `seq`; if it is None or gone, the start of the segment that holds `seq`.
        seq: the first event wanted; earlier ones come first if reading begins before it.

    Raises:
        EventsRemoved: the log begins later.
        LogDamaged: a segment cannot be read, or a commit does not follow the one before.
    """
    segments = list_segments(directory)
    firsts = [first_seq_of(path) for path in segments]
    if not segments:
        return
    if place is not None and place.segment in firsts:
        index, offset, next_seq = firsts.index(place.segment), place.offset, place.seq
    elif seq < firsts[0]:
        raise EventsRemoved(f"the log begins at event {firsts[0]}, event {seq} was removed", "Choose a later one")
    else:
        index = bisect_right(firsts, seq) - 1
        offset, next_seq = 0, firsts[index]
    for number, path in enumerate(segments[index:]):
        for commit, end in _read_frames(path, offset if number == 0 else 0):
            if commit.seq != next_seq:
                raise LogDamaged(
                    f"{path}: event {next_seq} is expected, event {commit.seq} is there", "See `swarmd log verify`"
                )
            next_seq = commit.end_seq
            yield commit, LogPosition(next_seq, first_seq_of(path), end)


def _read_frames(path: Path, offset: int) -> Iterator[tuple[Commit, int]]:
    """Iterate over the valid frames of one segment from `offset` on (0: its start), each with the offset after it."""
    try:
        with _SmallReadFile(open_regular_descriptor(path)) as file:
            opening = read_header(file, path)
            for end, payload in read_frames(file, offset or opening.size_bytes, opening.seed):
                yield decode_commit(payload, path), end
    except FileNotFoundError as error:
        raise EventsRemoved(f"{path} was removed while it was read", "Ask again") from error
    except OSError as error:
        raise unreadable(path, error) from error


class _SmallReadFile(FileIO):
    """A file read in small pieces: usually only one event is new, and a segment ends in a megabyte of zeros."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(READ_BYTES if size is None or size < 0 else min(size, READ_BYTES)) or b""


KEYFRAME_EVENTS = 256  # between two keyframes; doubled whenever they outgrow KEYFRAME_BYTES_MAX
KEYFRAME_BYTES_MAX = 32 * 1024 * 1024  # of all keyframes together, compressed
STATE_BYTES_MAX = 256 * 1024 * 1024  # of one state, unpacked
WINDOW_EVENTS = 64  # folded events cached around one that was asked for
WINDOWS_KEPT = 16


class LogFollower(Projection, Summary, Protocol):
    """A projection of a log that is saved beside it, and restarts if the saved state does not fit the log."""


class Keyframe(msgspec.Struct, array_like=True, gc=False):
    """A saved state from which to fold.

    Attributes:
        seq: the first event to apply to the state.
        place: where that event's commit begins; None if unknown.
        packed: the state, compressed.
    """

    seq: int
    place: LogPosition | None
    packed: bytes

    @classmethod
    def pack(cls, seq: int, place: LogPosition | None, state: State) -> "Keyframe":
        return cls(seq, place, zlib.compress(encode_state(state), 1))

    def unpack_state(self) -> State:
        """Unpack the state. Raises LogDamaged if it cannot be unpacked."""
        stream = zlib.decompressobj()
        try:
            plain = stream.decompress(self.packed, STATE_BYTES_MAX)
            if not stream.eof:
                raise zlib.error(f"it is cut off, or has more than {STATE_BYTES_MAX} bytes")
            return decode_state(plain)
        except (zlib.error, *DECODE_ERRORS) as error:
            what = f"a state that was kept, of event {self.seq}, cannot be read: {error}"
            raise LogDamaged(what, "Remove summaries/page.sum") from error


class HistorySnapshot(msgspec.Struct, array_like=True):
    """The saved form of a `LogHistory`, without its keyframes.

    Attributes:
        state: encoded, before event `next_seq`.
        at: time of the last event before `next_seq`.
        distance: events between two keyframes.
    """

    state: bytes
    next_seq: int
    at: float
    distance: int


class Keyframes:
    """Keeps one state every `distance` events."""

    def __init__(self, kept: Sequence[Keyframe] = (), distance: int = 0) -> None:
        self.kept = list(kept)
        self.distance = distance or KEYFRAME_EVENTS
        self._due_seq = kept[-1].seq + distance if kept else 0

    def is_due(self, seq: int) -> bool:
        """Whether the state before this event should become a keyframe."""
        return seq >= self._due_seq

    def add_keyframe(self, seq: int, place: LogPosition | None, state: State) -> None:
        """Add a keyframe; at the size limit drop every second one and double the distance."""
        self.kept.append(Keyframe.pack(seq, place, state))
        if sum(len(each.packed) for each in self.kept) > KEYFRAME_BYTES_MAX and len(self.kept) > 2:
            self.distance *= 2
            self.kept = self.kept[::2]
        self._due_seq = seq + self.distance

    def find_before(self, seq: int) -> Keyframe | None:
        """The latest keyframe at or before an event."""
        index = bisect_right(self.kept, seq, key=lambda keyframe: keyframe.seq) - 1
        return self.kept[index] if index >= 0 else None

    def drop_before(self, seq: int, state: State) -> None:
        """Drop keyframes before an event; `state` is the one before that event."""
        later = [keyframe for keyframe in self.kept if keyframe.seq > seq]
        self.kept = [Keyframe.pack(seq, None, state), *later]


class LogHistory:
    """The fold so far, and access to all earlier events. One thread writes; any thread reads.

    Attributes:
        state: after the last event applied.
        next_seq: sequence number of the next event.
        at: time of the last event, POSIX seconds; 0 before any.
        generation: number of restarts; results from an earlier generation may be from another log.
    """

    def __init__(self, directory: Path, followers: Sequence[LogFollower] = ()) -> None:
        self.directory = directory
        self.lock = threading.RLock()
        self.state = State()
        self.next_seq = 0
        self.at = 0.0
        self.generation = 0
        self._followers = tuple(followers)
        self._place: LogPosition | None = None
        self._keyframes = Keyframes()
        self._windows: list[list[AppliedEvent]] = []

    @property
    def end_position(self) -> LogPosition | None:
        """The position after the last commit that was applied."""
        return self._place

    def restart(self, base: FoldBase) -> None:
        """Restart from a base state."""
        with self.lock:
            self.state, self.next_seq, self.at, self._place = base.state, base.seq, 0.0, None
            self._keyframes, self._windows, self.generation = Keyframes(), [], self.generation + 1
            self._keyframes.add_keyframe(base.seq, None, base.state)
            for follower in self._followers:
                follower.restart(base)

    def make_snapshot(self) -> tuple[LogPosition, list[bytes]] | None:
        """The position reached and the encoded history, in parts; None before the first commit."""
        with self.lock:
            if self._place is None:
                return None
            own = HistorySnapshot(encode_state(self.state), self.next_seq, self.at, self._keyframes.distance)
            keyframes = msgspec.msgpack.encode(self._keyframes.kept)
            followers = [follower.encode() for follower in self._followers]
            return self._place, [msgspec.msgpack.encode(own), keyframes, *followers]

    def restore_snapshot(self, place: LogPosition, kept: Sequence[bytes | memoryview]) -> None:
        """Resume from the result of `make_snapshot`. Raises msgspec.DecodeError, ValueError, LookupError: `kept` is not
        valid; call `restart` then."""
        own, keyframes, *followers = kept
        read = msgspec.msgpack.decode(own, type=HistorySnapshot)
        if read.next_seq != place.seq or read.distance < KEYFRAME_EVENTS:
            raise ValueError("it was not kept at this place")
        with self.lock:
            self.state, self.next_seq, self.at, self._place = decode_state(read.state), read.next_seq, read.at, place
            self._keyframes = Keyframes(msgspec.msgpack.decode(keyframes, type=list[Keyframe]), read.distance)
            self._windows, self.generation = [], self.generation + 1
            for follower, followed in zip(self._followers, followers, strict=True):
                follower.restore(followed)

    def apply(self, commit: Commit, end: LogPosition) -> list[AppliedEvent]:
        """Apply the next commit; `end` is the position after it. Returns its events with the states around them."""
        with self.lock:
            if self._keyframes.is_due(self.next_seq):
                self._keyframes.add_keyframe(self.next_seq, self._place, self.state)
            done = list(fold_commits([commit], self.state))
            self.state, self.next_seq, self.at, self._place = done[-1].after, commit.end_seq, commit.at, end
            for applied in done:
                for follower in self._followers:
                    follower.apply(applied)
            return done

    def drop_before(self, base: FoldBase) -> None:
        """Drop what lies before `base`, because the log begins there now."""
        with self.lock:
            self._keyframes.drop_before(base.seq, base.state)
            self._windows = [window for window in self._windows if window[0].seq >= base.seq]

    # --- earlier events ---

    def fold_events(self, first: int, count: int) -> list[AppliedEvent]:
        """Events `first` to `first + count - 1` with the states around them; fewer at the log's end. Raises
        EventsRemoved: the log begins later; LogDamaged: it cannot be read there."""
        found = self._find_in_windows(first, count)
        if found is not None:
            return found
        with self.lock:
            count = min(count, self.next_seq - first)
            if count <= 0:
                return []
            keyframe = self._keyframes.find_before(first)
            if keyframe is None:
                raise EventsRemoved(
                    f"the log begins at event {self.first_seq}, event {first} was removed", "Choose a later one"
                )
            state = keyframe.unpack_state()
        commits = read_commits_from(self.directory, keyframe.place, keyframe.seq)
        applied = fold_commits((commit for commit, _ in commits if commit.end_seq > keyframe.seq), state)
        return list(islice(applied, first - keyframe.seq, first - keyframe.seq + count))

    def fold_event(self, seq: int) -> AppliedEvent:
        """One event with the states around it; its neighbours are cached. Raises NotFoundError: there is no such event
        (`EventsRemoved`: no longer); LogDamaged: the log cannot be read there."""
        found = self._find_in_windows(seq, 1)
        if found is None:
            first = max(seq - WINDOW_EVENTS // 2, self.first_seq)
            window = self.fold_events(min(first, seq), WINDOW_EVENTS)
            found = [applied for applied in window if applied.seq == seq]
            with self.lock:
                self._windows = [*self._windows[1 - WINDOWS_KEPT :], window] if window else self._windows
        if not found:
            raise NotFoundError(f"the log has no event {seq}: it ends before {self.next_seq}", "Choose an earlier one")
        return found[0]

    @property
    def first_seq(self) -> int:
        """Sequence number of the first event that can be folded."""
        with self.lock:
            return self._keyframes.kept[0].seq if self._keyframes.kept else self.next_seq

    def seq_before_round(self, round_: int) -> int:
        """Sequence number of a keyframe before the swarm reached a round; `first_seq` if none is that old."""
        with self.lock:
            kept = self._keyframes.kept
            index = bisect_left(kept, round_, key=lambda keyframe: highest_known_round(keyframe.unpack_state()))
            return kept[index - 1].seq if index else self.first_seq

    def _find_in_windows(self, first: int, count: int) -> list[AppliedEvent] | None:
        with self.lock:
            for window in self._windows:
                start = first - window[0].seq
                if start >= 0 and start + count <= len(window):
                    return window[start : start + count]
        return None


KIND = "page"
FORM = 5  # increased when the same events give other bytes within one version of swarmd
VERSION = f"{__version__}, rules {RULES}, form {FORM}"
KEEP_EVENTS = 100_000  # events between two saves; reading them takes some ten seconds
KEEP_SHARE = 4  # before the log's end is reached, save after a fourth of all events read at the earliest
WORTH_EVENTS = 20_000  # at the log's end reached for the first time, save only if this many were read

log = get_logger("swarmd.web")


class HistorySaver:
    """Saves a history beside its log from time to time, and restores it at the start. `anew`: why the saved one cannot
    be used, as the end of a sentence; empty if it can, or if there is none."""

    def __init__(self, history: LogHistory) -> None:
        self.anew = ""
        self._history = history
        self._kept_seq = 0
        self._refused = ""

    def restore(self) -> bool:
        """Restore the saved history. Returns False if that is impossible, so that the history has to restart."""
        directory = self._history.directory
        self._kept_seq = 0
        try:
            found = read_bookmark(directory, KIND, VERSION)
            if found is None:
                return False
            place, parts = found
            self._history.restore_snapshot(place, parts)
            if oldest_base(directory).seq < self._history.first_seq:
                raise UnusableBookmark("the log begins earlier than it did")
        except (UnusableBookmark, *DECODE_ERRORS, ValueError, LookupError) as error:
            self.anew = error.message if isinstance(error, UnusableBookmark) else "it cannot be understood"
            log.warning("WARNING the log is read whole, for what was kept of it does not fit: %s", self.anew)
            return False
        self.anew, self._kept_seq = "", place.seq
        return True

    def save_if_due(self, at_end: bool) -> None:
        """Save if enough was read since the last time. `at_end`: whether the log's end was reached before."""
        read = self._history.next_seq - self._kept_seq
        if read >= (KEEP_EVENTS if at_end else max(KEEP_EVENTS, self._history.next_seq // KEEP_SHARE)):
            self._save()

    def save_at_first_end(self) -> None:
        """Save if reading up to here took a while."""
        if self._history.next_seq - self._kept_seq >= WORTH_EVENTS:
            self._save()

    def _save(self) -> None:
        self._kept_seq = self._history.next_seq
        try:
            kept = self._history.make_snapshot()
            if kept is None:
                return
            write_bookmark(self._history.directory, KIND, VERSION, *kept)
            self._refused = ""
        except (SwarmdError, OSError, OverflowError) as error:  # OverflowError: a sum is too large for msgpack
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("WARNING the next page of this log will take longer to read it: %s", error)
