"""What an event means for the story of a round, in plain sentences. Pure.

What has no phrase of its own and is a warning is told in the words of its log line; the rest is silent.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from swarmd.core.applied import Applied
from swarmd.core.events import (
    Equivocated,
    Event,
    LinkDown,
    LinkUp,
    NodeStarted,
    NodeStopped,
    RecordsRejected,
    ReportPublished,
    RolloutsGathered,
    RoundAnnounced,
    RoundsSkipped,
    StageTrained,
    StopRequested,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionRefused,
    SubmissionSent,
    TimerFired,
    TrainerReady,
    TrainingCancelled,
    WeightsAdopted,
    WeightsFetched,
    WeightsRefused,
    WorkerExited,
)
from swarmd.core.ids import Timer, TimerName, timer_about
from swarmd.core.node.workers import LEAVING
from swarmd.observe.layers import first_line, holding
from swarmd.observe.narrative.aside import aside_words, is_marked
from swarmd.observe.narrative.equivocations import equivocation_words
from swarmd.observe.narrative.lines import hold_turn, line_of
from swarmd.observe.narrative.off_policy import off_policy_words
from swarmd.observe.narrative.skills import skills_words
from swarmd.observe.narrative.waiting import closed_without
from swarmd.observe.narrative.weights import weights_level, weights_round, weights_words

WARNINGS = ("warning", "error", "critical")
REASON_CHARACTERS_MAX = 300

_SUBMISSIONS = (SubmissionSent, SubmissionIncluded, SubmissionConfirmed, SubmissionLost, SubmissionRefused)
_TOLD_OTHERWISE = (RecordsRejected, RoundAnnounced)  # by words of their own, or not at all
_OVERDUE: dict[Timer | TimerName, tuple[str, bool]] = {
    "train": ("the stage took longer than [round] train_s allows and was given up", True),
    "gather": ("the wait for peers' rollouts ended", False),
    "publish": ("nobody had acknowledged the report, it was sent again", False),
    "clock": ("no announcement had come although one was due: the node looked again", False),
    "weights": ("the wait for a peer's weights ended", False),
    "cancel": ("the trainer had not stopped when told", True),
    timer_about("ready", "trainer"): ("the trainer was not ready in time", True),
    timer_about("ready", "network"): ("the network worker was not ready in time", True),
    timer_about("ready", "chain"): ("the chain worker was not ready in time", True),
}


class Sentence(msgspec.Struct, frozen=True):
    """One sentence without its full stop.

    Attributes:
        round: that it is about; None when about the node itself.
        trouble: something went wrong.
        settles: it belongs to its round even when the node is long past it.
    """

    at: float
    seq: int
    text: str
    round: int | None = None
    trouble: bool = False
    settles: bool = False


def sentences_of(applied: Applied, last_at: float) -> list[Sentence]:
    """What is to be said of an event; `last_at` is when the event before it was committed."""
    said: list[Sentence | None] = [_clock(applied)]
    phrase = _PHRASES.get(type(applied.event))
    if phrase is not None:
        said.append(phrase(applied, last_at))
    elif not isinstance(applied.event, _TOLD_OTHERWISE) and not hold_turn(applied.before, applied.after):
        said.append(_warning(applied))
    said.append(_held(applied))
    said.append(_closed_without(applied))
    said.append(_entered(applied))
    return [sentence for sentence in said if sentence is not None]


def _clock(applied: Applied) -> Sentence | None:
    """Where the swarm went, whoever said so."""
    old, new = applied.before.clock, applied.after.clock
    if new is None or new == old:
        return None
    if new.final:
        return _fact(applied, f"the swarm had run its {new.round} rounds")
    if old is not None and (old.round, old.stage) == (new.round, new.stage):
        return None
    open_s = new.deadline_at - new.opened_at
    ago_s = applied.at - new.opened_at
    heard = f", {ago_s:.0f} s before this node heard of it" if ago_s >= 1 else ""
    return _fact(applied, f"round {new.round} stage {new.stage} opened, for up to {open_s:.0f} s{heard}")


def _entered(applied: Applied) -> Sentence | None:
    """A new place in the round's chart that no other sentence tells."""
    if applied.before.chart == applied.after.chart:
        return None
    work = applied.after.work
    if applied.after.chart == "round.gathering" and work is not None and work != applied.before.work:
        return _fact(applied, f"this node took part in round {work.round} stage {work.stage}", work.round)
    if applied.after.chart == "skipping":
        return _fact(applied, 'a newer stage had opened: training was cancelled ([round] behind = "abandon")')
    gave_up = applied.before.chart == "round.training" and applied.after.chart == "round.settling"
    if gave_up and work is not None and work.result is None:
        return _trouble(applied, f"the stage was given up, round {work.round} stage {work.stage} was not trained")
    return None


