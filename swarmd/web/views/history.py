"""The fold of a log, in bounded memory, and the way back into it: states to fold from, so that any event is shown at
once.

- Commits are read from a known place on, without what lies before.
- Some states are kept, packed in a file that is gone with the process: a keyframe, and the events behind it, give any
  other.
- What a page has made of a log is kept beside it, so that the next page of this log reads only what came since.
"""

from __future__ import annotations

import os
import tempfile
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import msgspec

from swarmd import __version__
from swarmd.bounds import DECODE_ERRORS
from swarmd.core.applied import Applied, Projection
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.errors import LogDamaged, NotFoundError, SwarmdError
from swarmd.eventlog.fold import Base, fold, oldest_base
from swarmd.eventlog.frame import Commit, decode_commit, read_frames
from swarmd.eventlog.segment import Place, first_seq_of, list_segments, read_header
from swarmd.eventlog.snapshot import decode_state, encode_state
from swarmd.eventlog.summaries import Summary, Unfit, bookmark_place, read_bookmark, unread_bytes, write_bookmark
from swarmd.files import regular_descriptor
from swarmd.logger import get_logger
from swarmd.observe.story import reached

READ_BYTES = 64 * 1024


class Gone(NotFoundError):
    """The log does not hold these events any more: old segments were removed."""


def begin_of(directory: Path) -> int:
    """The first event that the log still has; 0 for a log without segments."""
    segments = list_segments(directory)
    return first_seq_of(segments[0]) if segments else 0


def commits_at(directory: Path, place: Place | None, seq: int) -> Iterator[tuple[Commit, Place]]:
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
    if place is not None and place.segment in firsts:
        index, offset, next_seq = firsts.index(place.segment), place.offset, place.seq
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
            yield commit, Place(next_seq, first_seq_of(path), end)


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


KEYFRAME_EVENTS = 256  # between two states that are kept; doubled whenever they outgrow KEYFRAME_BYTES_MAX
KEYFRAME_BYTES_MAX = 64 * 1024 * 1024  # of all of them, compressed, in a temporary file that nobody else sees
STATE_BYTES_MAX = 256 * 1024 * 1024  # of one state, unpacked
KEPT_BYTES_MAX = 16 * 1024 * 1024  # of those that are kept beside the log
WINDOW_EVENTS = 64  # folded events that are kept around one that was asked for
WINDOWS_KEPT = 16


class Follower(Projection, Summary, Protocol):
    """A projection of a log, kept beside it and begun anew where that does not fit."""


class Keyframe(NamedTuple):
    """The state before event `seq`, where its commit begins, and where the state lies packed."""

    seq: int
    place: Place | None
    offset: int
    size_bytes: int


class KeptHistory(msgspec.Struct, array_like=True):
    """A `LogHistory` as it is kept, without its keyframes.

    Attributes:
        state: encoded; that before event `next_seq`.
        at: time of the event before.
        distance: between two keyframes.
    """

    state: bytes
    next_seq: int
    at: float
    distance: int


class KeptKeyframe(msgspec.Struct, array_like=True, gc=False):
    """One keyframe as it is kept.

    Attributes:
        seq: the event that follows on the state.
        place: where its commit begins, where that is known.
        packed: the state.
    """

    seq: int
    place: Place | None
    packed: bytes


