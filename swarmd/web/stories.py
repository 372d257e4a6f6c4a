"""The sentences of `swarmd explain` for the page: told from the nearest place in the log that knows the causes.

A story needs the stages trained before its round, for what held the round up lies there. It is told from the third last
of them on, to the log's end, and goes on with what is new when it is asked for again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from swarmd.core.events import Envelope
from swarmd.observe.story import Story, Teller
from swarmd.web.history import History
from swarmd.web.overview import Timeline
from swarmd.web.stages import Stages

TELLERS_KEPT = 8  # rounds asked for last
EVENTS_MAX = 20_000  # read before the round opens, and as many after: what comes later is not told
STEP_EVENTS = 1000  # folded at once
STAGES_BEFORE = 3


class _Kept:
    """A story as far as it was told."""

    def __init__(self, round_: int, first: int, last: int) -> None:
        self.teller = Teller(round_)
        self.first, self.next, self.end = first, first, last


class Stories:
    """Tells rounds out of a history.

    Args:
        history: the fold.
        stages, timeline: its followers, which know where a round begins.
    """

    def __init__(self, history: History, stages: Stages, timeline: Timeline) -> None:
        self._history, self._stages, self._timeline = history, stages, timeline
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def story(self, round_: int, now: float | None) -> Story:
        """The story of a round so far; reads the log.

        Args:
            round_: which.
            now: POSIX seconds, where the node's daemon runs.

        Raises:
            NotFoundError, LogDamaged: the log cannot be read there.
        """
        with self._lock:
            kept = self._kept.pop(round_, None)
            if kept is None or kept.next > self._history.next_seq or kept.first < self._history.first:
                kept = self._begin(round_)
            while kept.next < min(kept.end, self._history.next_seq):
                count = min(STEP_EVENTS, kept.end - kept.next)
                for applied in self._history.fold_from(kept.next, count):
                    envelope = Envelope(applied.seq, applied.at, applied.event)
                    kept.teller.take(envelope, applied.before, applied.after)
                    kept.next = applied.seq + 1
            self._kept[round_] = kept
            while len(self._kept) > TELLERS_KEPT:
                self._kept.popitem(last=False)
            return kept.teller.story(now)

    def _begin(self, round_: int) -> _Kept:
        with self._history.lock:
            opened = self._timeline.opening_of(round_)
            first, next_seq = self._history.first, self._history.next_seq
            if opened is None:  # not reached: the last event says where the swarm is
                return _Kept(round_, max(first, next_seq - 1), next_seq)
            before = self._stages.joined_before(round_, STAGES_BEFORE)
        start = max(first, opened - EVENTS_MAX, min(opened, before if before is not None else first))
        return _Kept(round_, start, opened + EVENTS_MAX)
