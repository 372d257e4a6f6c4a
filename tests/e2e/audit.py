"""What must hold of the logs of any swarm, whatever happened to it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from swarmd.cli import run_command
from swarmd.cli.local_swarm import LocalSwarm
from swarmd.core.events import Equivocated, Event, NodeStarted, RoundAnnounced, RoundsSkipped, StageTrained, reports_in
from swarmd.errors import ExitCode
from swarmd.eventlog.reader import read_commits


def events_of(events: Path) -> Iterator[Event]:
    """All events of a node's log."""
    for commit in read_commits(events):
        yield from commit.events


def verify(root: Path) -> None:
    """`swarmd replay --verify` on a node's directory."""
    assert run_command(["replay", str(root), "--verify"]) == ExitCode.OK


def audit(swarm: LocalSwarm) -> None:
    """Every log that there is verifies, trains no stage twice, accounts for every round once, and never goes back.

    None accuses another of having signed two things for one place.
    """
    logs = []
    for place in swarm.places:
        if not place.events.is_dir():
            continue
        verify(place.root)
        events = list(events_of(place.events))
        assert_trained_once(events)
        assert_clock_monotone(events)
        assert_rounds_accounted(events)
        logs.append(events)
    nodes = {event.settings.peer for events in logs for event in events if isinstance(event, NodeStarted)}
    for events in logs:
        assert_none_accused(events, nodes)
    assert_one_report_each(swarm)


def assert_trained_once(events: list[Event]) -> None:
    counts = Counter((event.round, event.stage) for event in events if isinstance(event, StageTrained))
    assert all(count == 1 for count in counts.values()), f"stages trained more than once: {counts}"


def assert_clock_monotone(events: list[Event]) -> None:
    marks = [(event.round, event.stage) for event in events if isinstance(event, RoundAnnounced)]
    assert marks == sorted(marks)


def assert_rounds_accounted(events: list[Event]) -> None:
    """A round is trained or skipped, never both, and skips name the rounds in order."""
    trained = {event.round for event in events if isinstance(event, StageTrained)}
    skipped = [round for e in events if isinstance(e, RoundsSkipped) for round in range(e.first, e.last + 1)]
    assert skipped == sorted(set(skipped))
    assert not trained & set(skipped)


def assert_none_accused(events: list[Event], nodes: set[str]) -> None:
    """The swarm's nodes are honest: whatever befell them, none has signed two different records for one place."""
    accused = [(event.kind, event.peer, event.round) for event in events if isinstance(event, Equivocated)]
    assert [each for each in accused if each[1] in nodes] == []


def assert_one_report_each(swarm: LocalSwarm) -> None:
    """Nobody's report of a stage was ever signed with two contents."""
    contents: dict[tuple[str, int, int], set[tuple[float, str]]] = {}
    for event in events_of(swarm.places[0].events):
        for report in reports_in(event):
            if report.record:
                key = (report.peer, report.round, report.stage)
                contents.setdefault(key, set()).add((report.reward, report.digest))
    assert all(len(content) == 1 for content in contents.values()), contents
