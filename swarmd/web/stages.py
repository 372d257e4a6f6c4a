"""Followers of a log that keep, in bounded memory, each stage's times and results, and a timeline of events."""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import pairwise
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from swarmd.core.applied import AppliedEvent
from swarmd.core.chart_types import RoundState
from swarmd.core.events import RoundsSkipped, StageTrained, TrainerReady, tag_of
from swarmd.core.rounds import count_set_aside
from swarmd.core.state import State, Trainer
from swarmd.core.values import Skill
from swarmd.eventlog.fold import FoldBase
from swarmd.observe.describe import LANE_OF, ROUTINE, WARNINGS, WORDS, Lane, describe
from swarmd.observe.words import STAGES_COUNTED, describe_masked_counts, describe_masked_peer
from swarmd.results.history import curves_of
from swarmd.web.moments import TEXT_CHARACTERS_MAX, finite_or_none, redact_and_cut
from swarmd.web.shapes import (
    OVERVIEW_BUCKETS_MAX,
    OVERVIEW_ROUNDS_MAX,
    Overview,
    RoundMark,
    SkipRow,
    StageRow,
    StagesView,
    TrainedStage,
    TrainingView,
)

STAGES_KEPT = 500
SKIPS_KEPT = 500
# The field of a row for the duration of each part of a stage. A part is done once its state is left.
_TIMES: dict[RoundState, str] = {
    "round.gathering": "gathered_s",
    "round.training": "trained_s",
    "round.publishing": "published_s",
    "round.submitting": "submitted_s",
}
_ORDER: tuple[RoundState, ...] = (*_TIMES, "round.settling")


class StageFollower:
    """Follows the fold and records when each stage's parts began and ended."""

    def __init__(self) -> None:
        self.restart(FoldBase())

    def restart(self, base: FoldBase) -> None:
        self._rows: deque[StageRow] = deque(maxlen=STAGES_KEPT)
        self._skips: deque[SkipRow] = deque(maxlen=SKIPS_KEPT)
        self._entered_at = 0.0

    def apply(self, applied: AppliedEvent) -> None:
        before, after, event = applied.before, applied.after, applied.event
        if isinstance(event, RoundsSkipped):
            self._skips.append(SkipRow(event.first, event.last, event.cause, applied.seq, applied.at))
        if isinstance(event, StageTrained):
            self._record_result(event)
        if _current_stage(before) != _current_stage(after):
            self._switch_stage(before, after, applied)
        elif before.chart != after.chart and self._rows and after.work is not None:
            self._record_part_end(before.chart, after.chart, applied.at)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode((list(self._rows), list(self._skips), self._entered_at))

    def restore(self, kept: bytes | memoryview) -> None:
        rows, skips, entered_at = msgspec.msgpack.decode(kept, type=tuple[list[StageRow], list[SkipRow], float])
        self._rows, self._skips = deque(rows, maxlen=STAGES_KEPT), deque(skips, maxlen=SKIPS_KEPT)
        self._entered_at = entered_at

    def view(self) -> StagesView:
        """The stages as an answer of the HTTP interface."""
        trained = [row for row in self._rows if row.reward is not None][-STAGES_COUNTED:]
        told = (
            f"at round {row.round} stage {row.stage} {describe_masked_peer(each)}"
            for row in reversed(trained)
            for each in row.set_aside  # those with a marker come first
            if each.text
        )
        return StagesView(
            tuple(self._rows),
            tuple(self._skips),
            describe_masked_counts([dict(count_set_aside(row.set_aside)) for row in trained]),
            redact_and_cut(next(told, ""), TEXT_CHARACTERS_MAX),
        )

    def find_join_before(self, round_: int, count: int) -> int | None:
        """The event with which the node joined the `count`-th last stage that it trained before a round; None if fewer
        are known."""
        trained = [row.first_seq for row in self._rows if row.round < round_ and row.reward is not None]
        return trained[-count] if len(trained) >= count else None

    def _switch_stage(self, before: State, after: State, applied: AppliedEvent) -> None:
        """Close the row of the stage that was left, and open one for the stage that was joined, if any."""
        if before.work is not None and self._rows and self._rows[-1].outcome == "open":
            if after.chart == "round.settling" or before.chart == "round.settling":
                self._record_part_end(before.chart, "round.settling", applied.at)
            else:
                self._close_last_row()
        if after.work is not None:
            work = after.work
            self._entered_at = applied.at
            self._rows.append(StageRow(work.round, work.stage, applied.seq, applied.at))
            if after.chart in _ORDER[1:]:
                self._record_part_end("round.gathering", after.chart, applied.at)

    def _close_last_row(self) -> None:
        """Close the last row: a trained stage is done, even if its report is still on its way."""
        self._rows[-1] = replace(self._rows[-1], outcome="abandoned" if self._rows[-1].reward is None else "done")

    def _record_part_end(self, left: RoundState, entered: RoundState, at: float) -> None:
        """Record how long the part lasted that the node left; parts that were skipped took no time."""
        if left not in _ORDER or entered not in _ORDER or _ORDER.index(entered) < _ORDER.index(left):
            if entered == "waiting" and self._rows[-1].outcome == "open":
                self._close_last_row()
            self._entered_at = at if entered in _ORDER else self._entered_at
            return
        row, took_s = self._rows[-1], max(0.0, at - self._entered_at)
        for part in _ORDER[_ORDER.index(left) : _ORDER.index(entered)]:
            times: dict[str, Any] = {_TIMES[part]: took_s}
            row = replace(row, **times)
            took_s = 0.0
        given_up = entered == "round.settling" and row.reward is None and left == "round.training"
        self._rows[-1] = replace(row, trained_s=None) if given_up else row
        if entered == "round.settling":
            self._close_last_row()
        self._entered_at = at

    def _record_result(self, event: StageTrained) -> None:
        for index in range(len(self._rows) - 1, max(-1, len(self._rows) - 4), -1):
            row = self._rows[index]
            if (row.round, row.stage) == (event.round, event.stage):
                outcome = "done" if row.outcome == "abandoned" else row.outcome  # given up, but trained anyway
                self._rows[index] = replace(
                    row, reward=event.reward, held_out=event.held_out, outcome=outcome, set_aside=event.set_aside
                )
                return


