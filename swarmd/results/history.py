"""What a node's event log tells of its training: stages, rewards, accuracy, skipped rounds, restarts, pushes.

Reads the log without a lock, with the daemon up or down, and folds nothing. What a long log tells is kept beside it
(`swarmd.eventlog.summaries`), so that the next reading is of what came since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from heapq import merge
from itertools import groupby
from operator import attrgetter, eq
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

import msgspec

from swarmd.animals import animal_name
from swarmd.bounds import fit
from swarmd.core.events import (
    Envelope,
    ModelPushed,
    NodeStarted,
    RoundAnnounced,
    RoundsSkipped,
    StageTrained,
    StopRequested,
    TrainerReady,
    WorkerExited,
)
from swarmd.core.values import SKILLS_MAX, Skill, SkipCause
from swarmd.errors import NotFoundError
from swarmd.eventlog.fold import Base
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.segment import find_log
from swarmd.eventlog.summaries import SummaryKind, gather

BLOCK_ROWS = 1024  # that are packed, and unpacked, together

Packed = memoryview  # into what was read, where rows were kept
Row = TypeVar("Row", bound=msgspec.Struct)


class Rows(Sequence[Row], Generic[Row]):
    """Structs of one kind, in the order in which they were appended.

    Args:
        kind: their class; msgpack can hold its fields.
        rows: the first ones.
    """

    __hash__ = None  # type: ignore[assignment]  # rows are appended

    def __init__(self, kind: type[Row], rows: Iterable[Row] = ()) -> None:
        columns = tuple(list.__class_getitem__(field.type) for field in msgspec.structs.fields(kind))
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple.__class_getitem__(columns))
        self._kind = kind
        self._blocks: list[Packed] = []  # of `BLOCK_ROWS` each
        self._last: list[Row] = []  # fewer than that
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Add it behind the others. Raises OverflowError at a number that msgpack cannot hold."""
        self._last.append(row)
        if len(self._last) == BLOCK_ROWS:
            self._blocks.append(_pack(self._last))
            self._last = []

    def keep(self) -> list[Packed]:
        """All of them, packed."""
        return [*self._blocks, *([_pack(self._last)] if self._last else [])]

    def resume(self, kept: Sequence[Packed]) -> None:
        """Take what was kept in place of one's own. Raises msgspec.DecodeError where these are no rows of this kind."""
        self._blocks, self._last = [], []
        for block in kept:
            rows = self._unpack(block)
            if self._last or not 0 < len(rows) <= BLOCK_ROWS:
                raise msgspec.ValidationError("a block of rows that is not full before others, or overfull")
            if len(rows) == BLOCK_ROWS:
                self._blocks.append(block)
            else:
                self._last = rows

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK_ROWS + len(self._last)

    def __iter__(self) -> Iterator[Row]:
        for block in self._blocks:
            yield from self._unpack(block)
        yield from self._last

    def __reversed__(self) -> Iterator[Row]:
        yield from reversed(self._last)
        for block in reversed(self._blocks):
            yield from reversed(self._unpack(block))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        block, place = divmod(range(len(self))[index], BLOCK_ROWS)
        return (self._unpack(self._blocks[block]) if block < len(self._blocks) else self._last)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    def _unpack(self, block: Packed) -> list[Row]:
        """Raises msgspec.DecodeError."""
        columns = self._decoder.decode(block)
        if len(set(map(len, columns))) != 1:
            raise msgspec.ValidationError("columns of several lengths")
        return list(map(self._kind, *columns))


def _pack(rows: Sequence[msgspec.Struct]) -> Packed:
    return memoryview(msgspec.msgpack.encode(list(zip(*map(msgspec.structs.astuple, rows), strict=True))))


class Stage(Protocol):
    """A trained stage: a `Measured`, or a `swarmd.results.history.StageResult`."""

    @property
    def round(self) -> int: ...
    @property
    def stage(self) -> int: ...
    @property
    def skills(self) -> Sequence[Skill]: ...


