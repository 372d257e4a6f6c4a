"""Held-out accuracy by task over rounds: a curve for each, with what the guard draws more, and since when. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from swarmd.core.values import SKILLS_MAX, Skill
from swarmd.results.rows import Rows


class Stage(Protocol):
    """A trained stage: a `Measured`, or a `swarmd.results.history.StageResult`."""

    @property
    def round(self) -> int: ...
    @property
    def stage(self) -> int: ...
    @property
    def skills(self) -> Sequence[Skill]: ...


class Measured(NamedTuple):
    """What was measured after a stage."""

    round: int
    stage: int
    skills: Sequence[Skill]


class SkillPoint(msgspec.Struct, frozen=True, gc=False):
    """One measurement of a task; fields as in `Skill`."""

    round: int
    stage: int
    held_out: float
    best: float
    fallen: bool
    weight: float  # how often it was drawn from there on; 1: as ever


class SkillCurve(msgspec.Struct, frozen=True):
    """The measurements of one task, in their order."""

    task: str
    points: Sequence[SkillPoint]
    fallen_since: int | None = None  # round; None where it has not fallen now
    drawn_more_since: int | None = None  # round; None where it is drawn as ever now


def curves_of(stages: Sequence[Stage]) -> tuple[SkillCurve, ...]:
    """The curves, each with `Rows`, of `SKILLS_MAX` tasks at most, those measured last before others, by name.

    Args:
        stages: in their order.
    """
    points = {task: Rows(SkillPoint) for task in _latest_tasks(stages)}
    for each in stages:
        for skill in each.skills:
            if skill.task in points:
                told = (skill.held_out, skill.best, skill.fallen, skill.weight)
                points[skill.task].append(SkillPoint(each.round, each.stage, *told))
    return tuple(_curve(task, found) for task, found in sorted(points.items()))


def _latest_tasks(stages: Sequence[Stage]) -> list[str]:
    tasks: dict[str, None] = {}
    for each in reversed(stages):
        if each.skills:
            tasks |= dict.fromkeys(skill.task for skill in each.skills)
        if len(tasks) >= SKILLS_MAX:
            break
    return list(tasks)[:SKILLS_MAX]


def _curve(task: str, points: Rows[SkillPoint]) -> SkillCurve:
    fallen = _since((point.round, point.fallen) for point in reversed(points))
    return SkillCurve(task, points, fallen, _since((each.round, each.weight > 1) for each in reversed(points)))


def _since(newest_first: Iterable[tuple[int, bool]]) -> int | None:
    """The first round of those without a gap up to the newest in which it holds; None where it does not there."""
    since = None
    for round, holds in newest_first:
        if not holds:
            break
        since = round
    return since


def skills_summary(curves: Sequence[SkillCurve], tasks_max: int) -> str:
    """The newest accuracy of each task, and what is drawn more since when; empty where nothing is known.

    Args:
        tasks_max: tasks told of; of more, those that are drawn more come first.
    """
    ordered = sorted(curves, key=lambda curve: curve.drawn_more_since is None)
    told = [f"{curve.task} {curve.points[-1].held_out:.2f}{_mark(curve)}" for curve in ordered[:tasks_max]]
    return ", ".join([*told, *[f"{len(curves) - tasks_max} more"] * (len(curves) > tasks_max)])


def _mark(curve: SkillCurve) -> str:
    if curve.drawn_more_since is not None:
        return f" (drawn {curve.points[-1].weight:.1f} times as often, since round {curve.drawn_more_since})"
    return f" (fallen since round {curve.fallen_since})" if curve.fallen_since is not None else ""
