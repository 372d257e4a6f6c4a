"""The benchmark `hostile`: rounds are counted in parts, outcomes are kept, and rows say where a goal is missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import hostile
from bench.hostile import run
from bench.hostile_rows import ELSEWHERE, Figures, Outcome, make_rows
from bench.table import Result, to_markdown

GOOD: Figures = {
    "attacked": [29.0, 29.5],
    "quiet": [30.0, 30.0],
    "credited": [60.0],
    "due": [60.0],
    "worker peak": [20.0, 30.0, 10.0],
    "worker after": [5.0, 6.0, 7.0],
    "p2pd peak": [50.0, 60.0, 70.0],
    "p2pd after": [5.0, 6.0, 7.0],
    "exits": [0.0],
    "exit codes": [0.0],
    "skipped": [0.0],
    "node": [],
}


def missed(what: str, figures: Figures) -> list[str]:
    """Rows whose goal these figures miss."""
    return [row.what.strip() for row in make_rows([Outcome(what, 3, 40.0, figures)]) if row.met is False]


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        ({"attacked": [20.0, 30.0]}, "all: all of these, poison, halves and other floods: rounds"),
        ({"credited": [59.0]}, "honest reports credited"),
        ({"credited": [0.0], "due": [0.0]}, "honest reports credited"),
        ({"worker peak": [20.0, 65.0, 10.0]}, "network worker above its quiet size"),
        ({"worker after": [20.0, 33.0, 10.0]}, "network worker above its quiet size, a minute after"),
        ({"node": [800.0, 1600.0]}, "all of the node"),
        ({"exits": [0.0, 1.0]}, "workers and nodes that ended, rounds skipped"),
        ({"exit codes": [0.0, -9.0]}, "workers and nodes that ended, rounds skipped"),
        ({}, None),
    ],
)
def test_a_goal_is_missed_where_one_node_misses_it(changed: Figures, row: str | None) -> None:
    assert missed("all", GOOD | changed) == ([row] if row else [])


def test_outcomes_that_are_known_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(directory: Path, what: str, seconds: float, nodes: int, *rest: object) -> Outcome:
        measured.append(what)
        return Outcome(what, nodes, seconds, GOOD)

    monkeypatch.setattr(hostile, "measure", measure)
    told: list[Outcome] = []
    known = [Outcome("1", 3, 40.0, GOOD), Outcome("4", 3, 90.0, GOOD)]
    rows = list(run(tmp_path, ("1", "4"), 40.0, 3, tell=told.append, known=known))
    assert measured == ["4"] == [each.what for each in told], "the other one was of another length"
    assert [row.what[0] for row in rows if row.theirs] == ["1", "4"]
    assert all(command in to_markdown([Result("hostile", "", tuple(rows))]) for command in ELSEWHERE.values())
