"""What the log says of each event: (event, states around it) to a line. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from swarmd.core.applied import Applied
from swarmd.core.events import (
    ChainBlock,
    ChainDegraded,
    ChainReorged,
    ChainUp,
    ClockSet,
    CommandFailed,
    Envelope,
    Equivocated,
    Event,
    EventBase,
    LeaderboardPublished,
    LinkDegraded,
    LinkDown,
    LinkUp,
    MemberLeft,
    MemberSeen,
    MembershipRead,
    MembersSeen,
    ModelPushed,
    NodeStarted,
    NodeStopped,
    NoRoundYet,
    OutputsMade,
    RecordsRejected,
    Registered,
    ReportPublished,
    ReportSeen,
    ReportsSeen,
    RolloutsGathered,
    RoundAnnounced,
    RoundPublished,
    RoundsSkipped,
    SpaceFreed,
    SpaceLow,
    StageTrained,
    StopRequested,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionsCounted,
    SubmissionSent,
    TimerFired,
    TrainerReady,
    TrainingCancelled,
    WeightsAdopted,
    WeightsFetched,
    WeightsRefused,
    WorkerExited,
    WorkerStarted,
    WorkerStartFailed,
    tag_of,
)
from swarmd.core.ids import is_submission
from swarmd.core.node.workers import LEAVING
from swarmd.core.state import State, Submission
from swarmd.core.values import BlockRef, Prepared
from swarmd.observe.layers import hold_words, holding
from swarmd.observe.narrative.aside import aside_words, is_marked
from swarmd.observe.narrative.blocks import block_words
from swarmd.observe.narrative.equivocations import bars_nobody, equivocation_words
from swarmd.observe.narrative.waiting import NO_NEWCOMERS, waiting_turn
from swarmd.observe.narrative.weights import weights_level, weights_words

TEXT_CHARACTERS_MAX = 2000  # of one field of a line


class EventLine(msgspec.Struct, frozen=True):
    """A log line about an event."""

    level: str
    message: str
    fields: dict[str, Any]


# Level, and words with the event's fields. An event that changed nothing is told at "debug", unless it is a warning.
_WORDS: dict[type[EventBase], tuple[str, str]] = {
    NodeStarted: ("info", "node started as {settings.role} of swarm {settings.swarm}"),
    StopRequested: ("info", "stop requested: {reason}"),
    NodeStopped: ("info", "node stopped: {reason}"),
    TimerFired: ("debug", "deadline {name} passed"),
    SpaceLow: ("warning", "paused: {free_bytes} bytes free of {wanted_bytes} wanted"),
    SpaceFreed: ("info", "there is room again: {free_bytes} bytes free"),
    ClockSet: (
        "warning",
        "this machine's clock was set by {step_s:+.0f} s; peers take no record of a clock that is wrong",
    ),
    WorkerStarted: ("info", "{worker} worker started, pid {pid}"),
    WorkerExited: ("warning", "{worker} worker exited: {reason}"),
    WorkerStartFailed: ("error", "{worker} worker cannot be started: {reason}"),
    LinkUp: ("info", "connected to the DHT, {peers} peers"),
    LinkDegraded: ("warning", "the DHT node reaches nobody: {reason}"),
    LinkDown: ("warning", "the DHT node is down: {reason}"),
    Registered: ("info", "membership record stored"),
    MemberSeen: ("info", "member seen: {peer} {name}"),
    MembersSeen: ("info", "{count} members seen"),
    MemberLeft: ("info", "member left: {peer}"),
    RoundAnnounced: ("info", "round {round} stage {stage} is open"),
    NoRoundYet: ("info", "no round has been announced yet"),
    RoundsSkipped: ("warning", "rounds {first} to {last} skipped, cause: {cause}"),
    RolloutsGathered: ("info", "peers' rollouts gathered for round {round} stage {stage}, {missing} missing"),
    ReportPublished: ("info", "report of round {round} stage {stage} published"),
    ReportSeen: ("info", "report of round {round} stage {stage} from {peer}, reward {reward:.4f}"),
    ReportsSeen: ("info", "{count} reports of round {round} stage {stage}"),
    RoundPublished: ("info", "announcement of round {round} stage {stage} is in the DHT"),
    LeaderboardPublished: ("info", "leaderboard of round {round} published"),
    RecordsRejected: ("warning", "{count} records refused: {reason}"),
    Equivocated: ("warning", "{peer} signed two different records of round {round} stage {stage}: {kind}"),
    CommandFailed: ("warning", "command {command} failed: {reason}"),
    TrainerReady: ("info", "trainer ready: {model} on {device}, {parameters} parameters, {numbers}"),
    StageTrained: ("info", "round {round} stage {stage} trained in {seconds:.1f} s, reward {reward:.4f}"),
    OutputsMade: ("debug", "round {round} stage {stage}: what there is so far goes to the network"),
    TrainingCancelled: ("info", "training of round {round} stage {stage} cancelled after {steps} steps"),
    WeightsFetched: ("info", "{weights.peer}"),  # these three have words of their own
    WeightsRefused: ("info", "{cause}"),
    WeightsAdopted: ("info", "{weights.peer}"),
    ModelPushed: ("info", "model of round {round} pushed to {repo}, revision {revision}"),
    ChainUp: ("info", "the chain {chain_id} is read up to block {head.number}"),
    ChainDegraded: ("warning", "the chain cannot be read: {reason}"),
    ChainBlock: ("info", "block {block.number}"),
    ChainReorged: ("info", "the chain was reorganised: blocks after {fork.number} are dropped, {depth} in all"),
    SubmissionsCounted: ("debug", "{count} reports of round {round} stage {stage} are on the chain"),
    MembershipRead: ("info", "the contract's membership was read"),
    SubmissionPrepared: ("info", "{submission}: an attempt is ready"),
    SubmissionSent: ("info", "{submission}: sent"),
    SubmissionIncluded: ("info", "{submission}: on the chain, in block {block.number}"),
    SubmissionConfirmed: ("info", "{submission}: confirmed, in block {block.number}"),
    SubmissionLost: ("warning", "{submission}: its attempts are lost: {reason}"),
    SubmissionRefused: ("warning", "{submission}: refused, {code}: {reason}"),
}
_NOTHING: tuple[Any, ...] = (None, "", ())  # fields that say nothing are left out
_BULKY = (
    "settings",
    "record",
    "rollouts",
    "due_at",
    "logs",
    "set_aside",
    "first",
    "second",
    "stages",
    "off_policy",
    "skills",
    "reports",
    "members",
)


def line_of(applied: Applied) -> EventLine:
    """The line for an event."""
    envelope, before, after = applied.envelope, applied.before, applied.after
    event = envelope.event
    level, words = _WORDS[type(event)]
    turn = hold_turn(before, after)
    if turn:
        words = f"{words}; {turn}"
        level = "warning" if holding(after) else "info"
    if isinstance(event, LinkUp) and event.isolated:
        level, words = ("debug" if before.link.isolated else "warning"), "isolated: {isolated}"
    elif isinstance(event, RoundAnnounced) and event.final:
        words = "the swarm has run its {round} rounds"
    elif isinstance(event, Equivocated):
        words = equivocation_words(event, after)
        level = "debug" if before.equivocations is after.equivocations else "error" if bars_nobody(event) else level
    elif isinstance(event, ChainBlock | MembershipRead):
        return EventLine(_quiet(event), _chain_words(event, after), _fields(envelope, before, after))
    elif isinstance(event, WeightsAdopted | WeightsFetched | WeightsRefused):
        return EventLine(weights_level(event), weights_words(event), _fields(envelope, before, after))
    if isinstance(event, ModelPushed):
        if event.error:
            level, words = "warning", "the model of round {round} was not pushed to {repo}: {error}"
    elif isinstance(event, WorkerExited) and (event.planned or before.chart in LEAVING):
        level = "info"
    elif isinstance(event, WorkerExited | NodeStopped | StopRequested) and (_code(event) >= 64):
        level = "error"
    elif isinstance(event, SubmissionRefused | ChainReorged):
        level = _gravity(event)
    elif isinstance(event, StageTrained) and is_marked(event):
        level = "warning"
    elif level == "info" and before == after:
        level = "debug"
    message = words.format_map(_Fields(event)) + _refused(event) + _marked(event)
    waits = waiting_turn(before, after)
    if waits:
        level, message = ("warning" if waits == NO_NEWCOMERS else "info"), f"{message}; {waits}"
    return EventLine(level, message, _fields(envelope, before, after))


def hold_turn(before: State, after: State) -> str:
    """What changed for a coordinator that holds the open stage while it is alone; empty for nothing."""
    if before.coordination is after.coordination and before.link is after.link:
        return ""
    held, now = holding(before), holding(after)
    if now is not None and held is None:
        return hold_words(now)
    if held is not None and now is None and after.link.peers:
        return f"a peer is back: round {held.round} stage {held.stage} is no longer held"
    return ""


def _refused(event: Event) -> str:
    if not isinstance(event, StageTrained) or not event.rejected:
        return ""
    return "; refused of peers: " + ", ".join(f"{reason} {count}" for reason, count in event.rejected)


def _marked(event: Event) -> str:
    return f"; {aside_words(event)}" if isinstance(event, StageTrained) and is_marked(event) else ""


def _quiet(event: ChainBlock | MembershipRead) -> str:
    """A block in which the contract said nothing is no news."""
    return "debug" if isinstance(event, ChainBlock) and not event.logs else "info"


def _chain_words(event: ChainBlock | MembershipRead, state: State) -> str:
    if isinstance(event, ChainBlock):
        return block_words(event, state.settings.peer if state.settings else "")
    return "everybody may take part" if event.open else f"{len(event.peers)} peers are on the allow-list"


def _gravity(event: SubmissionRefused | ChainReorged) -> str:
    """Chains drop their newest block now and then; and a step of the contract that another node took is no loss."""
    if isinstance(event, ChainReorged):
        return "info" if event.depth <= 1 else "warning"
    if event.permanent:
        return "error"
    return "info" if is_submission(event.submission, "advance") else "warning"


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
            fields |= _flat(name, value)
    if isinstance(event, NodeStarted):
        fields |= {"swarm": event.settings.swarm, "role": event.settings.role, "name": event.settings.name}
    if before.chart != after.chart:
        fields |= {"left": before.chart, "entered": after.chart}
    return fields


def _place(event: Event, state: State) -> tuple[int, int]:
    """Round and stage: the event's own or its submission's, else those in hand, else those announced, else -1."""
    place = _submission_of(event, state) or state.work or state.clock
    round_, stage = (place.round, place.stage) if place else (-1, -1)
    return getattr(event, "round", round_), getattr(event, "stage", stage)


def _submission_of(event: Event, state: State) -> Submission | None:
    name = getattr(event, "submission", "")
    return next((each for each in state.submissions if each.id == name and each.kind != "register"), None)


def _flat(name: str, value: Any) -> dict[str, Any]:
    """A field of a line; a block becomes its number and hash, an attempt what is short of it, a judgement a pair."""
    if isinstance(value, BlockRef):
        return {name: value.number, f"{name}_hash": value.hash}
    if isinstance(value, Prepared):
        return {"transaction": value.hash, "nonce": value.nonce, "fee_wei": value.fee_wei}
    if name == "judged":
        value = tuple((each.peer, each.worth) for each in value)
    return {name: _short(value)}


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
