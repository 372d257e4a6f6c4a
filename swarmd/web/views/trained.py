"""What each trained stage gave: followed through the fold, in bounded memory."""

from __future__ import annotations

import msgspec

from swarmd.core.applied import Applied
from swarmd.core.events import StageTrained, TrainerReady
from swarmd.core.state import Trainer
from swarmd.core.values import Skill
from swarmd.eventlog.fold import Base
from swarmd.results.history import Measured, curves_of
from swarmd.web.shapes import TrainedStage, TrainingView
from swarmd.web.views.moments import number

STAGES_MAX = 1024  # kept; beyond, of the older half every second one goes


class _KeptTrained(msgspec.Struct, array_like=True):
    """`TrainedStages` as they are kept."""

    stages: list[TrainedStage]
    skills: list[tuple[Skill, ...]]
    total: int
    trainer: Trainer
    before: float | None


class TrainedStages:
    """Follows the fold and keeps what each trained stage gave.

    Attributes:
        trainer: the last one that was ready, be it down now.
    """

    def __init__(self) -> None:
        self.begin(Base())

    def begin(self, base: Base) -> None:
        self._stages: dict[tuple[int, int], TrainedStage] = {}
        self._skills: dict[tuple[int, int], tuple[Skill, ...]] = {}
        self._total = 0
        self.trainer = base.state.trainer
        self._before: float | None = None

    def apply(self, applied: Applied) -> None:
        event = applied.event
        if isinstance(event, TrainerReady):
            self.trainer = applied.after.trainer
        if not isinstance(event, StageTrained):
            return
        if event.held_out_before is not None:
            self._before = number(event.held_out_before)
        place = (event.round, event.stage)
        self._total += place not in self._stages
        self._stages[place] = TrainedStage(
            event.round,
            event.stage,
            applied.seq,
            number(applied.at) or 0.0,
            number(event.reward),
            None if event.held_out is None else number(event.held_out),
            event.steps,
            event.tokens,
            number(event.seconds) or 0.0,
            event.peer_groups,
            sum(count for _, count in event.rejected),
        )
        self._skills[place] = event.skills
        if len(self._stages) > STAGES_MAX:
            self._thin()

    def keep(self) -> bytes:
        stages, skills = list(self._stages.values()), list(self._skills.values())
        return msgspec.msgpack.encode(_KeptTrained(stages, skills, self._total, self.trainer, self._before))

    def resume(self, kept: bytes | memoryview) -> None:
        read = msgspec.msgpack.decode(kept, type=_KeptTrained)
        places = [(row.round, row.stage) for row in read.stages]
        self._stages = dict(zip(places, read.stages, strict=True))
        self._skills = dict(zip(places, read.skills, strict=True))
        self._total, self.trainer, self._before = read.total, read.trainer, read.before

    def _thin(self) -> None:
        rows = list(self._stages.values())
        half = len(rows) // 2
        self._stages = {(row.round, row.stage): row for row in (*rows[:half:2], *rows[half:])}
        self._skills = {place: self._skills[place] for place in self._stages}

    def view(self) -> TrainingView:
        """The trained stages as the HTTP interface answers them."""
        rows = sorted(self._stages.values(), key=lambda row: (row.round, row.stage))
        curves = curves_of([Measured(*place, skills) for place, skills in sorted(self._skills.items())])
        skills = tuple(msgspec.structs.replace(curve, points=tuple(curve.points)) for curve in curves)
        return TrainingView(tuple(rows), self._total, self._before, skills)
