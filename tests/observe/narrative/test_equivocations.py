"""How a node says that somebody signed two different records: in status, panel, metrics and log lines."""

from __future__ import annotations

import io

from rich.console import Console

from swarmd.core.applied import apply
from swarmd.core.events import Envelope, Equivocated
from swarmd.core.evidence import BARRED_ROUNDS
from swarmd.observe.live import Live
from swarmd.observe.narrative.describe import line_of
from swarmd.observe.panel import panel_of
from swarmd.observe.status import LogStatus, Status, status_of
from swarmd.observe.telemetry.outcomes import Outcomes
from tests.core.story import Story, announced, settings

CLOCK = Equivocated("clock", "boss", 3, 0, b"1", b"2")
REPORT = Equivocated("report", "anna", 3, 0, b"1", b"2")
OWN = Equivocated("report", "me", 3, 0, b"1", b"2")


def follower(*events: Equivocated) -> Story:
    node = Story(settings())
    node.join()
    node.tell(announced(3), *events)
    return node


def status(node: Story) -> Status:
    return status_of(node.state, 10.0, LogStatus("", 0, 0), Live(pid=1, rss_bytes=0))


def test_a_coordinator_that_contradicts_itself_is_told_with_what_the_node_does() -> None:
    told = status(follower(CLOCK))
    assert "the coordinator boss signed two different clock records of round 3 stage 0" in told.round.reason
    assert told.round.healthy, "it goes on"
    (note,) = told.notes
    assert "later place and deadline" in note and "swarmd explain --evidence" in note
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(panel_of(told))
    assert "two different clock records" in console.export_text()


def test_a_member_is_told_with_the_round_in_which_it_is_back_and_then_forgotten() -> None:
    node = follower(REPORT, OWN)
    first, second = status(node).notes
    assert "anna signed two different reports of round 3 stage 0: nothing of it counts until round 67" in first
    assert second.startswith("this node's identity signed two different reports")
    assert "anna" not in status(node).round.reason
    node.tell(announced(3 + BARRED_ROUNDS))
    assert status(node).notes == ()


def test_each_is_counted_and_logged_once() -> None:
    node, outcomes, levels = follower(), Outcomes(), []
    for number, event in enumerate((CLOCK, REPORT, REPORT)):
        applied = apply(node.state, Envelope(node.seq + number, 10.0, event))
        node.state = applied.after
        outcomes.apply(applied)
        levels.append(line_of(applied).level)
    counted = {
        sample.labels["kind"]: sample.value
        for family in outcomes.collect()
        for sample in family.samples
        if sample.name == "swarmd_equivocations_total"
    }
    assert counted == {"report": 1, "clock": 1, "leaderboard": 0}
    assert levels == ["error", "warning", "debug"]
