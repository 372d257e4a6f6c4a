"""What is kept of a log's past, in bounded memory: states to fold from, so that any event can be shown at once."""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from swarmd.core.state import State
from swarmd.errors import NotFoundError
from swarmd.eventlog.commit import Commit
from swarmd.eventlog.fold import Applied, Base, fold
from swarmd.eventlog.snapshot import encode_state
from swarmd.web.places import Gone, Place, commits_at

KEYFRAME_EVENTS = 256  # between two states that are kept; doubled whenever they outgrow KEYFRAME_BYTES_MAX
KEYFRAME_BYTES_MAX = 4 * 1024 * 1024  # of all of them, compressed
LATE_FACTOR = 4  # a keyframe waits so many times its distance for a moment in which no reports are held
WINDOW_EVENTS = 64  # folded events that are kept around one that was asked for
WINDOWS_KEPT = 4


class Follower(Protocol):
    """Makes something of the log as it is folded; each event comes once, in order."""

    def begin(self, base: Base) -> None:
        """Forget everything: the fold begins at this state."""

    def take(self, applied: Applied) -> None:
        """An event and what came of it."""


class Keyframe(NamedTuple):
    """The state before event `seq`, and where its commit begins."""

    seq: int
    place: Place | None
    packed: bytes


class History:
    """The fold so far, and the way back into it. One thread writes; any thread reads.

    Attributes:
        state: after the last event taken.
        next_seq: of the event that comes next.
        at: time of the last event, POSIX seconds; 0 before any.
    """

    def __init__(self, directory: Path, followers: Sequence[Follower] = ()) -> None:
        self.directory = directory
        self.lock = threading.RLock()
        self.state = State()
        self.next_seq = 0
        self.at = 0.0
        self._followers = tuple(followers)
        self._place: Place | None = None
        self._keyframes: list[Keyframe] = []
        self._packed_bytes = 0
        self._distance = KEYFRAME_EVENTS
        self._windows: list[list[Applied]] = []

    @property
    def place(self) -> Place | None:
        """Behind the last commit taken."""
        return self._place

    def begin(self, base: Base) -> None:
        """Start anew from a base."""
        with self.lock:
            self.state, self.next_seq, self.at, self._place = base.state, base.seq, 0.0, None
            self._keyframes, self._packed_bytes, self._windows = [], 0, []
            self._keep()
            for follower in self._followers:
                follower.begin(base)

    def take(self, commit: Commit, end: Place) -> list[Applied]:
        """Fold the commit that follows; `end` is the place behind it."""
        with self.lock:
            if self._is_due():
                self._keep()
            done = list(fold([commit], self.state))
            self.state, self.next_seq, self.at, self._place = done[-1].after, commit.end_seq, commit.at, end
            for applied in done:
                for follower in self._followers:
                    follower.take(applied)
            return done

    # --- keyframes ---

    def _is_due(self) -> bool:
        passed = self.next_seq - self._keyframes[-1].seq if self._keyframes else self._distance
        coordination = self.state.coordination
        laden = coordination is not None and bool(coordination.reports or coordination.round_reports)
        return passed >= (self._distance * LATE_FACTOR if laden else self._distance)

    def _keep(self) -> None:
        packed = zlib.compress(encode_state(self.state), 1)
        self._keyframes.append(Keyframe(self.next_seq, self._place, packed))
        self._packed_bytes += len(packed)
        if self._packed_bytes > KEYFRAME_BYTES_MAX and len(self._keyframes) > 2:
            self._keyframes = self._keyframes[::2]
            self._packed_bytes = sum(len(keyframe.packed) for keyframe in self._keyframes)
            self._distance *= 2

    def drop_before(self, base: Base) -> None:
        """The log begins at `base` now."""
        with self.lock:
            kept = [keyframe for keyframe in self._keyframes if keyframe.seq > base.seq]
            first = Keyframe(base.seq, None, zlib.compress(encode_state(base.state), 1))
            self._keyframes = [first, *kept]
            self._packed_bytes = sum(len(keyframe.packed) for keyframe in self._keyframes)
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
        keyframe, next_seq = self._keyframe_before(first)
        count = min(count, next_seq - first)
        if count <= 0:
            return []
        state = msgspec.msgpack.decode(zlib.decompress(keyframe.packed), type=State)
        commits = commits_at(self.directory, keyframe.place, keyframe.seq)
        applied = fold((commit for commit, _ in _after(commits, keyframe.seq)), state)
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
            return self._keyframes[0].seq if self._keyframes else self.next_seq

    def _in_windows(self, first: int, count: int) -> list[Applied] | None:
        with self.lock:
            for window in self._windows:
                start = first - window[0].seq
                if start >= 0 and start + count <= len(window):
                    return window[start : start + count]
        return None

    def _keyframe_before(self, seq: int) -> tuple[Keyframe, int]:
        with self.lock:
            index = bisect_right(self._keyframes, seq, key=lambda keyframe: keyframe.seq) - 1
            if index < 0:
                raise Gone(f"the log begins at event {self.first}, event {seq} was removed", "Choose a later one")
            return self._keyframes[index], self.next_seq


def _after(commits: Iterator[tuple[Commit, Place]], seq: int) -> Iterator[tuple[Commit, Place]]:
    return (each for each in commits if each[0].end_seq > seq)
