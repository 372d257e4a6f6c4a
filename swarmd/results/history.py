"""A node's training history from its event log: stages, rewards, accuracy, skipped rounds, restarts, pushes.

The log is read without a lock, whether or not the daemon runs, and no state is folded. The history of a long log is
cached beside it (`swarmd.eventlog.summaries`), so that the next read covers only what was added.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from swarmd.animals import animal_name
from swarmd.bounds import clamp_integer
from swarmd.core import events
from swarmd.core.state import SkippedRounds
from swarmd.core.values import SKILLS_MAX, Skill
from swarmd.errors import NotFoundError
from swarmd.eventlog.fold import FoldBase
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.segment import find_segment_directory
from swarmd.eventlog.summaries import SummaryKind, update_summary


class SkillPoint(msgspec.Struct, frozen=True, gc=False):
    """One measurement of a task; fields as in `Skill`."""

    round: int
    stage: int
    held_out: float
    best: float
    fallen: bool
    weight: float  # how often the task is drawn from then on; 1: normal


class SkillCurve(msgspec.Struct, frozen=True):
    """The measurements of one task, in order."""

    task: str
    points: tuple[SkillPoint, ...]
    fallen_since: int | None = None  # round; None if accuracy has not fallen
    drawn_more_since: int | None = None  # round; None if drawn normally


def curves_of(stages: Iterable[tuple[int, int, Sequence[Skill]]]) -> tuple[SkillCurve, ...]:
    """Accuracy curves, sorted by task; of more than `SKILLS_MAX` tasks, the most recently measured.

    `stages`: in order, as (round, stage, measurements after it).
    """
    points: dict[str, list[SkillPoint]] = defaultdict(list)
    for round, stage, skills in stages:
        for skill in skills:
            point = SkillPoint(round, stage, skill.held_out, skill.best, skill.fallen, skill.weight)
            points[skill.task].append(point)
    latest = sorted(points, key=lambda task: (points[task][-1].round, points[task][-1].stage))[-SKILLS_MAX:]
    curves = []
    for task in sorted(latest):
        fallen = _find_run_start((point.round, point.fallen) for point in reversed(points[task]))
        drawn_more = _find_run_start((point.round, point.weight > 1) for point in reversed(points[task]))
        curves.append(SkillCurve(task, tuple(points[task]), fallen, drawn_more))
    return tuple(curves)


def _find_run_start(newest_first: Iterable[tuple[int, bool]]) -> int | None:
    """First round of the latest unbroken run of True; None if the newest value is False."""
    since = None
    for round, holds in newest_first:
        if not holds:
            break
        since = round
    return since


def skills_summary(curves: Sequence[SkillCurve], tasks_max: int) -> str:
    """Summarize the newest accuracy of at most `tasks_max` tasks, starting with those drawn more often, and since
    when."""
    ordered = sorted(curves, key=lambda curve: curve.drawn_more_since is None)
    told = [f"{curve.task} {curve.points[-1].held_out:.2f}{_describe_decline(curve)}" for curve in ordered[:tasks_max]]
    return ", ".join([*told, *[f"{len(curves) - tasks_max} more"] * (len(curves) > tasks_max)])


def _describe_decline(curve: SkillCurve) -> str:
    if curve.drawn_more_since is not None:
        return f" (drawn {curve.points[-1].weight:.1f} times as often, since round {curve.drawn_more_since})"
    return f" (fallen since round {curve.fallen_since})" if curve.fallen_since is not None else ""


KIND = SummaryKind("history", 5)


class StageResult(msgspec.Struct, frozen=True, gc=False):
    """One trained stage; fields as in `StageTrained`. `at` is POSIX seconds."""

    round: int
    stage: int
    at: float
    reward: float
    held_out: float | None
    steps: int
    tokens: int
    seconds: float
    peer_groups: int
    refused: int  # peers' groups refused for any reason
    skills: tuple[Skill, ...] = ()  # held-out accuracy by task, where measured


class Restart(msgspec.Struct, frozen=True):
    """A start of the node after its first, and the round open at the time."""

    round: int
    at: float


class RoundResult(msgspec.Struct, frozen=True, gc=False):
    """Aggregated stages of a round."""

    round: int
    stages: int
    reward: float  # mean over the stages
    held_out: float | None  # last measurement in the round
    seconds: float
    tokens: int
    peer_groups: int


class TrainingHistory(msgspec.Struct, frozen=True, dict=True):
    """The history in one log. `held_out_before`: accuracy before the node's very first step."""

    peer: str
    name: str = ""  # as configured
    swarm: str = ""
    model: str = ""
    device: str = ""
    parameters: int = 0
    stages: tuple[StageResult, ...] = ()  # each round and stage once, in order
    skips: tuple[SkippedRounds, ...] = ()
    restarts: tuple[Restart, ...] = ()
    pushes: tuple[events.ModelPushed, ...] = ()
    trainer_exits: int = 0  # unplanned
    held_out_before: float | None = None
    from_seq: int = 0  # first event of the log; above 0 if its beginning was removed

    @property
    def label(self) -> str:
        """The configured name, or else the one derived from the peer id."""
        return self.name or animal_name(self.peer)

    @cached_property
    def rounds(self) -> tuple[RoundResult, ...]:
        """The trained rounds, in order."""
        by_round = groupby(self.stages, attrgetter("round"))
        return tuple(_sum_up(round, list(stages)) for round, stages in by_round)

    @cached_property
    def skills(self) -> tuple[SkillCurve, ...]:
        """Held-out accuracy by task."""
        return curves_of((each.round, each.stage, each.skills) for each in self.stages)

    @property
    def rounds_skipped(self) -> int:
        return sum(skip.last - skip.first + 1 for skip in self.skips)


