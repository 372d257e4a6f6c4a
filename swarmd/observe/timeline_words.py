"""The timeline over nodes in words: a clause for each event, and arrows to its effects at other nodes."""

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from swarmd.core import events
from swarmd.observe.deliveries import trace_deliveries
from swarmd.observe.describe import cut_first_line
from swarmd.observe.node_log import LoggedEvent, StageOpened, tag_of
from swarmd.observe.timeline import Timeline
from swarmd.observe.words import count_noun, describe_weights_event

ArrowKind = Literal["clock", "report", "rollouts", "weights"]


class Arrow(msgspec.Struct, frozen=True):
    """An effect of an event at another node.

    Attributes:
        node: its name.
        seq: of the event there; None for rollouts that did not arrive.
        after_s: seconds later, by corrected clocks.
        words: the effect, as a clause that follows the node's name.
        verdict: for rollouts, see `swarmd.observe.deliveries`; else empty.
    """

    kind: ArrowKind
    node: str
    seq: int | None
    after_s: float | None
    words: str
    verdict: str = ""


class TimelineEvent(msgspec.Struct, frozen=True, tag="event", tag_field="type"):
    """One event of a timeline over nodes; `time` is by the first node's clock, in POSIX seconds."""

    time: float
    node: str
    seq: int
    event: str
    round: int
    stage: int | None
    words: str
    arrows: tuple[Arrow, ...]


class TimelineNode(msgspec.Struct, frozen=True, tag="node", tag_field="type"):
    """One node of a timeline and the correction of its clock in seconds."""

    node: str
    peer: str
    place: str
    clock_correction_s: float
    clock_doubt_s: float | None  # plus or minus; None if unbounded


def describe_event(timeline: Timeline, moment: LoggedEvent) -> TimelineEvent:
    """An event with its effects at other nodes."""
    stage = getattr(moment.event, "stage", None)
    place = (moment.seq, tag_of(moment.event), moment.near, stage)
    arrows = tuple(list_arrows(timeline, moment))
    return TimelineEvent(
        timeline.estimate_time(moment), timeline.names[moment.node], *place, describe_moment(timeline, moment), arrows
    )


def describe_node(timeline: Timeline, number: int) -> TimelineNode:
    log, clock = timeline.logs[number], timeline.last_clock(number)
    correction_s, doubt_s = timeline.clocks.corrections[clock], timeline.clocks.doubt_s(clock)
    told = doubt_s if math.isfinite(doubt_s) else None
    return TimelineNode(timeline.names[number], log.peer, str(log.place.parent), correction_s, told)


def list_arrows(timeline: Timeline, moment: LoggedEvent) -> list[Arrow]:
    """The arrows from an event; a trained stage has one to each other node, whether its rollouts arrived or not."""
    names = timeline.names
    found: list[Arrow] = []
    fetched: dict[int, tuple[int, float]] = {}  # by node: the event there, and seconds after
    for effect in timeline.effects_of(moment):
        after_s = max(0.0, timeline.estimate_time(effect) - timeline.estimate_time(moment))
        kind, words = _ARROWS[type(effect.event)]
        if kind == "rollouts":
            fetched[effect.node] = (effect.seq, after_s)
        else:
            found.append(Arrow(kind, names[effect.node], effect.seq, after_s, f"{words} after {after_s:.1f} s"))
    if isinstance(moment.event, events.StageTrained):
        for each in trace_deliveries(timeline, moment.node, (moment.event.round, moment.event.stage)):
            seq, after = fetched.get(each.receiver, (None, None))
            found.append(Arrow("rollouts", names[each.receiver], seq, after, each.brief, each.verdict))
    return found


_ARROWS: dict[type, tuple[ArrowKind, str]] = {
    events.RoundAnnounced: ("clock", "heard of it"),
    events.ReportSeen: ("report", "saw its report"),
    events.WeightsFetched: ("weights", "fetched its weights"),
    events.RolloutsGathered: ("rollouts", "fetched its rollouts"),
}


