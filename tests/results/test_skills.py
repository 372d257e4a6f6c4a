"""Curves by task: every measurement in its order, and since when one has fallen or is drawn more."""

from __future__ import annotations

import pytest

from swarmd.core.values import SKILLS_MAX, Skill
from swarmd.results.history import Measured, curves_of, skills_summary


def measured(task: str, *weights: float) -> list[Measured]:
    """A measurement a round, from round 10 on; weight 0: fallen, and drawn as ever."""
    return [
        Measured(10 + place, 0, (Skill(task, 0.5, 32, 0.8, weight != 1, weight or 1.0),))
        for place, weight in enumerate(weights)
    ]


@pytest.mark.parametrize(
    ("weights", "fallen", "more"),
    [
        ((1, 1), None, None),
        ((1, 2, 3), 11, 11),
        ((2, 1, 2), 12, 12),
        ((2, 2, 1), None, None),
        ((0, 0, 2), 10, 12),
        ((2, 0, 0), 10, None),
    ],
)
def test_since_when_is_the_begin_of_the_last_unbroken_run(
    weights: tuple[float, ...], fallen: int | None, more: int | None
) -> None:
    (curve,) = curves_of(measured("sort", *weights))
    assert (curve.fallen_since, curve.drawn_more_since) == (fallen, more)
    assert [(point.round, point.weight > 1) for point in curve.points] == [
        (10 + place, weight > 1) for place, weight in enumerate(weights)
    ]


def test_a_task_that_is_measured_at_times_has_those_points() -> None:
    both = (Skill("a", 0.1, 8, 0.1), Skill("b", 0.2, 8, 0.2))
    rows = [Measured(1, 0, both), Measured(1, 1, ()), Measured(2, 1, (Skill("b", 0.3, 8, 0.3),))]
    a, b = curves_of(rows)
    assert (a.task, [point.held_out for point in a.points]) == ("a", [0.1])
    assert [(point.round, point.stage, point.held_out) for point in b.points] == [(1, 0, 0.2), (2, 1, 0.3)]


def test_of_very_many_tasks_those_measured_last_are_kept() -> None:
    rows = [row for number in range(100) for row in measured(f"task {number:03}", 1)]
    assert [curve.task for curve in curves_of(rows)] == [f"task {number:03}" for number in range(100 - SKILLS_MAX, 100)]


def test_the_summary_begins_with_what_is_drawn_more() -> None:
    rows = [*measured("a", 1), *measured("b", 0), *measured("c", 1, 2.25)]
    curves = curves_of(rows)
    assert skills_summary(curves, 2) == ("c 0.50 (drawn 2.2 times as often, since round 11), a 0.50, 1 more")
    assert "b 0.50 (fallen since round 10)" in skills_summary(curves, 3)
    assert skills_summary((), 3) == ""