def _held(applied: Applied) -> Sentence | None:
    """A coordinator begins to hold a stage, or need not any more."""
    text = hold_turn(applied.before, applied.after)
    return Sentence(applied.at, applied.seq, text, trouble=holding(applied.after) is not None) if text else None


def _closed_without(applied: Applied) -> Sentence | None:
    """A stage closed before somebody had reported."""
    round, text = closed_without(applied)
    return _fact(applied, f"round {round} {text}", round) if text else None


def _started(applied: Applied, last_at: float) -> Sentence | None:
    if applied.before.settings is None:
        return _fact(applied, "the node started for the first time")
    down_s = max(0.0, applied.at - last_at)
    if applied.before.chart in ("stopped", "failed"):
        return _fact(applied, f"the node was started again, {down_s:.0f} s after it had stopped")
    return _trouble(applied, f"the node was started again after a crash or a kill; up to {down_s:.0f} s were lost")


def _stopped(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, NodeStopped)
    code = f", exit code {event.code}" if event.code else ""
    return Sentence(
        applied.at, applied.seq, f"the node stopped: {_short(event.reason)}{code}", trouble=bool(event.code)
    )


def _gathered(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, RolloutsGathered)
    groups = sum(ref.groups for ref in event.rollouts)
    missing = f"; {event.missing} more were announced and could not be had" if event.missing else ""
    return _fact(applied, f"it fetched {groups} groups of {_peers(len(event.rollouts))}{missing}", event.round)


def _trained(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, StageTrained)
    text = (
        f"it trained round {event.round} stage {event.stage} in {event.seconds:.1f} s: {event.steps} steps, "
        f"{event.tokens:,} tokens, {event.peer_groups} groups of peers, reward {event.reward:.3f}"
    )
    held_out = "" if event.held_out is None else f", held-out accuracy {event.held_out:.2f}"
    skills = f", {skills_words(event.skills)}" if event.skills else ""
    weighed = f"; {off_policy_words(event.off_policy)}" if event.off_policy else ""
    aside = f"; {aside_words(event)}" if event.set_aside else ""
    fact = _fact(applied, text + held_out + skills + weighed + aside, event.round)
    return msgspec.structs.replace(fact, trouble=is_marked(event))


def _cancelled(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, TrainingCancelled)
    return _fact(applied, f"training of stage {event.stage} ended after {event.steps} steps, unfinished", event.round)


def _weights(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, WeightsAdopted | WeightsFetched | WeightsRefused)
    fact = _fact(applied, _short(weights_words(event)), weights_round(event))
    return msgspec.structs.replace(fact, trouble=weights_level(event) == "warning")


def _published(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, ReportPublished)
    return Sentence(
        applied.at, applied.seq, f"its report of stage {event.stage} was published", event.round, settles=True
    )


def _skipped(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, RoundsSkipped)
    span = f"round {event.first}" if event.first == event.last else f"rounds {event.first} to {event.last}"
    return _fact(applied, f"{span} went on record as skipped, cause {event.cause}")