def describe_moment(timeline: Timeline, moment: LoggedEvent) -> str:
    """An event as a clause that follows the node's name."""
    event = moment.event
    round_, stage = getattr(event, "round", -1), getattr(event, "stage", -1)
    of = f"round {round_} stage {stage}"
    match event:
        case StageOpened(final=True):
            return f"ended the swarm after {round_} rounds"
        case StageOpened():
            return f"opened {of}, for up to {event.deadline_at - event.opened_at:.0f} s"
        case events.RoundAnnounced(final=True):
            return f"heard that the swarm has run its {round_} rounds"
        case events.RoundAnnounced():
            return f"heard that {of} is open"
        case events.RolloutsGathered():
            return f"gathered for {of}: {_describe_gathered(timeline, event)}"
        case events.StageTrained():
            return "; ".join(_describe_trained(event, of))
        case events.ReportPublished():
            return f"published its rollouts and its report of {of}"
        case events.ReportSeen():
            return f"saw the report of {timeline.name_of(event.peer)} of {of}, reward {event.reward:.3f}"
        case events.WeightsFetched() | events.WeightsRefused() | events.WeightsAdopted():
            return describe_weights_event(event)
    return _describe_own_event(timeline, event, of)


def _describe_own_event(timeline: Timeline, event: object, of: str) -> str:
    """Describe an event that concerns only the node itself."""
    match event:
        case events.NodeStarted():
            return f"started as {event.settings.role}" + ", restored from a backup" * event.restored
        case events.NodeStopped():
            return f"stopped: {cut_first_line(event.reason)}"
        case events.LinkUp(isolated=isolated) if isolated:
            return f"was isolated: {cut_first_line(isolated)}"
        case events.LinkUp():
            return f"was connected to {count_noun(event.peers, 'peer')}"
        case events.LinkDegraded():
            return f"reached nobody: {cut_first_line(event.reason)}"
        case events.LinkDown():
            return f"had no DHT node: {cut_first_line(event.reason)}"
        case events.RoundsSkipped(first=first, last=last):
            rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
            return f"skipped {rounds}, cause: {event.cause}"
        case events.RecordsRejected():
            refused = count_noun(event.count, "record")
            return f"refused {refused} of {timeline.name_of(event.peer)}: {event.reason}"
        case events.Equivocated():
            return f"learned that {timeline.name_of(event.peer)} signed two different records ({event.kind}) of {of}"
        case events.TrainingCancelled():
            return f"gave {of} up after {count_noun(event.steps, 'step')}"
        case events.CommandFailed():
            return f"failed at {event.command}: {cut_first_line(event.reason)}"
        case events.TimerFired():
            return f"waited for {event.name} as long as it may"
        case events.WorkerExited():
            return f"lost its {event.worker} worker: {cut_first_line(event.reason)}"
        case events.SpaceLow():
            return "paused for want of disk space"
        case events.SpaceFreed():
            return "has disk space again"
        case events.ClockSet():
            return f"had its clock set by {event.step_s:+.0f} s"
    raise AssertionError(f"{type(event).__name__} is kept and has no words")


def _describe_gathered(timeline: Timeline, event: events.RolloutsGathered) -> str:
    had = [f"{ref.groups} groups of {timeline.name_of(ref.peer)}" for ref in event.rollouts] or ["nothing"]
    return ", ".join(had) + (f"; {event.missing} more were announced and did not come" if event.missing else "")


def _describe_trained(event: events.StageTrained, of: str) -> Iterator[str]:
    yield f"trained {of} in {event.seconds:.1f} s, reward {event.reward:.3f}, {event.rollouts.groups} groups to share"
    if event.peer_groups:
        yield f"{event.peer_groups} groups of peers used"
    for reason, groups in event.rejected:
        yield f"{groups} groups of peers refused: {reason}"


def is_shown_by_arrow(timeline: Timeline, moment: LoggedEvent) -> bool:
    """Whether an arrow from another log already says all that an event would."""
    told_by_cause = isinstance(moment.event, events.ReportSeen | events.RoundAnnounced)
    return told_by_cause and len(timeline.causes_of(moment)) > 0


def describe_clock_gaps(timeline: Timeline) -> list[str]:
    """A sentence for each clock that must be wrong, with its offset."""
    told = []
    for number, name in enumerate(timeline.names):
        clock = timeline.last_clock(number)
        correction, doubt_s = timeline.clocks.corrections[clock], timeline.clocks.doubt_s(clock)
        if correction:
            by = f"{abs(correction):.1f} s" + (f" (± {doubt_s:.1f} s)" if math.isfinite(doubt_s) else " or more")
            side = "behind" if correction > 0 else "ahead of"
            told.append(f"{name}'s clock is {by} {side} {timeline.names[0]}'s")
    if timeline.clocks.slack_s:
        told.append(f"a clock was set meanwhile: times are right within {timeline.clocks.slack_s:.1f} s")
    return told
