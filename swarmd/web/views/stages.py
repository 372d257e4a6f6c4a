"""What a node did of each stage, and which rounds it skipped: followed through the fold."""

from __future__ import annotations

from collections import deque

import msgspec
from msgspec.structs import replace

from swarmd.core.applied import Applied
from swarmd.core.chart_types import RoundState
from swarmd.core.events import RoundsSkipped, StageTrained
from swarmd.core.state import State
from swarmd.eventlog.fold import Base
from swarmd.web.shapes import SkipRow, StageRow, StagesView

STAGES_KEPT = 500
SKIPS_KEPT = 500
# The parts of a stage; that one was left says that it was done.
_ORDER: tuple[RoundState, ...] = (
    "round.gathering",
    "round.training",
    "round.publishing",
    "round.submitting",
    "round.settling",
)


class _KeptStages(msgspec.Struct, array_like=True):
    """A `StageFollower` as it is kept."""

    rows: list[StageRow]
    skips: list[SkipRow]
    entered_at: float


class StageFollower:
    """Follows the fold and keeps when each stage's parts began and ended."""

    def __init__(self) -> None:
        self.begin(Base())

    def begin(self, base: Base) -> None:
        self._rows: deque[StageRow] = deque(maxlen=STAGES_KEPT)
        self._skips: deque[SkipRow] = deque(maxlen=SKIPS_KEPT)
        self._entered_at = 0.0

    def apply(self, applied: Applied) -> None:
        before, after, event = applied.before, applied.after, applied.event
        if isinstance(event, RoundsSkipped):
            self._skips.append(SkipRow(event.first, event.last, event.cause, applied.seq, applied.at))
        if isinstance(event, StageTrained):
            self._note_result(event)
        if _place(before) != _place(after):
            self._change(before, after, applied)
        elif before.chart != after.chart and self._rows and after.work is not None:
            self._advance(before.chart, after.chart, applied.at)

    def keep(self) -> bytes:
        return msgspec.msgpack.encode(_KeptStages(list(self._rows), list(self._skips), self._entered_at))

    def resume(self, kept: bytes | memoryview) -> None:
        read = msgspec.msgpack.decode(kept, type=_KeptStages)
        self._rows = deque(read.rows, maxlen=STAGES_KEPT)
        self._skips = deque(read.skips, maxlen=SKIPS_KEPT)
        self._entered_at = read.entered_at

    def view(self) -> StagesView:
        """The stages as the HTTP interface answers them."""
        return StagesView(tuple(self._rows), tuple(self._skips))

    def joined_before(self, round_: int, count: int) -> int | None:
        """The event with which the node joined the `count`-th last stage that it trained before a round; None where
        fewer are known."""
        trained = [row.first_seq for row in self._rows if row.round < round_ and row.reward is not None]
        return trained[-count] if len(trained) >= count else None

    def _change(self, before: State, after: State, applied: Applied) -> None:
        """The stage in hand is another one now, or none."""
        if before.work is not None and self._rows and self._rows[-1].outcome == "open":
            if after.chart == "round.settling" or before.chart == "round.settling":
                self._advance(before.chart, "round.settling", applied.at)
            else:
                self._end()
        if after.work is not None:
            work = after.work
            self._entered_at = applied.at
            self._rows.append(StageRow(work.round, work.stage, applied.seq, applied.at))
            if after.chart in _ORDER[1:]:
                self._advance("round.gathering", after.chart, applied.at)

    def _end(self) -> None:
        """The node has left the stage: it is done where it was trained, though its report may still be on its way."""
        self._rows[-1] = replace(self._rows[-1], outcome="abandoned" if self._rows[-1].reward is None else "done")

    def _advance(self, left: RoundState, entered: RoundState, at: float) -> None:
        """Note how long the part took that was left; every part in between took no time of its own."""
        if left not in _ORDER or entered not in _ORDER or _ORDER.index(entered) < _ORDER.index(left):
            if entered == "waiting" and self._rows[-1].outcome == "open":
                self._end()
            self._entered_at = at if entered in _ORDER else self._entered_at
            return
        row, took_s = self._rows[-1], max(0.0, at - self._entered_at)
        for part in _ORDER[_ORDER.index(left) : _ORDER.index(entered)]:
            row = _timed(row, part, took_s)
            took_s = 0.0
        given_up = entered == "round.settling" and row.reward is None and left == "round.training"
        self._rows[-1] = replace(row, trained_s=None) if given_up else row
        if entered == "round.settling":
            self._end()
        self._entered_at = at

    def _note_result(self, event: StageTrained) -> None:
        for index in range(len(self._rows) - 1, max(-1, len(self._rows) - 4), -1):
            row = self._rows[index]
            if (row.round, row.stage) == (event.round, event.stage):
                outcome = "done" if row.outcome == "abandoned" else row.outcome  # given up, and trained all the same
                self._rows[index] = replace(
                    row, reward=event.reward, held_out=event.held_out, outcome=outcome, set_aside=event.set_aside
                )
                return


def _place(state: State) -> tuple[int, int] | None:
    return (state.work.round, state.work.stage) if state.work else None


def _timed(row: StageRow, part: RoundState, took_s: float) -> StageRow:
    """The row with the time that a part took."""
    match part:
        case "round.gathering":
            return replace(row, gathered_s=took_s)
        case "round.training":
            return replace(row, trained_s=took_s)
        case "round.publishing":
            return replace(row, published_s=took_s)
        case "round.submitting":
            return replace(row, submitted_s=took_s)
        case _:
            return row
