"""Events in words: one table for the log's lines, `swarmd explain`, the page and its timeline. Pure.

- `describe` returns the sentence for an event, its level, and whether it belongs in the story of a round.
- The sentence is the same everywhere. A log line adds the event's fields, a story adds details too long for a line.
- Changes in what a coordinator waits for, and in which members stages wait for, are told with the event that caused
  them.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from swarmd.core import events
from swarmd.core.applied import AppliedEvent
from swarmd.core.ids import Timer, TimerName, is_submission_of_kind, timer_name_of
from swarmd.core.state import State, Submission
from swarmd.core.values import BlockRef, SubmissionAttempt
from swarmd.core.workers import LEAVING
from swarmd.observe.layers import (
    NOTHING,
    describe_awaited_members,
    describe_example,
    describe_hold,
    describe_member_wait,
    describe_zero_variance,
    find_holding_coordination,
    first_line,
)
from swarmd.observe.words import (
    NO_NEWCOMERS,
    WeightsEvent,
    bans_nobody,
    count_noun,
    describe_block,
    describe_equivocation,
    describe_masked_rollouts,
    describe_skills,
    describe_waiting_change,
    describe_weights_event,
    has_peer_mark,
    round_of_weights_event,
    weights_log_level,
)

REASON_CHARACTERS_MAX = 300  # longest excerpt of a reason in a sentence
TEXT_CHARACTERS_MAX = 2000  # longest field of a line
ERROR_CODE_MIN = 64  # exit codes from here on mean that the operator has to act

Level = Literal["debug", "info", "warning", "error"]
Lane = Literal["rounds", "network", "training", "chain", "workers", "stops"]
WARNINGS: tuple[Level, ...] = ("warning", "error")


class Description(NamedTuple):
    """An event in words."""

    level: Level  # of its log line
    text: str  # a sentence without its full stop
    told: bool = False  # it belongs in a story
    trouble: bool = False  # something went wrong for this node, which may be why a round was missed
    round: int | None = None  # the round it is about; None if it is about the node itself
    settles: bool = False  # it belongs to its round even after the node has left that round
    details: str = ""  # appended in a story only


class EventWording(NamedTuple):
    """How events of one type are put into words."""

    lane: Lane  # of the timeline on the page
    level: Level  # of its line; "info" becomes "debug" if the event changed nothing
    words: str | Callable[[Any, AppliedEvent], Description]  # a text with fields in braces, or makes the description
    is_news: bool = False  # keeps its level even if the event changed nothing
    is_routine: bool = False  # happens often in each round: not shown on a terminal


def describe(applied: AppliedEvent, stopped_s: float | None = None) -> Description:
    """An event in words. `stopped_s`: seconds since the event before it, if that is known."""
    event, before, after = applied.event, applied.before, applied.after
    kind = WORDS[type(event)]
    if isinstance(event, events.NodeStarted):
        told = _describe_started(event, applied, stopped_s)
    elif isinstance(kind.words, str):
        is_grave = kind.level in WARNINGS
        told = Description(kind.level, kind.words.format_map(_FormatFields(event)), told=is_grave, trouble=is_grave)
    else:
        told = kind.words(event, applied)
    if told.level == "info" and before == after and not kind.is_news:
        told = told._replace(level="debug")
    if held := describe_hold_change(before, after):
        alone = find_holding_coordination(after) is not None
        told = told._replace(
            level="warning" if alone else "info", text=f"{told.text}; {held}", told=True, trouble=alone
        )
    if describe_awaited_members(after) and not describe_awaited_members(before):
        told = told._replace(text=f"{told.text}; the coordinator {describe_member_wait(after, applied.at)}")
    if waits := describe_waiting_change(before, after):
        told = told._replace(level="warning" if waits == NO_NEWCOMERS else "info", text=f"{told.text}; {waits}")
    return told


def describe_hold_change(before: State, after: State) -> str:
    """Say whether a lone coordinator started or stopped holding the open stage; empty if neither."""
    if before.coordination is after.coordination and before.link is after.link:
        return ""
    held, now = find_holding_coordination(before), find_holding_coordination(after)
    if now is not None and held is None:
        return describe_hold(now)
    if held is not None and now is None and after.link.peers:
        return f"a peer is back: round {held.round} stage {held.stage} is no longer held"
    return ""


def cut_first_line(text: str) -> str:
    """The first line of a text, cut to REASON_CHARACTERS_MAX."""
    line = first_line(text)
    return line if len(line) <= REASON_CHARACTERS_MAX else line[:REASON_CHARACTERS_MAX] + "…"


# --- events that need more than their fields ---


def _describe_started(event: events.NodeStarted, applied: AppliedEvent, stopped_s: float | None) -> Description:
    text, before = f"node started as {event.settings.role} of swarm {event.settings.swarm}", applied.before
    if before.settings is None:
        return Description("info", f"{text}, for the first time", told=True)
    away = "" if stopped_s is None else f"{max(0.0, stopped_s):.0f} s"
    if before.chart in ("stopped", "failed"):
        return Description("info", f"{text}, {away} after it had stopped".replace("  ", " "), told=True)
    lost = f"; up to {away} were lost" if away else ""
    if event.restored:
        return Description("warning", f"{text}, restored from a backup{lost}", told=True, trouble=True)
    return Description("warning", f"{text}, after a crash or a kill{lost}", told=True, trouble=True)


def _describe_stopped(event: events.NodeStopped, applied: AppliedEvent) -> Description:
    code = f", exit code {event.code}" if event.code else ""
    level: Level = "error" if event.code >= ERROR_CODE_MIN else "info"
    return Description(
        level, f"node stopped: {cut_first_line(event.reason)}{code}", told=True, trouble=bool(event.code)
    )


def _describe_stop_request(event: events.StopRequested, applied: AppliedEvent) -> Description:
    level: Level = "error" if event.code >= ERROR_CODE_MIN else "info"
    return Description(level, f"stop requested: {cut_first_line(event.reason)}", told=True)


_OVERDUE: dict[Timer | TimerName, tuple[str, bool]] = {
    "train": ("the stage took longer than [round] train_s allows and was given up", True),
    "gather": ("the wait for peers' rollouts ended", False),
    "publish": ("nobody had acknowledged the report, it was sent again", False),
    "clock": ("no announcement had come although one was due: the node looked again", False),
    "weights": ("the wait for a peer's weights ended", False),
    "cancel": ("the trainer had not stopped when told", True),
    timer_name_of("ready", "trainer"): ("the trainer was not ready in time", True),
    timer_name_of("ready", "network"): ("the network worker was not ready in time", True),
    timer_name_of("ready", "chain"): ("the chain worker was not ready in time", True),
}


def _describe_timer(event: events.TimerFired, applied: AppliedEvent) -> Description:
    known = _OVERDUE.get(TimerName(event.name))
    if known is None or applied.before == applied.after:
        return Description("debug", f"deadline {event.name} passed")
    text, trouble = known
    return Description("warning" if trouble else "debug", text, told=True, trouble=trouble)


def _describe_worker_exit(event: events.WorkerExited, applied: AppliedEvent) -> Description:
    leaving = applied.before.chart in LEAVING
    if event.planned:
        text = f"the {event.worker} worker makes room for a fresh process: {cut_first_line(event.reason)}"
        return Description("info", text, told=not leaving)
    text = f"{event.worker} worker exited: {cut_first_line(event.reason)}"
    if leaving:
        return Description("info", text)
    fatal = event.permanent and (event.exit_code or event.code or 0) >= ERROR_CODE_MIN
    return Description("error" if fatal else "warning", text, told=True, trouble=True)


def _describe_link_up(event: events.LinkUp, applied: AppliedEvent) -> Description:
    before, after = applied.before.link, applied.after.link
    if event.isolated:
        level: Level = "debug" if before.isolated else "warning"
        return Description(level, f"isolated: {event.isolated}", told=not before.isolated)
    if before.isolated:
        return Description("info", "the node is no longer isolated", told=True)
    return Description(
        "info", f"connected to the DHT, {count_noun(event.peers, 'peer')}", told=before.chart != after.chart
    )


def _describe_link_down(event: events.LinkDown, applied: AppliedEvent) -> Description:
    leaving = applied.before.chart in LEAVING
    text = f"the DHT node is down: {cut_first_line(event.reason)}"
    return Description("info" if leaving else "warning", text, told=not leaving, trouble=not leaving)


def _describe_round_announced(event: events.RoundAnnounced, applied: AppliedEvent) -> Description:
    over = f"the swarm has run its {event.round} rounds"
    return Description("info", over if event.final else f"round {event.round} stage {event.stage} is open")


def _describe_rounds_skipped(event: events.RoundsSkipped, applied: AppliedEvent) -> Description:
    span = f"round {event.first}" if event.first == event.last else f"rounds {event.first} to {event.last}"
    return Description("warning", f"{span} skipped, cause: {event.cause}", told=True)


def _describe_rollouts_gathered(event: events.RolloutsGathered, applied: AppliedEvent) -> Description:
    groups, peers = sum(ref.groups for ref in event.rollouts), count_noun(len(event.rollouts), "peer")
    text = f"{groups} groups of {peers} gathered for round {event.round} stage {event.stage}"
    missing = f"; {event.missing} more were announced and could not be fetched" if event.missing else ""
    return Description("info", text + missing, told=True, round=event.round)


def _describe_report_published(event: events.ReportPublished, applied: AppliedEvent) -> Description:
    text = f"report of round {event.round} stage {event.stage} published"
    return Description("info", text, told=True, round=event.round, settles=True)


def _describe_records_rejected(event: events.RecordsRejected, applied: AppliedEvent) -> Description:
    return Description("warning", f"{event.count} records refused: {event.reason}")  # a round has hundreds


def _describe_stage_trained(event: events.StageTrained, applied: AppliedEvent) -> Description:
    marked = has_peer_mark(event)
    parts = [
        f"round {event.round} stage {event.stage} trained in {event.seconds:.1f} s: {event.steps} steps, "
        f"{event.tokens:,} tokens, {event.peer_groups} groups of peers, reward {event.reward:.4f}"
        + ("" if event.held_out is None else f", held-out accuracy {event.held_out:.2f}")
    ]
    if event.rejected:
        parts.append("refused of peers: " + ", ".join(f"{reason} {count}" for reason, count in event.rejected))
    details = ["drawn ahead, with the weights of the step before"] * bool(event.staleness)
    if event.flat is not None:
        parts.append(f"{NOTHING}: {describe_zero_variance(event.flat, event.reward)}")
        details.append(describe_example(event.flat))
    parts += [describe_masked_rollouts(event)] * marked
    details += [describe_skills(event.skills)] * bool(event.skills)
    details += [describe_masked_rollouts(event)] * (bool(event.set_aside) and not marked)
    troubled = event.flat is not None and event.flat.cause != "right"
    level: Level = "warning" if marked or troubled else "info"
    return Description(level, "; ".join(parts), True, marked, event.round, details="; ".join(details))


def _describe_training_cancelled(event: events.TrainingCancelled, applied: AppliedEvent) -> Description:
    text = f"training of round {event.round} stage {event.stage} cancelled after {event.steps} steps"
    return Description("info", text, told=True, round=event.round)


def _describe_weights(event: WeightsEvent, applied: AppliedEvent) -> Description:
    level: Level = weights_log_level(event)
    return Description(level, describe_weights_event(event), True, level in WARNINGS, round_of_weights_event(event))


def _describe_model_pushed(event: events.ModelPushed, applied: AppliedEvent) -> Description:
    if event.error:
        text = f"the model of round {event.round} was not pushed to {event.repo}: {cut_first_line(event.error)}"
        return Description("warning", text, told=True, trouble=True)
    text = f"model of round {event.round} pushed to {event.repo}, revision {event.revision}"
    return Description("info", text)


def _describe_trainer_ready(event: events.TrainerReady, applied: AppliedEvent) -> Description:
    text = f"trainer ready: {event.model} on {event.device}, {event.parameters} parameters, {event.numbers}"
    done, restored = applied.before.done, event.restored
    if done > (restored or (-1, -1)):
        after = (
            f"its weights are those after round {restored[0]} stage {restored[1]}" if restored else "it begins again"
        )
        lost = f"what it learnt after that, up to round {done[0]} stage {done[1]}, is lost; what it reported counts"
        return Description("warning", f"{text}; {after}: {lost}", told=True)
    if event.other_weights:
        return Description("warning", f"{text}; other weights than the swarm's: {event.other_weights}", told=True)
    return Description("info", text, told=True)


def _describe_equivocation(event: events.Equivocated, applied: AppliedEvent) -> Description:
    text = describe_equivocation(event, applied.after)
    if applied.before.equivocations is applied.after.equivocations:
        return Description("debug", text)
    level: Level = "error" if bans_nobody(event) else "warning"
    return Description(level, text, told=True, round=event.round, settles=True)


def _describe_block(event: events.ChainBlock, applied: AppliedEvent) -> Description:
    """Describe a block; one without logs of the contract only at debug level."""
    settings = applied.after.settings
    return Description("info" if event.logs else "debug", describe_block(event, settings.peer if settings else ""))


def _describe_membership(event: events.MembershipRead, applied: AppliedEvent) -> Description:
    return Description(
        "info", "everybody may take part" if event.open else f"{len(event.peers)} peers are on the allow-list"
    )


def _describe_reorganisation(event: events.ChainReorged, applied: AppliedEvent) -> Description:
    """Reorganisations of one block are normal; deeper ones are a warning."""
    text = f"the chain was reorganised: blocks after {event.fork.number} are dropped, {event.depth} in all"
    deep = event.depth > 1
    return Description("warning" if deep else "info", text, told=deep, trouble=deep)


def _make_submission_describer(words: str, level: Level = "info") -> Callable[[Any, AppliedEvent], Description]:
    """Make a function that describes what became of a submission to the chain."""

    def describe_submission(event: Any, applied: AppliedEvent) -> Description:
        known = _find_submission(event, applied.after)
        text = words.format_map(_FormatFields(event))
        found: Level = level
        if isinstance(event, events.SubmissionRefused):  # nothing is lost if another node advanced the contract first
            lost = not is_submission_of_kind(event.submission, "advance")
            found = "error" if event.permanent else "warning" if lost else "info"
        return Description(found, text, True, found in WARNINGS, known.round if known else None, settles=True)

    return describe_submission


WORDS: dict[type[events.EventBase], EventWording] = {
    events.NodeStarted: EventWording("stops", "info", "node started as {settings.role} of swarm {settings.swarm}"),
    events.NodeForked: EventWording("stops", "info", "forked: the events before are of {parent}"),
    events.StopRequested: EventWording("stops", "info", _describe_stop_request),
    events.NodeStopped: EventWording("stops", "info", _describe_stopped),
    events.TimerFired: EventWording("rounds", "debug", _describe_timer),
    events.SpaceLow: EventWording("workers", "warning", "paused: {free_bytes} bytes free of {wanted_bytes} wanted"),
    events.SpaceFreed: EventWording("workers", "info", "there is room again: {free_bytes} bytes free"),
    events.ClockSet: EventWording(
        "network",
        "warning",
        "this machine's clock was set by {step_s:+.0f} s; peers take no record of a clock that is wrong",
    ),
    events.WorkerStarted: EventWording("workers", "info", "{worker} worker started, pid {pid}", is_routine=True),
    events.WorkerExited: EventWording("workers", "warning", _describe_worker_exit),
    events.WorkerStartFailed: EventWording("workers", "error", "{worker} worker cannot be started: {reason}"),
    events.LinkUp: EventWording("network", "info", _describe_link_up),
    events.LinkDegraded: EventWording("network", "warning", "the DHT node reaches nobody: {reason}"),
    events.LinkDown: EventWording("network", "warning", _describe_link_down),
    events.Registered: EventWording("network", "info", "membership record stored", is_routine=True),
    events.MemberSeen: EventWording("network", "info", "member seen: {peer} {name}", is_routine=True),
    events.MembersSeen: EventWording("network", "info", "{count} members seen"),
    events.MemberLeft: EventWording("network", "info", "member left: {peer}"),
    events.RoundAnnounced: EventWording("rounds", "info", _describe_round_announced),
    events.NoRoundYet: EventWording("rounds", "info", "no round has been announced yet"),
    events.RoundsSkipped: EventWording("rounds", "warning", _describe_rounds_skipped),
    events.RolloutsGathered: EventWording("network", "info", _describe_rollouts_gathered, is_routine=True),
    events.ReportPublished: EventWording("rounds", "info", _describe_report_published, is_routine=True),
    events.ReportSeen: EventWording(
        "rounds", "info", "report of round {round} stage {stage} from {peer}, reward {reward:.4f}", is_routine=True
    ),
    events.ReportsSeen: EventWording("rounds", "info", "{count} reports of round {round} stage {stage}"),
    events.RoundPublished: EventWording(
        "rounds", "info", "announcement of round {round} stage {stage} is in the DHT", is_routine=True
    ),
    events.LeaderboardPublished: EventWording(
        "rounds", "info", "leaderboard of round {round} published", is_routine=True
    ),
    events.RecordsRejected: EventWording("network", "warning", _describe_records_rejected),
    events.Equivocated: EventWording("network", "warning", _describe_equivocation),
    events.CommandFailed: EventWording("workers", "warning", "command {command} failed: {reason}"),
    events.TrainerReady: EventWording("training", "info", _describe_trainer_ready),
    events.StageTrained: EventWording("training", "info", _describe_stage_trained),
    events.CheckpointWritten: EventWording(
        "training", "info", "round {round} stage {stage} is on disk", is_routine=True
    ),
    events.TrainingCancelled: EventWording("training", "info", _describe_training_cancelled),
    events.WeightsFetched: EventWording("training", "info", _describe_weights, is_news=True),
    events.WeightsRefused: EventWording("training", "info", _describe_weights, is_news=True),
    events.WeightsAdopted: EventWording("training", "info", _describe_weights, is_news=True),
    events.ModelPushed: EventWording("training", "info", _describe_model_pushed, is_news=True),
    events.ChainUp: EventWording("chain", "info", "the chain {chain_id} is read up to block {head.number}"),
    events.ChainDegraded: EventWording("chain", "warning", "the chain cannot be read: {reason}"),
    events.ChainBlock: EventWording("chain", "info", _describe_block),
    events.ChainReorged: EventWording("chain", "info", _describe_reorganisation),
    events.SubmissionsCounted: EventWording(
        "chain", "debug", "{count} reports of round {round} stage {stage} are on the chain"
    ),
    events.MembershipRead: EventWording("chain", "info", _describe_membership),
    events.SubmissionPrepared: EventWording("chain", "info", "{submission}: an attempt is ready", is_routine=True),
    events.SubmissionSent: EventWording(
        "chain", "info", _make_submission_describer("{submission}: sent"), is_routine=True
    ),
    events.SubmissionIncluded: EventWording(
        "chain",
        "info",
        _make_submission_describer("{submission}: on the chain, in block {block.number}"),
        is_routine=True,
    ),
    events.SubmissionConfirmed: EventWording(
        "chain", "info", _make_submission_describer("{submission}: confirmed, in block {block.number}")
    ),
    events.SubmissionLost: EventWording(
        "chain", "warning", _make_submission_describer("{submission}: its attempts are lost: {reason}", "warning")
    ),
    events.SubmissionRefused: EventWording(
        "chain", "warning", _make_submission_describer("{submission}: refused, {code}: {reason}", "warning")
    ),
}
ROUTINE = frozenset([str(kind.__struct_config__.tag) for kind, each in WORDS.items() if each.is_routine])
LANE_OF: dict[str, Lane] = {str(kind.__struct_config__.tag): each.lane for kind, each in WORDS.items()}


class _FormatFields(dict[str, Any]):
    """An event's fields for `str.format_map`; a reason is cut to its first line."""

    def __init__(self, event: events.Event) -> None:
        super().__init__()
        self._event = event

    def __missing__(self, name: str) -> Any:
        value = getattr(self._event, name)
        return cut_first_line(value) if name == "reason" else value