class Measured(NamedTuple):
    """What was measured after a stage."""

    round: int
    stage: int
    skills: Sequence[Skill]


class SkillPoint(msgspec.Struct, frozen=True, gc=False):
    """One measurement of a task; fields as in `Skill`."""

    round: int
    stage: int
    held_out: float
    best: float
    fallen: bool
    weight: float  # how often it was drawn from there on; 1: as ever


class SkillCurve(msgspec.Struct, frozen=True):
    """The measurements of one task, in their order."""

    task: str
    points: Sequence[SkillPoint]
    fallen_since: int | None = None  # round; None where it has not fallen now
    drawn_more_since: int | None = None  # round; None where it is drawn as ever now


def curves_of(stages: Sequence[Stage]) -> tuple[SkillCurve, ...]:
    """The curves, each with `Rows`, of `SKILLS_MAX` tasks at most, those measured last before others, by name.

    Args:
        stages: in their order.
    """
    points = {task: Rows(SkillPoint) for task in _latest_tasks(stages)}
    for each in stages:
        for skill in each.skills:
            if skill.task in points:
                told = (skill.held_out, skill.best, skill.fallen, skill.weight)
                points[skill.task].append(SkillPoint(each.round, each.stage, *told))
    return tuple(_curve(task, found) for task, found in sorted(points.items()))


def _latest_tasks(stages: Sequence[Stage]) -> list[str]:
    tasks: dict[str, None] = {}
    for each in reversed(stages):
        if each.skills:
            tasks |= dict.fromkeys(skill.task for skill in each.skills)
        if len(tasks) >= SKILLS_MAX:
            break
    return list(tasks)[:SKILLS_MAX]


def _curve(task: str, points: Rows[SkillPoint]) -> SkillCurve:
    fallen = _since((point.round, point.fallen) for point in reversed(points))
    return SkillCurve(task, points, fallen, _since((each.round, each.weight > 1) for each in reversed(points)))


def _since(newest_first: Iterable[tuple[int, bool]]) -> int | None:
    """The first round of those without a gap up to the newest in which it holds; None where it does not there."""
    since = None
    for round, holds in newest_first:
        if not holds:
            break
        since = round
    return since


def skills_summary(curves: Sequence[SkillCurve], tasks_max: int) -> str:
    """The newest accuracy of each task, and what is drawn more since when; empty where nothing is known.

    Args:
        tasks_max: tasks told of; of more, those that are drawn more come first.
    """
    ordered = sorted(curves, key=lambda curve: curve.drawn_more_since is None)
    told = [f"{curve.task} {curve.points[-1].held_out:.2f}{_mark(curve)}" for curve in ordered[:tasks_max]]
    return ", ".join([*told, *[f"{len(curves) - tasks_max} more"] * (len(curves) > tasks_max)])


def _mark(curve: SkillCurve) -> str:
    if curve.drawn_more_since is not None:
        return f" (drawn {curve.points[-1].weight:.1f} times as often, since round {curve.drawn_more_since})"
    return f" (fallen since round {curve.fallen_since})" if curve.fallen_since is not None else ""


KIND = SummaryKind("history", 4)
PLACE = attrgetter("round", "stage")
NOWHERE = (-1, -1)  # before every stage


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
    refused: int  # peers' groups that were refused, whatever the reason
    skills: tuple[Skill, ...] = ()  # held-out accuracy by task, where measured


class SkippedRounds(msgspec.Struct, frozen=True, gc=False):
    first: int
    last: int
    cause: SkipCause
    at: float


class Restart(msgspec.Struct, frozen=True):
    """A life of the node after its first, and the round that was open when it began."""

    round: int
    at: float


class RoundResult(msgspec.Struct, frozen=True, gc=False):
    """What the stages of a round gave together."""

    round: int
    stages: int
    reward: float  # mean of the stages'
    held_out: float | None  # the last that was measured in it
    seconds: float
    tokens: int
    peer_groups: int


