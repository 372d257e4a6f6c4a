"""What the log says of each event: (event, states around it) to a line. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from swarmd.core.events import (
    CommandFailed,
    Envelope,
    Event,
    Fact,
    LeaderboardPublished,
    LinkDegraded,
    LinkDown,
    LinkUp,
    MemberLeft,
    MemberSeen,
    NodeStarted,
    NodeStopped,
    NoRoundYet,
    RecordsRejected,
    Registered,
    ReportPublished,
    ReportSeen,
    RolloutsGathered,
    RoundAnnounced,
    RoundPublished,
    RoundsSkipped,
    StageTrained,
    StopRequested,
    TimerFired,
    TrainerReady,
    TrainingCancelled,
    WorkerExited,
    WorkerStarted,
    WorkerStartFailed,
    tag_of,
)
from swarmd.core.state import State
from swarmd.core.workers import LEAVING

TEXT_CHARACTERS_MAX = 2000  # of one field of a line


class EventLine(msgspec.Struct, frozen=True):
    """A log line about an event."""

    level: str
    message: str
    fields: dict[str, Any]


# Level, and words with the event's fields. An event that changed nothing is told at "debug", unless it is a warning.
_WORDS: dict[type[Fact], tuple[str, str]] = {
    NodeStarted: ("info", "node started as {settings.role} of swarm {settings.swarm}"),
    StopRequested: ("info", "stop requested: {reason}"),
    NodeStopped: ("info", "node stopped: {reason}"),
    TimerFired: ("debug", "deadline {name} passed"),
    WorkerStarted: ("info", "{worker} worker started, pid {pid}"),
    WorkerExited: ("warning", "{worker} worker exited: {reason}"),
    WorkerStartFailed: ("error", "{worker} worker cannot be started: {reason}"),
    LinkUp: ("info", "connected to the DHT, {peers} peers"),
    LinkDegraded: ("warning", "the DHT node reaches nobody: {reason}"),
    LinkDown: ("warning", "the DHT node is down: {reason}"),
    Registered: ("info", "membership record stored"),
    MemberSeen: ("info", "member seen: {peer} {name}"),
    MemberLeft: ("info", "member left: {peer}"),
    RoundAnnounced: ("info", "round {round} stage {stage} is open"),
    NoRoundYet: ("info", "no round has been announced yet"),
    RoundsSkipped: ("warning", "rounds {first} to {last} skipped, cause: {cause}"),
    RolloutsGathered: ("info", "peers' rollouts gathered for round {round} stage {stage}, {missing} missing"),
    ReportPublished: ("info", "report of round {round} stage {stage} published"),
    ReportSeen: ("info", "report of round {round} stage {stage} from {peer}, reward {reward:.4f}"),
    RoundPublished: ("info", "announcement of round {round} stage {stage} is in the DHT"),
    LeaderboardPublished: ("info", "leaderboard of round {round} published"),
    RecordsRejected: ("warning", "{count} records refused: {reason}"),
    CommandFailed: ("warning", "command {command} failed: {reason}"),
    TrainerReady: ("info", "trainer ready: {model} on {device}, {parameters} parameters"),
    StageTrained: ("info", "round {round} stage {stage} trained in {seconds:.1f} s, reward {reward:.4f}"),
    TrainingCancelled: ("info", "training of round {round} stage {stage} cancelled after {steps} steps"),
}
_NOTHING: tuple[Any, ...] = (None, "", ())  # fields that say nothing are left out
_BULKY = ("settings", "record", "rollouts", "due_at")


def line_of(envelope: Envelope, before: State, after: State) -> EventLine:
    """The line for an event, given the states before and after it."""
    event = envelope.event
    level, words = _WORDS[type(event)]
    if isinstance(event, RoundAnnounced) and event.final:
        words = "the swarm has run its {round} rounds"
    if isinstance(event, WorkerExited) and (event.planned or before.chart in LEAVING):
        level = "info"
    elif isinstance(event, WorkerExited | NodeStopped | StopRequested) and (_code(event) >= 64):
        level = "error"
    elif level == "info" and before == after:
        level = "debug"
    return EventLine(level, words.format_map(_Fields(event)), _fields(envelope, before, after))


def _code(event: Event) -> int:
    return int(getattr(event, "exit_code", 0) or getattr(event, "code", 0) or 0) if not _is_exit(event) else 0


def _is_exit(event: Event) -> bool:
    return isinstance(event, WorkerExited) and not event.permanent


def _fields(envelope: Envelope, before: State, after: State) -> dict[str, Any]:
    event = envelope.event
    fields: dict[str, Any] = {"seq": envelope.seq, "event": tag_of(event)}
    fields["round"], fields["stage"] = _place(event, after)
    fields["peer"] = getattr(event, "peer", "") or (after.settings.peer if after.settings else "")
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name not in _BULKY and name not in fields and value not in _NOTHING:
            fields[name] = _short(value)
    if isinstance(event, NodeStarted):
        fields |= {"swarm": event.settings.swarm, "role": event.settings.role, "name": event.settings.name}
    if before.chart != after.chart:
        fields |= {"left": before.chart, "entered": after.chart}
    return fields


def _place(event: Event, state: State) -> tuple[int, int]:
    """Round and stage: the event's own, else those in hand, else those announced, else -1."""
    place = state.work or state.clock
    round_, stage = (place.round, place.stage) if place else (-1, -1)
    return getattr(event, "round", round_), getattr(event, "stage", stage)


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX:
        return value[:TEXT_CHARACTERS_MAX] + " ..."
    if isinstance(value, tuple) and len(value) > 16:
        return [*value[:16], f"... {len(value) - 16} more"]
    return value


class _Fields(dict[str, Any]):
    """An event's fields for `str.format_map`; long text is cut, and of a reason only the headline is taken."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self._event = event

    def __missing__(self, name: str) -> Any:
        value = getattr(self._event, name)
        return value.partition("\n")[0].removesuffix("; last output:") if name == "reason" else value