class Keyframes:
    """States to fold from, by number; packed in a temporary file, which is gone with the process.

    Where that cannot be written, one is tried again after as many events: folds begin further back, and take longer.
    The first one, without which nothing can be shown, is then kept in memory, and those after it.
    """

    def __init__(self) -> None:
        self.kept: list[Keyframe] = []
        self.distance = KEYFRAME_EVENTS
        self._file = scratch_file()
        self._in_memory = False
        self._end = 0
        self._due_seq = 0

    def is_due(self, seq: int) -> bool:
        """Whether the state before this event is worth keeping."""
        return seq >= self._due_seq

    def keep(self, seq: int, place: Place | None, state: State) -> None:
        """Pack a state; at the bound every second one goes, and the distance doubles."""
        packed = zlib.compress(encode_state(state), 1)
        if self._put(packed):
            self.kept.append(Keyframe(seq, place, self._end - len(packed), len(packed)))
            if self._end > KEYFRAME_BYTES_MAX and len(self.kept) > 2:
                self.distance *= 2
                self.replace(self.kept[::2])
        self._due_seq = seq + self.distance

    def before(self, seq: int) -> Keyframe | None:
        """The nearest one at or before an event."""
        index = bisect_right(self.kept, seq, key=lambda keyframe: keyframe.seq) - 1
        return self.kept[index] if index >= 0 else None

    def unpack(self, keyframe: Keyframe) -> State:
        """The state itself. Raises LogDamaged where what was kept beside the log holds none."""
        stream = zlib.decompressobj()
        try:
            plain = stream.decompress(self._read(keyframe.offset, keyframe.size_bytes), STATE_BYTES_MAX)
            if not stream.eof:
                raise zlib.error(f"it is cut off, or has more than {STATE_BYTES_MAX} bytes")
            return decode_state(plain)
        except (zlib.error, *DECODE_ERRORS) as error:
            what = f"a state that was kept, of event {keyframe.seq}, cannot be read: {error}"
            raise LogDamaged(what, "Remove summaries/page.sum") from error

    def packed(self) -> list[KeptKeyframe]:
        """As they are kept: the first, and of the others each second, fourth, ... where all are too much."""
        chosen = self.kept
        while sum(keyframe.size_bytes for keyframe in chosen) > KEPT_BYTES_MAX and len(chosen) > 1:
            chosen = chosen[::2]
        return [KeptKeyframe(seq, place, self._read(offset, size)) for seq, place, offset, size in chosen]

    def resume(self, kept: Sequence[KeptKeyframe], distance: int) -> None:
        """Those that were kept, and their distance."""
        self.distance = distance
        for each in kept:
            self._due_seq = each.seq + distance
            if self._write(each.packed):
                self.kept.append(Keyframe(each.seq, each.place, self._end - len(each.packed), len(each.packed)))

    def begin_at(self, seq: int, state: State) -> None:
        """Forget what lies before an event."""
        self.kept = [keyframe for keyframe in self.kept if keyframe.seq > seq]
        packed = zlib.compress(encode_state(state), 1)
        if self._put(packed):
            self.kept.insert(0, Keyframe(seq, None, self._end - len(packed), len(packed)))

    def replace(self, kept: Sequence[Keyframe]) -> None:
        """Keep only these, in a file of their own."""
        before, self._file, self._end, self.kept = self._file, scratch_file(), 0, []
        self._in_memory = False
        with before:
            for keyframe in kept:
                packed = os.pread(before.fileno(), keyframe.size_bytes, keyframe.offset)
                if self._put(packed):
                    self.kept.append(keyframe._replace(offset=self._end - len(packed)))

    def _put(self, packed: bytes) -> bool:
        """Write at the file's end; whether there was room."""
        if self._write(packed):
            return True
        if self.kept or self._in_memory:
            return False
        self._file, self._end, self._in_memory = memory_file(), 0, True
        return self._write(packed)

    def _read(self, offset: int, size_bytes: int) -> bytes:
        return os.pread(self._file.fileno(), size_bytes, offset)

    def _write(self, packed: bytes) -> bool:
        try:
            written = os.pwrite(self._file.fileno(), packed, self._end)
        except OSError:
            return False
        if written == len(packed):
            self._end += written
        return written == len(packed)


def scratch_file() -> IO[bytes]:
    """A file without a name; in memory where nothing can be written."""
    try:
        return tempfile.TemporaryFile(prefix="swarmd-states-")
    except OSError:
        return memory_file()


def memory_file() -> IO[bytes]:
    """A file that takes no disk."""
    return os.fdopen(os.memfd_create("swarmd-states"), "w+b")


