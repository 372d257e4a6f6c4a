"""What a node's event log tells of its training: stages, rewards, accuracy, skipped rounds, restarts, pushes.

Reads the log without a lock, with the daemon up or down, and folds nothing. What a long log tells is kept beside it
(`swarmd.eventlog.summaries`), so that the next reading is of what came since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import merge
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

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
from swarmd.core.values import Skill, SkipCause
from swarmd.errors import NotFoundError
from swarmd.eventlog.commit import Commit
from swarmd.eventlog.fold import Base
from swarmd.eventlog.segment import find_log
from swarmd.eventlog.summaries import SummaryKind, gather
from swarmd.results.rows import Packed, Rows
from swarmd.results.skills import SkillCurve, curves_of

KIND = SummaryKind("history", 3)
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
        fields = TrainingHistory("", model=state.trainer.model, device=state.trainer.device)
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
