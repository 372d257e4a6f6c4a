"""Every event has a line, and the line says where it belongs."""

from __future__ import annotations

import string
import typing

import pytest
from msgspec.structs import replace

from swarmd.core.applied import Applied
from swarmd.core.events import (
    CommandFailed,
    Envelope,
    Event,
    LinkUp,
    MemberRow,
    MemberSeen,
    MembersSeen,
    NodeStarted,
    NodeStopped,
    RecordsRejected,
    ReportRow,
    ReportSeen,
    ReportsSeen,
    RoundAnnounced,
    RoundsSkipped,
    StageTrained,
    WorkerExited,
    tag_of,
)
from swarmd.core.state import Clock, State
from swarmd.core.values import CoordinatorSettings, Judgement, RolloutsRef, Settings
from swarmd.observe.narrative.describe import WORDS, line_of

SETTINGS = Settings("me", "test", "coordinator", "me", coordination=CoordinatorSettings())
REFERENCE = RolloutsRef("me", 1, 0, "d" * 64, 10, 1)
EMPTY = State(chart="starting")
STATE = State(settings=SETTINGS, clock=Clock(4, 1, 0.0, 10.0), chart="waiting")
EXAMPLES: tuple[Event, ...] = (
    NodeStarted(SETTINGS, "run"),
    RoundAnnounced(4, 1, 0.0, 10.0),
    StageTrained("c", 2, 1, 0.5, REFERENCE),
    ReportSeen("other", 3, 0, 0.5),
    WorkerExited("trainer", "why; last output:\nline\nline"),
    RecordsRejected("other", "stale", 3),
    ReportsSeen(3, 0, (ReportRow("other", 0.5), ReportRow("third", 0.25))),
    MembersSeen((MemberRow("other", "Otto"),)),
)


def test_every_event_has_words_that_fit_it() -> None:
    kinds = set(typing.get_args(Event))
    assert set(WORDS) == kinds
    for kind, how in WORDS.items():
        if isinstance(how.words, str):
            names = {part.split(".")[0] for _, part, _, _ in string.Formatter().parse(how.words) if part}
            assert all(hasattr(kind, name) for name in names), kind


@pytest.mark.parametrize("event", EXAMPLES, ids=tag_of)
def test_a_line_carries_seq_round_stage_peer_and_tag(event: Event) -> None:
    line = line_of(Applied(Envelope(7, 1.0, event), STATE, STATE, ()))
    assert line.fields["seq"] == 7 and line.fields["event"] == tag_of(event)
    assert {"round", "stage", "peer"} <= set(line.fields)
    assert line.fields["peer"] == getattr(event, "peer", "me")
    assert (line.fields["round"], line.fields["stage"]) == (getattr(event, "round", 4), getattr(event, "stage", 1))


def test_a_trained_stage_says_what_was_refused_and_how_peers_were_judged() -> None:
    event = replace(EXAMPLES[2], rejected=(("group-size", 3), ("{odd}", 1)), judged=(Judgement("b", 0.5),))
    line = line_of(Applied(Envelope(0, 1.0, event), STATE, STATE, ()))
    assert line.message.endswith("reward 0.5000; refused of peers: group-size 3, {odd} 1")
    assert line.fields["judged"] == (("b", 0.5),)


def level(event: Event, before: State = EMPTY, after: State = STATE) -> str:
    return line_of(Applied(Envelope(0, 1.0, event), before, after, ())).level


def test_levels() -> None:
    assert level(LinkUp(1)) == "info"
    assert level(LinkUp(1), STATE, STATE) == "debug", "it changed nothing"
    assert level(MemberSeen("x"), STATE, STATE) == "debug"
    assert level(CommandFailed("c", "why"), STATE, STATE) == "warning"
    assert level(RoundsSkipped(0, 3, "slow")) == "warning"
    assert level(WorkerExited("trainer", "x")) == "warning"
    assert level(WorkerExited("trainer", "x", permanent=True, exit_code=66)) == "error"
    assert level(WorkerExited("trainer", "x", code=70)) == "warning", "a status of the worker is no verdict"
    assert level(WorkerExited("trainer", "stopped"), State(chart="draining")) == "info"
    assert level(WorkerExited("trainer", "recycled", planned=True)) == "info"
    assert level(NodeStopped("x", 73)) == "error"
    assert level(NodeStopped("x", 0)) == "info"