def _sum_up(round: int, stages: Sequence[StageResult]) -> RoundResult:
    return RoundResult(
        round,
        len(stages),
        sum(stage.reward for stage in stages) / len(stages),
        next((stage.held_out for stage in reversed(stages) if stage.held_out is not None), None),
        sum(stage.seconds for stage in stages),
        sum(stage.tokens for stage in stages),
        sum(stage.peer_groups for stage in stages),
    )


def read_history(directory: Path, trained: events.StageTrained | None = None) -> TrainingHistory:
    """Read the history from a log.

    Args:
        directory: a data directory, or its events directory.
        trained: a stage that may not be in the log yet.

    Raises:
        NotFoundError: there is no log.
        LogDamaged, LogForeign, OtherVersion: it cannot be read.
    """
    gathering = HistorySummary()
    update_summary(find_segment_directory(directory), KIND, gathering)
    return gathering.make_history(trained)


class PartialHistory(msgspec.Struct, array_like=True):
    """The summary's on-disk form; `at`: time of the last event."""

    at: float = 0.0
    round: int = -1  # newest known round
    first_seq: int = -1
    stopping: bool = False
    fields: TrainingHistory = TrainingHistory("")  # all fields but those below
    stages: dict[tuple[int, int], StageResult] = {}  # (round, stage) → last report
    skips: list[SkippedRounds] = []
    restarts: list[Restart] = []
    pushes: list[events.ModelPushed] = []


class HistorySummary:
    """Builds a history from a log's events; a `swarmd.eventlog.summaries.CommitSummary`."""

    def __init__(self) -> None:
        self._kept = PartialHistory()

    def restart(self, base: FoldBase) -> None:
        state = base.state
        first = state.first_accuracy
        before = first.held_out if first is not None and first.untrained else None
        fields = TrainingHistory("", model=state.trainer.model, device=state.trainer.device, held_out_before=before)
        self._kept = PartialHistory(round=state.clock.round if state.clock else -1, fields=fields)
        if state.settings is not None:
            self._set_fields(peer=state.settings.peer, name=state.settings.name, swarm=state.settings.swarm)

    def restore(self, kept: bytes | memoryview) -> None:
        self._kept = msgspec.msgpack.decode(kept, type=PartialHistory)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self._kept)

    def add_commit(self, commit: Commit) -> None:
        for envelope in commit.envelopes():
            self.apply_event(envelope)

    def apply_event(self, envelope: events.Envelope) -> None:
        kept, event = self._kept, envelope.event
        kept.at = envelope.at
        if kept.first_seq < 0:
            kept.first_seq = envelope.seq
        if isinstance(event, events.StageTrained):
            self._apply_stage(event)
        elif isinstance(event, events.RoundsSkipped):
            kept.skips.append(SkippedRounds(event.first, event.last, event.cause, kept.at))
        elif isinstance(event, events.RoundAnnounced):
            kept.round = max(kept.round, event.round)
        elif isinstance(event, events.ModelPushed):
            kept.pushes.append(event)
        elif isinstance(event, events.StopRequested):
            kept.stopping = True
        elif isinstance(event, events.NodeStarted | events.TrainerReady | events.WorkerExited):
            self._apply_lifecycle(event)

    def _apply_lifecycle(self, event: events.NodeStarted | events.TrainerReady | events.WorkerExited) -> None:
        if isinstance(event, events.NodeStarted):
            if self._kept.fields.peer:
                self._kept.restarts.append(Restart(max(self._kept.round, 0), self._kept.at))
            self._kept.stopping = False
            self._set_fields(peer=event.settings.peer, name=event.settings.name, swarm=event.settings.swarm)
        elif isinstance(event, events.TrainerReady):
            self._set_fields(model=event.model, device=event.device, parameters=event.parameters)
        elif event.worker == "trainer" and not event.planned and not self._kept.stopping:
            self._set_fields(trainer_exits=self._kept.fields.trainer_exits + 1)

    def _apply_stage(self, event: events.StageTrained) -> None:
        self._kept.round = max(self._kept.round, event.round)
        if event.held_out_before is not None:
            self._set_fields(held_out_before=event.held_out_before)
        self._kept.stages[event.round, event.stage] = StageResult(
            event.round,
            event.stage,
            self._kept.at,
            event.reward,
            event.held_out,
            event.steps,
            event.tokens,
            event.seconds,
            event.peer_groups,
            clamp_integer(sum(count for _, count in event.rejected)),
            event.skills,
        )

    def _set_fields(self, **fields: Any) -> None:
        self._kept.fields = msgspec.structs.replace(self._kept.fields, **fields)

    def make_history(self, trained: events.StageTrained | None = None) -> TrainingHistory:
        """The history so far, plus `trained`, which may not be in the log yet. Raises NotFoundError."""
        if trained is not None:
            self._apply_stage(trained)
        kept = self._kept
        if not kept.fields.peer:
            raise NotFoundError("the log holds no start of a node", "Its beginning was removed; name a whole log")
        return msgspec.structs.replace(
            kept.fields,
            stages=tuple(kept.stages[place] for place in sorted(kept.stages)),
            skips=tuple(kept.skips),
            restarts=tuple(kept.restarts),
            pushes=tuple(kept.pushes),
            from_seq=kept.first_seq,
        )