def _current_stage(state: State) -> tuple[int, int] | None:
    return (state.work.round, state.work.stage) if state.work else None


KeptTrained = tuple[list[tuple[TrainedStage, tuple[Skill, ...]]], int, Trainer, float | None]
STAGES_MAX = 1024  # kept; beyond that every second one of the older half is dropped


class TrainedStages:
    """Follows the fold and keeps the results of each trained stage. `trainer`: the last one that was ready, even if it
    is down now."""

    def __init__(self) -> None:
        self.restart(FoldBase())

    def restart(self, base: FoldBase) -> None:
        self._stages: dict[tuple[int, int], tuple[TrainedStage, tuple[Skill, ...]]] = {}
        self._total = 0
        self.trainer = base.state.trainer
        first = base.state.first_accuracy
        self._before = finite_or_none(first.held_out) if first is not None and first.untrained else None

    def apply(self, applied: AppliedEvent) -> None:
        event = applied.event
        if isinstance(event, TrainerReady):
            self.trainer = applied.after.trainer
        if not isinstance(event, StageTrained):
            return
        if event.held_out_before is not None:
            self._before = finite_or_none(event.held_out_before)
        place = (event.round, event.stage)
        self._total += place not in self._stages
        row = TrainedStage(
            event.round,
            event.stage,
            applied.seq,
            finite_or_none(applied.at) or 0.0,
            finite_or_none(event.reward),
            None if event.held_out is None else finite_or_none(event.held_out),
            event.steps,
            event.tokens,
            finite_or_none(event.seconds) or 0.0,
            event.peer_groups,
            sum(count for _, count in event.rejected),
        )
        self._stages[place] = row, event.skills
        if len(self._stages) > STAGES_MAX:
            kept = list(self._stages.items())
            half = len(kept) // 2
            self._stages = dict((*kept[:half:2], *kept[half:]))

    def encode(self) -> bytes:
        stages = list(self._stages.values())
        return msgspec.msgpack.encode((stages, self._total, self.trainer, self._before))

    def restore(self, kept: bytes | memoryview) -> None:
        read = msgspec.msgpack.decode(kept, type=KeptTrained)
        stages, self._total, self.trainer, self._before = read
        self._stages = {(row.round, row.stage): (row, skills) for row, skills in stages}

    def view(self) -> TrainingView:
        """The trained stages as an answer of the HTTP interface."""
        stages = sorted(self._stages.items(), key=itemgetter(0))
        curves = curves_of((*place, skills) for place, (_, skills) in stages)
        most = finite_or_none(self.trainer.reward_max) if self.trainer.reward_max is not None else None
        return TrainingView(tuple(row for _, (row, _) in stages), self._total, self._before, curves, most)