class TrainingHistory(msgspec.Struct, frozen=True, dict=True):
    """What one log tells. `held_out_before` is the accuracy before the node's very first step."""

    peer: str
    name: str = ""  # as configured
    swarm: str = ""
    model: str = ""
    device: str = ""
    parameters: int = 0
    stages: Sequence[StageResult] = ()  # each round and stage once, in their order; of a log, `Rows`
    skips: tuple[SkippedRounds, ...] = ()
    restarts: tuple[Restart, ...] = ()
    pushes: tuple[ModelPushed, ...] = ()
    trainer_exits: int = 0  # unplanned
    held_out_before: float | None = None
    from_seq: int = 0  # where the log begins: above 0 when its oldest part was removed

    @property
    def label(self) -> str:
        """What to call the node: its configured name, or the one made from its peer id."""
        return self.name or animal_name(self.peer)

    @cached_property
    def rounds(self) -> Rows[RoundResult]:
        """The trained rounds in their order."""
        by_round = groupby(self.stages, attrgetter("round"))
        return Rows(RoundResult, (_sum_up(round, stages) for round, stages in by_round))

    @cached_property
    def skills(self) -> tuple[SkillCurve, ...]:
        """Held-out accuracy by task."""
        return curves_of(self.stages)

    @property
    def rounds_skipped(self) -> int:
        return sum(skip.last - skip.first + 1 for skip in self.skips)


def _sum_up(round: int, stages: Iterable[StageResult]) -> RoundResult:
    held_out: float | None = None
    reward = seconds = 0.0
    count = tokens = peer_groups = 0
    for stage in stages:
        count += 1
        reward += stage.reward
        seconds += stage.seconds
        tokens += stage.tokens
        peer_groups += stage.peer_groups
        held_out = held_out if stage.held_out is None else stage.held_out
    return RoundResult(round, count, reward / count, held_out, seconds, fit(tokens), fit(peer_groups))


def read_history(directory: Path, trained: StageTrained | None = None) -> TrainingHistory:
    """The history that a log holds.

    Args:
        directory: a data directory, or its events directory.
        trained: a stage that may not have reached the log yet.

    Raises:
        NotFoundError: there is no log.
        LogDamaged, LogForeign, OtherVersion: it cannot be read.
    """
    gathering = HistoryGathering()
    gather(find_log(directory), KIND, gathering)
    return gathering.history(trained)


class GatheredHistory(msgspec.Struct, array_like=True):
    """A history in the making, as it is kept in a summary; `at` is that of the last event."""

    at: float = 0.0
    round: int = -1  # the newest that was heard of
    first_seq: int = -1
    stopping: bool = False
    fields: TrainingHistory = TrainingHistory("")  # without what follows
    stages: list[Packed] = []  # as `Rows` keeps them
    skips: list[SkippedRounds] = []
    restarts: list[Restart] = []
    pushes: list[ModelPushed] = []


