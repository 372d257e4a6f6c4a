"""`swarmd replay --against`: the same events under other charts or settings, and where they part."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from swarmd.errors import ExitCode

if TYPE_CHECKING:
    from swarmd.eventlog.replay import Comparison, StepOutcome


def show_comparison(log: Path, against: list[str], last: int | None, json: bool) -> None:
    """Print where the two sides part. Raises typer.Exit with 3 if they do."""
    from swarmd.cli.inspect.replay import watch
    from swarmd.cli.local_swarm.layout import parse_setting
    from swarmd.core.chart import load_charts
    from swarmd.core.step import step
    from swarmd.eventlog.export import to_json
    from swarmd.eventlog.replay import SettingsOverride, compare

    charts = [Path(one) for one in against if "=" not in one or Path(one).is_dir()]
    if len(charts) > 1:
        raise typer.BadParameter("one CHARTDIR at a time", param_hint="--against")
    supposed = SettingsOverride(dict(parse_setting(one) for one in against if Path(one) not in charts))
    other = partial(step, charts=load_charts(charts[0])) if charts else step
    found = compare(log, other, partial(watch, log, last=last), supposed)
    if json:
        typer.echo(to_json(found))
    else:
        typer.echo("\n".join(comparison_lines(found, " and ".join(against))))
    if found.first:
        raise typer.Exit(ExitCode.DIFFERENCE)


def comparison_lines(found: Comparison, against: str) -> Iterator[str]:
    """Where the sides part, how many commands of each kind there would have been, and how the final states differ."""
    from swarmd.eventlog.export import change_line, event_line

    first = found.first
    if first is None:
        yield f"{found.events} events go the same way under {against}"
        return
    yield f"here is the log, there {against}: they part at seq {first.seq}:"
    yield event_line(first.seq, first.at, first.event)
    yield from _outcome_lines("here", first.here)
    yield from _outcome_lines("there", first.there)
    yield f"at {found.decisions} of {found.events} events the commands differ; both sides are told what happened here"
    yield f"commands in {found.events} events:{'here':>14}{'there':>8}"
    for kind in sorted(found.here | found.there):
        yield f"  {kind:<30}{found.here.get(kind, 0):>6}{found.there.get(kind, 0):>8}"
    yield "the states at the end, here → there:" if found.changes else "the states at the end are the same"
    yield from (f"  {change_line(change)}" for change in found.changes)


def _outcome_lines(side: str, outcome: StepOutcome) -> Iterator[str]:
    from swarmd.eventlog.export import change_line, command_line

    if outcome.refused:
        yield f"  {side:<6}refused: {outcome.refused}"
        return
    for change in outcome.changes:
        yield f"  {side:<6}{change_line(change)}"
    for command in outcome.commands:
        yield f"  {side:<6}▶ {command_line(command)}"
    if not outcome.changes and not outcome.commands:
        yield f"  {side:<6}nothing changes"
