"""What a node's event log tells of its training: stages, rewards, accuracy, skipped rounds, restarts, pushes.

Reads the log without a lock, with the daemon up or down, and folds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from swarmd.animals import animal_name
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
from swarmd.core.state import State
from swarmd.core.values import SkipCause
from swarmd.errors import NotFoundError
from swarmd.eventlog.fold import commits_from, oldest_base
from swarmd.eventlog.segment import find_log

EMPTY = State()


class StageResult(msgspec.Struct, frozen=True):
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


class SkippedRounds(msgspec.Struct, frozen=True):
    first: int
    last: int
    cause: SkipCause
    at: float


class Restart(msgspec.Struct, frozen=True):
    """A life of the node after its first, and the round that was open when it began."""

    round: int
    at: float


class RoundResult(msgspec.Struct, frozen=True):
    """What the stages of a round gave together."""

    round: int
    stages: int
    reward: float  # mean of the stages'
    held_out: float | None  # the last that was measured in it
    seconds: float
    tokens: int
    peer_groups: int


class TrainingHistory(msgspec.Struct, frozen=True):
    """What one log tells. `held_out_before` is the accuracy before the node's very first step."""

    peer: str
    name: str = ""  # as configured
    swarm: str = ""
    model: str = ""
    device: str = ""
    parameters: int = 0
    stages: tuple[StageResult, ...] = ()  # each round and stage once, in their order
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

    @property
    def rounds(self) -> tuple[RoundResult, ...]:
        """The trained rounds in their order."""
        by_round: dict[int, list[StageResult]] = {}
        for stage in self.stages:
            by_round.setdefault(stage.round, []).append(stage)
        return tuple(_sum_up(round, stages) for round, stages in sorted(by_round.items()))

    @property
    def rounds_skipped(self) -> int:
        return sum(skip.last - skip.first + 1 for skip in self.skips)


def _sum_up(round: int, stages: list[StageResult]) -> RoundResult:
    measured = [stage.held_out for stage in stages if stage.held_out is not None]
    return RoundResult(
        round,
        len(stages),
        sum(stage.reward for stage in stages) / len(stages),
        measured[-1] if measured else None,
        sum(stage.seconds for stage in stages),
        sum(stage.tokens for stage in stages),
        sum(stage.peer_groups for stage in stages),
    )


def read_history(directory: Path, trained: StageTrained | None = None) -> TrainingHistory:
    """The history that a log holds.

    Args:
        directory: a data directory, or its events directory.
        trained: a stage that may not have reached the log yet.

    Raises:
        NotFoundError: there is no log.
        LogDamaged, LogForeign, LogNewer: it cannot be read.
    """
    log = find_log(directory)
    base = oldest_base(log)
    envelopes = (envelope for commit in commits_from(log, base) for envelope in commit.envelopes())
    return make_history(envelopes, trained, base.state)


def make_history(
    envelopes: Iterable[Envelope], trained: StageTrained | None = None, state: State = EMPTY
) -> TrainingHistory:
    """The history that these events tell, after the state before them. Raises NotFoundError where no node started."""
    gathering = _Gathering(state)
    for envelope in envelopes:
        gathering.apply(envelope)
    if trained is not None:
        gathering.apply(Envelope(gathering.seq + 1, gathering.at, trained))
    return gathering.history()


class _Gathering:
    """A history in the making."""

    def __init__(self, state: State) -> None:
        self.seq = -1
        self.at = 0.0
        self._round = state.clock.round if state.clock else -1  # the newest that was heard of
        self._first_seq = -1
        self._stopping = False
        self._fields = TrainingHistory("", model=state.trainer.model, device=state.trainer.device)
        if state.settings is not None:
            self._set(peer=state.settings.peer, name=state.settings.name, swarm=state.settings.swarm)
        self._stages: dict[tuple[int, int], StageResult] = {}
        self._skips: list[SkippedRounds] = []
        self._restarts: list[Restart] = []
        self._pushes: list[ModelPushed] = []

    def apply(self, envelope: Envelope) -> None:
        self.seq, self.at, event = envelope.seq, envelope.at, envelope.event
        if self._first_seq < 0:
            self._first_seq = self.seq
        if isinstance(event, StageTrained):
            self._take_stage(event)
        elif isinstance(event, RoundsSkipped):
            self._skips.append(SkippedRounds(event.first, event.last, event.cause, self.at))
        elif isinstance(event, RoundAnnounced):
            self._round = max(self._round, event.round)
        elif isinstance(event, ModelPushed):
            self._pushes.append(event)
        elif isinstance(event, StopRequested):
            self._stopping = True
        elif isinstance(event, NodeStarted | TrainerReady | WorkerExited):
            self._take_life(event)

    def _take_life(self, event: NodeStarted | TrainerReady | WorkerExited) -> None:
        if isinstance(event, NodeStarted):
            if self._fields.peer:
                self._restarts.append(Restart(max(self._round, 0), self.at))
            self._stopping = False
            self._set(peer=event.settings.peer, name=event.settings.name, swarm=event.settings.swarm)
        elif isinstance(event, TrainerReady):
            self._set(model=event.model, device=event.device, parameters=event.parameters)
        elif event.worker == "trainer" and not event.planned and not self._stopping:
            self._set(trainer_exits=self._fields.trainer_exits + 1)

    def _take_stage(self, event: StageTrained) -> None:
        self._round = max(self._round, event.round)
        if event.held_out_before is not None:
            self._set(held_out_before=event.held_out_before)
        self._stages[event.round, event.stage] = StageResult(
            event.round,
            event.stage,
            self.at,
            event.reward,
            event.held_out,
            event.steps,
            event.tokens,
            event.seconds,
            event.peer_groups,
            sum(count for _, count in event.rejected),
        )

    def _set(self, **fields: Any) -> None:
        self._fields = msgspec.structs.replace(self._fields, **fields)

    def history(self) -> TrainingHistory:
        if not self._fields.peer:
            raise NotFoundError("the log holds no start of a node", "Its beginning was removed; name a whole log")
        return msgspec.structs.replace(
            self._fields,
            stages=tuple(stage for _, stage in sorted(self._stages.items())),
            skips=tuple(self._skips),
            restarts=tuple(self._restarts),
            pushes=tuple(self._pushes),
            from_seq=self._first_seq,
        )
