"""Reads a node's log for the page: the thread that follows the log, the followers that it feeds, and stories of rounds.

- The thread folds what is there, then what is appended, and notifies its listener; it costs little while idle.
- A story begins with the third last stage trained before its round, because what held the round up may lie there. It is
  read up to the log's end, and continued from there at the next request.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from cachetools import LRUCache
from msgspec.structs import replace

from swarmd.core.applied import AppliedEvent
from swarmd.errors import LogDamaged, NotFoundError, SwarmdError
from swarmd.eventlog.blobs import BlobStore
from swarmd.eventlog.fold import oldest_base
from swarmd.eventlog.frame import HEAD, classify_tail
from swarmd.eventlog.segment import LogPosition, first_seq_of, list_segments, read_header, segment_name
from swarmd.files import open_regular
from swarmd.logger import get_logger
from swarmd.observe.story import Story, StoryTeller
from swarmd.web.gossip import GossipFeed
from swarmd.web.history import EventsRemoved, HistorySaver, LogFollower, LogHistory, find_first_seq, read_commits_from
from swarmd.web.stages import StageFollower, Timeline, TrainedStages
from swarmd.web.swarm import PeerLedger

POLL_S = 0.15  # between two polls of the log's end; waking up is most of the cost of following
SUSPECT_POLLS = 40  # polls after which an incomplete frame is checked: still being written, or damaged
AGAIN_S = 5.0  # delay after an error before the log is read again
BATCH_EVENTS = 64  # events published at once while there is much to read
ALMOST = 0.999  # largest share shown before the log's end is reached
MARK_BYTES = 4096  # last bytes read, by which a log is recognised; they contain commit times

log = get_logger("swarmd.web")


class LogFingerprint:
    """Recognises a log by the bytes before the position up to which it was read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: tuple[LogPosition, bytes] | None = None

    def remember_position(self, place: LogPosition | None) -> None:
        """Remember the position reached."""
        if place is not None and (self._known is None or self._known[0] != place):
            with contextlib.suppress(OSError):  # removed since; the next segment's first commit gives another position
                self._known = (place, digest_bytes_before(self._directory, place))

    def is_log_replaced(self) -> bool:
        """Whether the directory now holds another log, for example after a restore from a backup. Raises NotFoundError,
        OSError."""
        if self._known is None:
            return False
        place, known = self._known
        try:
            return digest_bytes_before(self._directory, place) != known
        except FileNotFoundError:  # old segments were removed if the log now begins later
            return find_first_seq(self._directory) <= place.segment


def digest_bytes_before(directory: Path, place: LogPosition) -> bytes:
    """A digest of the last MARK_BYTES before a position. Raises OSError."""
    first = max(0, place.offset - MARK_BYTES)
    with open_regular(place.segment_path(directory)) as file:
        return hashlib.sha256(os.pread(file.fileno(), place.offset - first, first)).digest()


# Called in the tail's thread with the events of a commit, or with none if an error came or went. Must not raise.
JournalListener = Callable[[list[AppliedEvent]], None]