def _timer(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, TimerFired)
    words = _OVERDUE.get(TimerName(event.name))
    if words is None or applied.before == applied.after:
        return None
    text, trouble = words
    return Sentence(applied.at, applied.seq, text, trouble=trouble)


def _exited(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, WorkerExited)
    if applied.before.chart in LEAVING:
        return None
    if event.planned:
        return _fact(applied, f"the {event.worker} worker made room for a fresh process: {_short(event.reason)}")
    return _trouble(applied, f"the {event.worker} worker ended: {_short(event.reason)}")


def _ready(applied: Applied, last_at: float) -> Sentence | None:
    return _fact(applied, f"the trainer was ready with {applied.after.trainer.model} on {applied.after.trainer.device}")


HEARD_AGAIN = "the node was no longer isolated"


def _linked(applied: Applied, last_at: float) -> Sentence | None:
    if bool(applied.before.link.isolated) != bool(applied.after.link.isolated):
        isolated = applied.after.link.isolated
        return _fact(applied, f"the node was isolated: {isolated}" if isolated else HEARD_AGAIN)
    if applied.before.link.chart == applied.after.link.chart:
        return None
    return _fact(applied, f"the DHT answered, {_peers(applied.after.link.peers)}")


def _stop_asked(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, StopRequested)
    return _fact(applied, f"the node was asked to stop: {_short(event.reason)}")


def _link_lost(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, LinkDown)
    return None if applied.before.chart in LEAVING else _trouble(applied, f"the DHT was lost: {_short(event.reason)}")


def _submission(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, _SUBMISSIONS)
    known = next((each for each in applied.after.submissions if each.id == event.submission), None)
    line = line_of(applied)
    round = known.round if known is not None and known.kind != "register" else None
    trouble = line.level in WARNINGS
    return Sentence(applied.at, applied.seq, _short(line.message), round, trouble, settles=True)


def _equivocated(applied: Applied, last_at: float) -> Sentence | None:
    event = applied.event
    assert isinstance(event, Equivocated)
    if applied.before.equivocations is applied.after.equivocations:
        return None
    text = equivocation_words(event, applied.after)
    return Sentence(applied.at, applied.seq, text, event.round, settles=True)


def _warning(applied: Applied) -> Sentence | None:
    """What nothing else is said of, if it is a warning, in the words of the log."""
    line = line_of(applied)
    return _trouble(applied, _short(line.message)) if line.level in WARNINGS else None


def _peers(count: int) -> str:
    return "1 peer" if count == 1 else f"{count} peers"


def _fact(applied: Applied, text: str, round: int | None = None) -> Sentence:
    return Sentence(applied.at, applied.seq, text, round)


def _trouble(applied: Applied, text: str) -> Sentence:
    return Sentence(applied.at, applied.seq, text, trouble=True)


def _short(text: str) -> str:
    """The first line of a text, within the bound."""
    line = first_line(text)
    return line if len(line) <= REASON_CHARACTERS_MAX else line[:REASON_CHARACTERS_MAX] + "…"


_Phrase = Callable[[Applied, float], Sentence | None]
_PHRASES: dict[type[Event], _Phrase] = {
    NodeStarted: _started,
    NodeStopped: _stopped,
    StopRequested: _stop_asked,
    RolloutsGathered: _gathered,
    StageTrained: _trained,
    TrainingCancelled: _cancelled,
    WeightsAdopted: _weights,
    WeightsFetched: _weights,
    WeightsRefused: _weights,
    ReportPublished: _published,
    RoundsSkipped: _skipped,
    TimerFired: _timer,
    WorkerExited: _exited,
    TrainerReady: _ready,
    LinkUp: _linked,
    LinkDown: _link_lost,
    Equivocated: _equivocated,
    **dict.fromkeys(_SUBMISSIONS, _submission),
}