class HistoryGathering:
    """Gathers a history from a log's events, one after the other; a `swarmd.eventlog.summaries.Gathered`."""

    def __init__(self) -> None:
        self._kept = GatheredHistory()
        self._stages = Rows(StageResult)  # in their order
        # told once more, or after a later one: they belong among those
        self._told_late: dict[tuple[int, int], StageResult] = {}
        self._newest = NOWHERE

    def begin(self, base: Base) -> None:
        state = base.state
        first = state.first_accuracy
        before = first.held_out if first is not None and first.untrained else None
        fields = TrainingHistory("", model=state.trainer.model, device=state.trainer.device, held_out_before=before)
        self._kept = GatheredHistory(round=state.clock.round if state.clock else -1, fields=fields)
        self._stages, self._told_late, self._newest = Rows(StageResult), {}, NOWHERE
        if state.settings is not None:
            self._set(peer=state.settings.peer, name=state.settings.name, swarm=state.settings.swarm)

    def resume(self, kept: bytes | memoryview) -> None:
        self._kept = msgspec.msgpack.decode(kept, type=GatheredHistory)
        self._stages.resume(self._kept.stages)
        self._newest = PLACE(self._stages[-1]) if self._stages else NOWHERE
        self._told_late, self._kept.stages = {}, []

    def keep(self) -> bytes:
        return msgspec.msgpack.encode(msgspec.structs.replace(self._kept, stages=self._in_order().keep()))

    def take(self, commit: Commit) -> None:
        for envelope in commit.envelopes():
            self.apply(envelope)

    def apply(self, envelope: Envelope) -> None:
        """Take the next event."""
        kept, event = self._kept, envelope.event
        kept.at = envelope.at
        if kept.first_seq < 0:
            kept.first_seq = envelope.seq
        if isinstance(event, StageTrained):
            self._take_stage(event)
        elif isinstance(event, RoundsSkipped):
            kept.skips.append(SkippedRounds(event.first, event.last, event.cause, kept.at))
        elif isinstance(event, RoundAnnounced):
            kept.round = max(kept.round, event.round)
        elif isinstance(event, ModelPushed):
            kept.pushes.append(event)
        elif isinstance(event, StopRequested):
            kept.stopping = True
        elif isinstance(event, NodeStarted | TrainerReady | WorkerExited):
            self._take_life(event)

    def _take_life(self, event: NodeStarted | TrainerReady | WorkerExited) -> None:
        if isinstance(event, NodeStarted):
            if self._kept.fields.peer:
                self._kept.restarts.append(Restart(max(self._kept.round, 0), self._kept.at))
            self._kept.stopping = False
            self._set(peer=event.settings.peer, name=event.settings.name, swarm=event.settings.swarm)
        elif isinstance(event, TrainerReady):
            self._set(model=event.model, device=event.device, parameters=event.parameters)
        elif event.worker == "trainer" and not event.planned and not self._kept.stopping:
            self._set(trainer_exits=self._kept.fields.trainer_exits + 1)

    def _take_stage(self, event: StageTrained) -> None:
        self._kept.round = max(self._kept.round, event.round)
        if event.held_out_before is not None:
            self._set(held_out_before=event.held_out_before)
        result = StageResult(
            event.round,
            event.stage,
            self._kept.at,
            event.reward,
            event.held_out,
            event.steps,
            event.tokens,
            event.seconds,
            event.peer_groups,
            fit(sum(count for _, count in event.rejected)),
            event.skills,
        )
        place = (event.round, event.stage)
        if place > self._newest:
            self._stages.append(result)
            self._newest = place
        else:
            self._told_late[place] = result

    def _in_order(self) -> Rows[StageResult]:
        """Each stage once, as it was told last."""
        if self._told_late:
            late = sorted(self._told_late.values(), key=PLACE)
            # of two in one place the late one is second
            by_place = groupby(merge(self._stages, late, key=PLACE), PLACE)
            self._stages = Rows(StageResult, (list(told)[-1] for _, told in by_place))
            self._told_late = {}
        return self._stages

    def _set(self, **fields: Any) -> None:
        self._kept.fields = msgspec.structs.replace(self._kept.fields, **fields)

    def history(self, trained: StageTrained | None = None) -> TrainingHistory:
        """All that was gathered, and a stage that may not have reached the log yet. Raises NotFoundError."""
        if trained is not None:
            self._take_stage(trained)
        kept = self._kept
        if not kept.fields.peer:
            raise NotFoundError("the log holds no start of a node", "Its beginning was removed; name a whole log")
        return msgspec.structs.replace(
            kept.fields,
            stages=self._in_order(),
            skips=tuple(kept.skips),
            restarts=tuple(kept.restarts),
            pushes=tuple(kept.pushes),
            from_seq=kept.first_seq,
        )