class LogHistory:
    """The fold so far, and the way back into it. One thread writes; any thread reads.

    Attributes:
        state: after the last event taken.
        next_seq: of the event that comes next.
        at: time of the last event, POSIX seconds; 0 before any.
        begun: how often it began anew: what was made of an earlier one may be of another log.
    """

    def __init__(self, directory: Path, followers: Sequence[Follower] = ()) -> None:
        self.directory = directory
        self.lock = threading.RLock()
        self.state = State()
        self.next_seq = 0
        self.at = 0.0
        self.begun = 0
        self._followers = tuple(followers)
        self._place: Place | None = None
        self._keyframes = Keyframes()
        self._windows: list[list[Applied]] = []

    @property
    def place(self) -> Place | None:
        """Behind the last commit that was applied."""
        return self._place

    def begin(self, base: Base) -> None:
        """Restart from a base state."""
        with self.lock:
            self.state, self.next_seq, self.at, self._place = base.state, base.seq, 0.0, None
            self._keyframes, self._windows, self.begun = Keyframes(), [], self.begun + 1
            self._keyframes.keep(base.seq, None, base.state)
            for follower in self._followers:
                follower.begin(base)

    def keep(self) -> tuple[Place, list[bytes]] | None:
        """The place that was reached and, in parts, all that was made of the log so far; None before the first
        commit."""
        with self.lock:
            if self._place is None:
                return None
            own = KeptHistory(encode_state(self.state), self.next_seq, self.at, self._keyframes.distance)
            keyframes = msgspec.msgpack.encode(self._keyframes.packed())
            followers = [follower.keep() for follower in self._followers]
            return self._place, [msgspec.msgpack.encode(own), keyframes, *followers]

    def resume(self, place: Place, kept: Sequence[bytes | memoryview]) -> None:
        """Go on where `keep` was called.

        Raises:
            msgspec.DecodeError, ValueError, LookupError: it is not what was kept; only `begin` makes sense then.
        """
        own, keyframes, *followers = kept
        read = msgspec.msgpack.decode(own, type=KeptHistory)
        if read.next_seq != place.seq or read.distance < KEYFRAME_EVENTS:
            raise ValueError("it was not kept at this place")
        with self.lock:
            self.state, self.next_seq, self.at, self._place = decode_state(read.state), read.next_seq, read.at, place
            self._keyframes, self._windows, self.begun = Keyframes(), [], self.begun + 1
            packed = msgspec.msgpack.decode(keyframes, type=list[KeptKeyframe])
            self._keyframes.resume(packed, read.distance)
            for follower, followed in zip(self._followers, followers, strict=True):
                follower.resume(followed)

    def apply(self, commit: Commit, end: Place) -> list[Applied]:
        """Fold the commit that follows; `end` is the place behind it."""
        with self.lock:
            if self._keyframes.is_due(self.next_seq):
                self._keyframes.keep(self.next_seq, self._place, self.state)
            done = list(fold([commit], self.state))
            self.state, self.next_seq, self.at, self._place = done[-1].after, commit.end_seq, commit.at, end
            for applied in done:
                for follower in self._followers:
                    follower.apply(applied)
            return done

    def drop_before(self, base: Base) -> None:
        """The log begins at `base` now."""
        with self.lock:
            self._keyframes.begin_at(base.seq, base.state)
            self._windows = [window for window in self._windows if window[0].seq >= base.seq]

    # --- the way back ---

    def fold_from(self, first: int, count: int) -> list[Applied]:
        """Events `first` to `first + count - 1` with the states around them; fewer at the log's end.

        Raises:
            Gone: the log begins later.
            LogDamaged: it cannot be read there.
        """
        found = self._in_windows(first, count)
        if found is not None:
            return found
        with self.lock:
            count = min(count, self.next_seq - first)
            if count <= 0:
                return []
            keyframe = self._keyframes.before(first)
            if keyframe is None:
                raise Gone(f"the log begins at event {self.first}, event {first} was removed", "Choose a later one")
            state = self._keyframes.unpack(keyframe)
        commits = commits_at(self.directory, keyframe.place, keyframe.seq)
        applied = fold((commit for commit, _ in commits if commit.end_seq > keyframe.seq), state)
        return list(islice(applied, first - keyframe.seq, first - keyframe.seq + count))

    def moment(self, seq: int) -> Applied:
        """One event with the states around it; its neighbours are kept for the next question.

        Raises:
            NotFoundError: there is no such event (`Gone`: not any more).
            LogDamaged: the log cannot be read there.
        """
        found = self._in_windows(seq, 1)
        if found is None:
            first = max(seq - WINDOW_EVENTS // 2, self.first)
            window = self.fold_from(min(first, seq), WINDOW_EVENTS)
            found = [applied for applied in window if applied.seq == seq]
            with self.lock:
                self._windows = [*self._windows[1 - WINDOWS_KEPT :], window] if window else self._windows
        if not found:
            raise NotFoundError(f"the log has no event {seq}: it ends before {self.next_seq}", "Choose an earlier one")
        return found[0]

    @property
    def first(self) -> int:
        """The first event that can be shown."""
        with self.lock:
            return self._keyframes.kept[0].seq if self._keyframes.kept else self.next_seq

    def before_round(self, round_: int) -> int:
        """An event before the swarm was seen at a round, by the states that are kept; `first` where none is as old."""
        with self.lock:
            kept = self._keyframes.kept
            index = bisect_left(kept, round_, key=lambda keyframe: reached(self._keyframes.unpack(keyframe)))
            return kept[index - 1].seq if index else self.first

    def _in_windows(self, first: int, count: int) -> list[Applied] | None:
        with self.lock:
            for window in self._windows:
                start = first - window[0].seq
                if start >= 0 and start + count <= len(window):
                    return window[start : start + count]
        return None


KIND = "page"
FORM = 5  # grows when the same events give other bytes within one version of swarmd
VERSION = f"{__version__}, rules {RULES}, form {FORM}"
KEEP_EVENTS = 100_000  # read since it was kept last; reading them takes some ten seconds
KEEP_SHARE = 4  # and a fourth of all, until the log's end was reached: a long log is not kept over and over
WORTH_EVENTS = 20_000  # read when the log's end is reached for the first time; below, nothing is kept
SOON_BYTES = 4 * 1024 * 1024  # of a log are read within some two seconds

log = get_logger("swarmd.web")


class Keeping:
    """Keeps a history beside its log, and finds it again.

    Attributes:
        anew: why what was kept cannot be used, the end of a sentence; empty where it can, or where nothing was kept.
    """

    def __init__(self, history: LogHistory) -> None:
        self.anew = ""
        self._history = history
        self._kept_seq = 0
        self._refused = ""

    def resume(self) -> bool:
        """Have the history go on where it was kept. False where that cannot be: it is to begin anew then."""
        directory = self._history.directory
        self._kept_seq = 0
        try:
            found = read_bookmark(directory, KIND, VERSION)
            if found is None:
                return False
            place, parts = found
            self._history.resume(place, parts)
            if oldest_base(directory).seq < self._history.first:
                raise Unfit("the log begins earlier than it did")
        except (Unfit, *DECODE_ERRORS, ValueError, LookupError) as error:
            self.anew = error.message if isinstance(error, Unfit) else "it cannot be understood"
            log.warning("WARNING the log is read whole, for what was kept of it does not fit: %s", self.anew)
            return False
        self.anew, self._kept_seq = "", place.seq
        return True

    def keep_if_due(self, at_end: bool) -> None:
        """Keep it, where enough was read since the last time.

        Args:
            at_end: the log's end was reached before.
        """
        read = self._history.next_seq - self._kept_seq
        if read >= (KEEP_EVENTS if at_end else max(KEEP_EVENTS, self._history.next_seq // KEEP_SHARE)):
            self._keep()

    def keep_at_first_end(self) -> None:
        """Keep it, where reading up to here took a while."""
        if self._history.next_seq - self._kept_seq >= WORTH_EVENTS:
            self._keep()

    def _keep(self) -> None:
        self._kept_seq = self._history.next_seq
        try:
            kept = self._history.keep()
            if kept is None:
                return
            write_bookmark(self._history.directory, KIND, VERSION, *kept)
            self._refused = ""
        except (SwarmdError, OSError, OverflowError) as error:  # the latter: a sum beyond what msgpack can hold
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("WARNING the next page of this log will take longer to read it: %s", error)


def is_kept(directory: Path) -> bool:
    """Whether all but little of a log seems to be kept."""
    try:
        place = bookmark_place(directory, KIND, VERSION)
        return place is not None and unread_bytes(directory, place) < SOON_BYTES
    except (OSError, NotFoundError):
        return False