# --- lines of the log ---


class EventLine(msgspec.Struct, frozen=True):
    """A log line for an event."""

    level: str
    message: str
    fields: dict[str, Any]


_NOTHING: tuple[Any, ...] = (None, "", ())  # values of fields that are left out
_BULKY = (
    "settings",
    "record",
    "rollouts",
    "due_at",
    "logs",
    "set_aside",
    "flat",
    "first",
    "second",
    "stages",
    "skills",
    "times",
    "reports",
    "members",
)


def make_event_line(applied: AppliedEvent) -> EventLine:
    told = describe(applied)
    return EventLine(told.level, told.text, _make_fields(applied.envelope, applied.before, applied.after))


def round_and_stage_of(event: events.Event, state: State) -> tuple[int, int]:
    """An event's round and stage: its own or its submission's, else those in training, else those announced, else
    -1."""
    place = _find_submission(event, state) or state.work or state.clock
    round_, stage = (place.round, place.stage) if place else (-1, -1)
    return getattr(event, "round", round_), getattr(event, "stage", stage)


def _make_fields(envelope: events.Envelope, before: State, after: State) -> dict[str, Any]:
    event = envelope.event
    fields: dict[str, Any] = {"seq": envelope.seq, "event": events.tag_of(event)}
    fields["round"], fields["stage"] = round_and_stage_of(event, after)
    fields["peer"] = getattr(event, "peer", "") or (after.settings.peer if after.settings else "")
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name not in _BULKY and name not in fields and value not in _NOTHING:
            fields |= _flatten_field(name, value)
    if isinstance(event, events.NodeStarted):
        fields |= {"swarm": event.settings.swarm, "role": event.settings.role, "name": event.settings.name}
    if before.chart != after.chart:
        fields |= {"left": before.chart, "entered": after.chart}
    return fields


def _find_submission(event: events.Event, state: State) -> Submission | None:
    name = getattr(event, "submission", "")
    return next((each for each in state.submissions if each.id == name and each.kind != "register"), None)


def _flatten_field(name: str, value: Any) -> dict[str, Any]:
    """Flatten one field for a log line; blocks, transactions and judgements are reduced to their short parts."""
    if isinstance(value, BlockRef):
        return {name: value.number, f"{name}_hash": value.hash}
    if isinstance(value, SubmissionAttempt):
        return {"transaction": value.hash, "nonce": value.nonce, "fee_wei": value.fee_wei}
    if name == "judged":
        value = tuple((each.peer, each.worth) for each in value)
    return {name: _shorten_value(value)}


def _shorten_value(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX:
        return value[:TEXT_CHARACTERS_MAX] + " ..."
    if isinstance(value, tuple) and len(value) > 16:
        return [*value[:16], f"... {len(value) - 16} more"]
    return value