EVENTS_MAX = 1_000_000  # nine bytes each; of a longer log the newest are kept
ROUNDS_MAX = 65_536
DROP_SHARE = 8  # at the limit one eighth is dropped at once
LANES: tuple[Lane, ...] = ("rounds", "network", "training", "chain", "workers", "stops")
WARNS = 8  # bit of a code: the event is a warning

TYPES: dict[str, str] = dict(LANE_OF)
_CODES = {kind: LANES.index(each.lane) for kind, each in WORDS.items()}


class Timeline:
    """Follows the fold and counts events by lane and time."""

    def __init__(self) -> None:
        self.restart(FoldBase())

    def restart(self, base: FoldBase) -> None:
        self._first = base.seq
        self._times = array("d")  # never decreasing
        self._codes = bytearray()  # index of the lane, and the bit WARNS
        self._rounds: list[RoundMark] = []

    def apply(self, applied: AppliedEvent) -> None:
        at = max(applied.at, self._times[-1]) if self._times else applied.at
        self._times.append(at)
        # Routine events are frequent and never warnings, so they are not described.
        warns = tag_of(applied.event) not in ROUTINE and describe(applied).level in WARNINGS
        self._codes.append(_CODES[type(applied.event)] | (WARNS if warns else 0))
        round_ = getattr(applied.event, "round", None)
        if applied.after.clock is not None and isinstance(round_, int):
            round_ = min(round_, applied.after.clock.round)
            if round_ > (self._rounds[-1].round if self._rounds else -1):
                self._rounds.append(RoundMark(round_, applied.seq, at))
        self._drop_oldest()

    def encode(self) -> bytes:
        return msgspec.msgpack.encode((self._first, self._times.tolist(), bytes(self._codes), self._rounds))

    def restore(self, kept: bytes | memoryview) -> None:
        read = msgspec.msgpack.decode(kept, type=tuple[int, list[float], bytes, list[RoundMark]])
        self._first, times, codes, self._rounds = read
        self._times, self._codes = array("d", times), bytearray(codes)

    def _drop_oldest(self) -> None:
        if len(self._times) > EVENTS_MAX:
            count = EVENTS_MAX // DROP_SHARE
            del self._times[:count], self._codes[:count]
            self._first += count
        if len(self._rounds) > ROUNDS_MAX:
            del self._rounds[: ROUNDS_MAX // DROP_SHARE]

    def find_round_opening(self, round_: int) -> int | None:
        """The event with which the swarm was first seen at a round or later; None if it has not got that far."""
        index = bisect_left(self._rounds, round_, key=lambda mark: mark.round)
        return self._rounds[index].seq if index < len(self._rounds) else None

    def has_forgotten_round(self, round_: int) -> bool:
        """Whether a round is older than all rounds whose first event is known."""
        return bool(self._rounds) and round_ < self._rounds[0].round

    def overview(self, since: float | None, until: float | None, buckets: int, begin: int) -> Overview:
        """Count the events between two times, in equally long buckets.

        Args:
            since, until: POSIX seconds; None for the beginning and the end of the log.
            buckets: 1 to `OVERVIEW_BUCKETS_MAX`.
            begin: first event that the log still has.
        """
        times, codes = self._times, self._codes
        gone = min(max(0, begin - self._first), len(times))
        since = since if since is not None else (times[gone] if gone < len(times) else 0.0)
        until = until if until is not None else (times[-1] if len(times) else since)
        until = max(since, until)
        buckets = min(max(1, buckets), OVERVIEW_BUCKETS_MAX)
        width = (until - since) / buckets
        edges = [bisect_left(times, since + width * index, lo=gone) for index in range(buckets)]
        edges.append(bisect_right(times, until, lo=gone))
        spans = list(pairwise(edges))
        counts = tuple(
            tuple(codes.count(lane, a, b) + codes.count(lane | WARNS, a, b) for a, b in spans)
            for lane in range(len(LANES))
        )
        warnings = tuple(sum(codes.count(lane | WARNS, a, b) for lane in range(len(LANES))) for a, b in spans)
        firsts = tuple(self._first + edge for edge in edges)
        end = self._first + len(times)
        marks = self._marks(since, until, begin)
        return Overview(self._first + gone, end, since, until, LANES, TYPES, firsts, counts, warnings, marks)

    def _marks(self, since: float, until: float, begin: int) -> tuple[RoundMark, ...]:
        low = bisect_left(self._rounds, since, key=lambda mark: mark.at)
        high = bisect_right(self._rounds, until, key=lambda mark: mark.at)
        shown = [mark for mark in self._rounds[low:high] if mark.seq >= begin]
        every = -(-len(shown) // OVERVIEW_ROUNDS_MAX) or 1
        return tuple(shown[::every])