class LogTail:
    """Keeps a `LogHistory` at its log's end.

    Args:
        history: to be fed.
        told: called with the events of each commit once the log's end was reached.
        grows: False for an archive, which is read once.
        keeping: restores the history at the start, and saves it from time to time.

    Attributes:
        stopping: once set, the thread ends after its current commit.
        caught_up: set when the log's end was reached, or an error met, for the first time.
        trouble: why the log cannot be read (further); None while it can.
    """

    def __init__(
        self,
        history: LogHistory,
        told: JournalListener,
        grows: bool = True,
        keeping: HistorySaver | None = None,
    ) -> None:
        self.caught_up = threading.Event()
        self.trouble: SwarmdError | None = None
        self._history = history
        self._told = told
        self._grows = grows
        self._keeping = keeping
        self.stopping = threading.Event()
        self._directory_stamp = -1
        self._mark = LogFingerprint(history.directory)
        self._suspect = 0
        self._thread = threading.Thread(target=self._run, name="log-tail", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current commit."""
        self.stopping.set()
        self._thread.join()

    @property
    def share_read(self) -> float:
        """The share of the log's bytes that has been read, 0 to 1; 1 once its end was reached."""
        if self.caught_up.is_set():
            return 1.0
        try:
            segments = list_segments(self._history.directory)
            sizes = {path: path.stat().st_size for path in segments}
        except (OSError, NotFoundError):
            return 0.0
        place = self._history.end_position
        done = sum(size for path, size in sizes.items() if place is not None and first_seq_of(path) < place.segment)
        # Followers may not have applied the last commit yet.
        return min(ALMOST, (done + (place.offset if place else 0)) / max(1, sum(sizes.values())))

    def _run(self) -> None:
        started = False
        while not self.stopping.is_set():
            try:
                if not started:
                    self._mark = LogFingerprint(self._history.directory)
                    if self._keeping is None or not self._keeping.restore():
                        self._history.restart(oldest_base(self._history.directory))
                    started = True
                self._read_until_stopped()
                return
            except Exception as error:  # no log yet, segments removed, damage, a failing disk, or a bug
                trouble = to_swarmd_error(error, self._history.directory)
                if trouble is not error and str(trouble) != str(self.trouble):
                    log.warning("WARNING the event log is not read on", exc_info=error)
                self._record_trouble(trouble)
                started = started and not isinstance(
                    error, EventsRemoved
                )  # the next events are gone: restart at the log's beginning
                if not self._grows:
                    return
                self.stopping.wait(POLL_S if isinstance(error, EventsRemoved) else AGAIN_S)

    def _read_until_stopped(self) -> None:
        """Read until stopped, or to the end of an archive."""
        while not self.stopping.is_set():
            if self._check_for_more():
                self._read_new_commits()
                self._mark.remember_position(self._history.end_position)
            if not self._grows:
                self._raise_if_damaged()
            if self.trouble is not None and not self._suspect:
                self._record_trouble(None)
            if self._keeping is not None and not self.caught_up.is_set():
                self._keeping.save_at_first_end()
            self.caught_up.set()
            if not self._grows:
                return
            self.stopping.wait(POLL_S)

    def _read_new_commits(self) -> None:
        history = self._history
        batch: list[AppliedEvent] = []
        for commit, end in read_commits_from(history.directory, history.end_position, history.next_seq):
            if commit.end_seq <= history.next_seq:
                continue
            batch += history.apply(commit, end)
            self._suspect = 0
            if len(batch) >= BATCH_EVENTS:
                self._publish_batch(batch)
                batch = []
            if self._keeping is not None:
                self._keeping.save_if_due(self.caught_up.is_set())
            if self.stopping.is_set():
                return
        self._publish_batch(batch)

    def _publish_batch(self, batch: list[AppliedEvent]) -> None:
        if batch and self.caught_up.is_set():
            self._told(batch)

    def _record_trouble(self, error: SwarmdError | None) -> None:
        if str(error) != str(self.trouble):
            if error is not None and not isinstance(error, EventsRemoved):
                log.warning("WARNING the event log cannot be read: %s", error)
            self.trouble = error
            self._told([])
        if error is not None:
            self.caught_up.set()

    # --- checking for more ---

    def _check_for_more(self) -> bool:
        """Check for bytes after the position reached, and for segments added or removed. Returns whether there is more
        to read."""
        directory = self._history.directory
        stamp = directory.stat().st_mtime_ns if directory.is_dir() else 0
        if stamp != self._directory_stamp:
            if self._mark.is_log_replaced():
                raise EventsRemoved(f"the event log in {directory} is another one than before", "Load the page again")
            self._directory_stamp = stamp
            self._drop_removed_events(directory)
            return True
        place = self._history.end_position
        if place is None:
            return True
        try:
            with open_regular(place.segment_path(directory)) as file:
                head = os.pread(file.fileno(), HEAD.size, place.offset)
        except FileNotFoundError:
            return True
        if not head.strip(b"\0"):
            self._suspect = 0
            # The next segment may have had no commit yet when it appeared in the directory.
            return (directory / segment_name(place.seq)).exists()
        self._suspect += 1
        if self._suspect == SUSPECT_POLLS:
            self._raise_if_damaged()
        return True

    def _raise_if_damaged(self) -> None:
        """Raise LogDamaged if the bytes after the position reached are damaged, not just incomplete."""
        place, self._suspect = self._history.end_position, 0
        path = place.segment_path(self._history.directory) if place is not None else None
        if place is None or path is None or not path.exists():
            return
        with open_regular(path) as file:
            opening = read_header(file, path)
            if classify_tail(file, place.offset, opening.seed).verdict == "damaged":
                self._suspect = SUSPECT_POLLS - 1  # check again at the next poll: until then it counts as damaged
                raise LogDamaged(f"{path} is damaged at byte {place.offset}", "See `swarmd log verify`")

    def _drop_removed_events(self, directory: Path) -> None:
        """Drop what was removed at the log's beginning."""
        begin = find_first_seq(directory)
        if begin > self._history.first_seq:
            base = oldest_base(directory)
            if self._history.first_seq < base.seq <= self._history.next_seq:
                self._history.drop_before(base)


def to_swarmd_error(error: Exception, directory: Path) -> SwarmdError:
    """Turn any error into one that the page can show."""
    if isinstance(error, SwarmdError):
        return error
    if isinstance(error, OSError):
        return SwarmdError(f"{error.filename or directory}: {error.strerror or error}", "Check the disk")
    return SwarmdError(f"{directory} cannot be folded: {type(error).__name__}", "See `swarmd replay --verify`")


TELLERS_KEPT = 8  # rounds most recently asked for
STORY_EVENTS_MAX = 20_000  # events read before the round opens, and as many after; a story says what was not read
STEP_EVENTS = 1000  # folded at once
STAGES_BEFORE = 3


class _StoryProgress:
    """A story as far as it has been read."""

    def __init__(self, round_: int, first: int, last: int, wanted: int, ahead: bool = False, cut: bool = False) -> None:
        self.round = round_
        self.ahead = ahead  # the round has not been reached
        self.cut = cut  # the log begins later than the story should
        self.teller = StoryTeller(round_)
        self.first, self.next, self.end = first, first, last
        self.wanted = wanted  # the event that the story would begin with if there were no limit

    def current_story(self, now: float | None, next_seq: int) -> Story:
        """The story so far, for a log that ends before `next_seq`; it says which part is unread if that part may change
        the story."""
        story, all_of_it = self.teller.story(now), f"`swarmd explain DIR {self.round}` reads all."
        if not self.ahead and self.end < next_seq and self.teller.may_continue:
            unread = f"It goes on beyond event {self.end - 1}, up to which it is read here. {all_of_it}"
            if story.outcome != "open":
                return replace(story, unread=unread)
            verdict = f"Round {self.round} is too long to be told whole here."
            return replace(story, outcome="unknown", verdict=verdict, unread=unread)
        if self.wanted < self.first and story.outcome in ("skipped", "missed"):
            unread = f"What was before event {self.first} is not read here, and may be the cause. {all_of_it}"
            return replace(story, unread=unread)
        if self.cut and story.outcome == "unknown":
            verdict = f"Round {self.round} was over before event {self.first}, where what is read here begins."
            return replace(story, verdict=verdict, unread=all_of_it)
        return story


class Stories:
    """Tells the stories of rounds. `history`: the fold. `stages` and `timeline`: followers of it, which know where a
    round begins."""

    def __init__(self, history: LogHistory, stages: StageFollower, timeline: Timeline) -> None:
        self._history, self._stages, self._timeline = history, stages, timeline
        self._lock = threading.Lock()
        self._kept: LRUCache[int, _StoryProgress] = LRUCache(TELLERS_KEPT)
        self._generation = history.generation

    def story(self, round_: int, now: float | None) -> Story:
        """The story of a round so far; reads the log. `now`: POSIX seconds if the node's daemon runs; else None. Raises
        NotFoundError, LogDamaged: the log cannot be read there."""
        with self._lock:
            if self._generation != self._history.generation:
                self._generation = self._history.generation
                self._kept.clear()
            kept = self._kept.get(round_)
            if kept is None or kept.ahead or kept.first < self._history.first_seq:
                kept = self._start_story(round_)
            while kept.next < min(kept.end, self._history.next_seq):
                count = min(STEP_EVENTS, kept.end - kept.next)
                for applied in self._history.fold_events(kept.next, count):
                    kept.teller.apply(applied)
                    kept.next = applied.seq + 1
                    if not kept.teller.may_continue:
                        kept.end = kept.next
                        break
            self._kept[round_] = kept
            return kept.current_story(now, self._history.next_seq)

    def _start_story(self, round_: int) -> _StoryProgress:
        with self._history.lock:
            opened = self._timeline.find_round_opening(round_)
            first, next_seq = self._history.first_seq, self._history.next_seq
            if opened is None:  # the last event shows which round the swarm is in
                return _StoryProgress(round_, last := max(first, next_seq - 1), next_seq, last, ahead=True)
            before = self._stages.find_join_before(round_, STAGES_BEFORE)
            if self._timeline.has_forgotten_round(round_):
                opened = self._history.seq_before_round(round_)
        wanted = max(first, min(opened, before if before is not None else first))
        cut = first > find_first_seq(self._history.directory)
        return _StoryProgress(
            round_, max(wanted, opened - STORY_EVENTS_MAX), opened + STORY_EVENTS_MAX, wanted, cut=cut
        )


class LogReading:
    """A history, its followers and the thread that feeds them.

    Args:
        directory: of the segments.
        blobs: the node's.
        told: see `LogTail`.
        others: further followers.
        grows: False for an archive.
    """

    def __init__(
        self,
        directory: Path,
        blobs: BlobStore,
        told: JournalListener,
        others: Sequence[LogFollower] = (),
        *,
        grows: bool = True,
    ) -> None:
        self.ledger, self.stages, self.timeline = PeerLedger(), StageFollower(), Timeline()
        self.feed = GossipFeed(blobs, self.ledger)
        self.trained = TrainedStages()
        own: tuple[LogFollower, ...] = (self.ledger, self.stages, self.timeline, self.feed, self.trained)
        self.history = LogHistory(directory, (*own, *others))
        self.stories = Stories(self.history, self.stages, self.timeline)
        self.keeping = HistorySaver(self.history) if grows else None
        self.tail = LogTail(self.history, told, grows, self.keeping)

    @property
    def reread_reason(self) -> str:
        """Why the whole log is read although a history was saved, as the end of a sentence; else empty."""
        anew = self.keeping.anew if self.keeping is not None else ""
        return f"; what was kept of it is made again: {anew}" if anew else ""
