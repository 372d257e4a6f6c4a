"""The sentences of `swarmd explain` for the page: told from the nearest place in the log that knows the causes.

A story needs the stages trained before its round, for what held the round up lies there. It is told from the third last
of them on, to the log's end, and goes on with what is new when it is asked for again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from msgspec.structs import replace

from swarmd.observe.story import Story, StoryTeller
from swarmd.web.views.history import LogHistory
from swarmd.web.views.log_cursor import begin_of
from swarmd.web.views.overview import Timeline
from swarmd.web.views.stages import StageFollower

TELLERS_KEPT = 8  # rounds asked for last
EVENTS_MAX = 20_000  # read before the round opens, and as many after; what lies beyond is said to be unread
STEP_EVENTS = 1000  # folded at once
STAGES_BEFORE = 3


class _Kept:
    """A story as far as it was told."""

    def __init__(self, round_: int, first: int, last: int, wanted: int, ahead: bool = False, cut: bool = False) -> None:
        self.round = round_
        self.ahead = ahead  # the round has not been reached
        self.cut = cut  # the log begins earlier than what is read of it
        self.teller = StoryTeller(round_)
        self.first, self.next, self.end = first, first, last
        self.wanted = wanted  # event from which on it would be told, were there no bound

    def story(self, now: float | None, next_seq: int) -> Story:
        """What was told so far of a log that ends before `next_seq`; and which part of it is unread, where that may
        change what is told."""
        story, all_of_it = self.teller.story(now), f"`swarmd explain DIR {self.round}` reads all."
        if not self.ahead and self.end < next_seq and self.teller.goes_on:
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
    """Tells rounds out of a history.

    Args:
        history: the fold.
        stages, timeline: its followers, which know where a round begins.
    """

    def __init__(self, history: LogHistory, stages: StageFollower, timeline: Timeline) -> None:
        self._history, self._stages, self._timeline = history, stages, timeline
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._begun = history.begun

    def story(self, round_: int, now: float | None) -> Story:
        """The story of a round so far; reads the log.

        Args:
            round_: which.
            now: POSIX seconds, where the node's daemon runs.

        Raises:
            NotFoundError, LogDamaged: the log cannot be read there.
        """
        with self._lock:
            if self._begun != self._history.begun:
                self._begun = self._history.begun
                self._kept.clear()
            kept = self._kept.pop(round_, None)
            if kept is None or kept.ahead or kept.first < self._history.first:
                kept = self._begin(round_)
            while kept.next < min(kept.end, self._history.next_seq):
                count = min(STEP_EVENTS, kept.end - kept.next)
                for applied in self._history.fold_from(kept.next, count):
                    kept.teller.apply(applied)
                    kept.next = applied.seq + 1
                    if not kept.teller.goes_on:
                        kept.end = kept.next
                        break
            self._kept[round_] = kept
            while len(self._kept) > TELLERS_KEPT:
                self._kept.popitem(last=False)
            return kept.story(now, self._history.next_seq)

    def _begin(self, round_: int) -> _Kept:
        with self._history.lock:
            opened = self._timeline.opening_of(round_)
            first, next_seq = self._history.first, self._history.next_seq
            if opened is None:  # not reached: the last event says where the swarm is
                return _Kept(round_, last := max(first, next_seq - 1), next_seq, last, ahead=True)
            before = self._stages.joined_before(round_, STAGES_BEFORE)
            if self._timeline.forgot(round_):
                opened = self._history.before_round(round_)
        wanted = max(first, min(opened, before if before is not None else first))
        cut = first > begin_of(self._history.directory)
        return _Kept(round_, max(wanted, opened - EVENTS_MAX), opened + EVENTS_MAX, wanted, cut=cut)
