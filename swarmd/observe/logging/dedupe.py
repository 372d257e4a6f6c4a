"""Repeated lines of a worker's output, folded to a count per minute, and a bound on how much a worker may say."""

from __future__ import annotations

import re
from collections import OrderedDict

from swarmd.observe.logging.library_logger import get_logger

WINDOW_S = 60.0
LINES_TRACKED_MAX = 256  # distinct lines watched for repeats; the oldest is let go at the bound
LINES_A_WINDOW_MAX = 1200  # lines of one worker logged in a minute; the rest is counted

# Time stamps at a line's front differ in lines that say the same.
_STAMP = re.compile(
    r"^\s*(?:[A-Z][a-z]{2} \d{1,2} |\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d[.,]?\d*(?:Z|[+-]\d\d:?\d\d)?\s*"
)

log = get_logger("swarmd.worker")


class LineFolder:
    """Logs a worker's lines; one that comes again within the window is counted instead of logged."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._window_from = 0.0
        self._logged = 0
        self._dropped = 0

    def log(self, level: str, text: str, now: float) -> None:
        """Log or count one line. `now` is monotonic, seconds."""
        self.tick(now)
        key = _STAMP.sub("", text)
        seen = self._seen.get(key)
        if seen is not None:
            seen.repeats += 1
            return
        self._seen[key] = _Seen(level, text, now)
        if len(self._seen) > LINES_TRACKED_MAX:
            self._let_go(self._seen.popitem(last=False)[1])
        self._say(level, text)

    def tick(self, now: float) -> None:
        """End the windows that are over."""
        while self._seen and now - next(iter(self._seen.values())).since >= WINDOW_S:
            self._tell_repeats(self._seen.popitem(last=False)[1])
        if now - self._window_from >= WINDOW_S:
            self._tell_dropped()
            self._window_from = now

    def flush(self) -> None:
        """Tell the counts so far: the worker has ended."""
        while self._seen:
            self._tell_repeats(self._seen.popitem(last=False)[1])
        self._tell_dropped()

    def _say(self, level: str, text: str) -> None:
        if self._logged >= LINES_A_WINDOW_MAX:
            self._dropped += 1
            return
        self._logged += 1
        log.log(LEVELS[level], text, worker=self._worker)

    def _let_go(self, seen: _Seen) -> None:
        """A line makes room within its window: what is told of it counts like any other line."""
        if self._logged >= LINES_A_WINDOW_MAX:
            self._dropped += seen.repeats
        elif seen.repeats:
            self._logged += 1
            self._tell_repeats(seen)

    def _tell_repeats(self, seen: _Seen) -> None:
        if seen.repeats:
            log.log(LEVELS[seen.level], seen.text, worker=self._worker, repeated=seen.repeats, window_s=WINDOW_S)

    def _tell_dropped(self) -> None:
        if self._dropped:
            log.warning("the worker says too much", worker=self._worker, lines_dropped=self._dropped)
        self._logged = self._dropped = 0


LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class _Seen:
    __slots__ = ("level", "repeats", "since", "text")

    def __init__(self, level: str, text: str, since: float) -> None:
        self.level = level
        self.text = text
        self.since = since
        self.repeats = 0
