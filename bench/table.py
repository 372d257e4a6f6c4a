"""The result: rows of figures, each beside its peer or limit, with the goal and whether it is met."""

from __future__ import annotations

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bench.measure import Sample


class Row(msgspec.Struct, frozen=True):
    """One line of a result.

    Attributes:
        what: is measured.
        unit: of `ours` and `theirs`.
        ours: swarmd's values.
        peer: who or what it is compared with; empty for a figure of its own.
        theirs: the peer's values from the same run.
        ratio: ours over theirs within each round, turned so that it is what the goal speaks of.
        goal: in words; empty where the row only explains another one.
        met: whether it is; None without a goal.
    """

    what: str
    unit: str
    ours: Sample
    peer: str = ""
    theirs: Sample | None = None
    ratio: Sample | None = None
    goal: str = ""
    met: bool | None = None


class Result(msgspec.Struct, frozen=True):
    """What one benchmark came to; `trouble` says why it could not run."""

    name: str
    summary: str
    rows: tuple[Row, ...] = ()
    seconds: float = 0.0
    trouble: str = ""


def figure(value: float) -> str:
    """Three significant digits, with separators for thousands."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def spread(sample: Sample | None, unit: str = "") -> str:
    """Median (smallest..largest) unit."""
    if sample is None or not sample.values:  # measured elsewhere
        return ""
    text = figure(sample.median)
    if len(sample.values) > 1:
        text += f" ({figure(sample.low)}..{figure(sample.high)})"
    return f"{text} {unit}".rstrip()


def verdict(row: Row) -> str:
    """met, MISSED, or nothing."""
    return {True: "met", False: "MISSED", None: ""}[row.met]


HEADINGS = ("what", "swarmd", "peer or limit", "ratio", "goal", "")


def cells(row: Row) -> tuple[str, ...]:
    """A row as text."""
    peer = f"{row.peer}: {spread(row.theirs, row.unit)}" if row.theirs else row.peer
    return (row.what, spread(row.ours, row.unit), peer, spread(row.ratio), row.goal, verdict(row))


def print_result(result: Result, console: Console) -> None:
    """Show a benchmark's rows."""
    title = f"{result.name}: {result.summary} [{result.seconds:.0f} s]"
    if result.trouble:
        console.print(f"\n{title}\n  could not run: {result.trouble}", markup=False, highlight=False)
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in result.rows:
        table.add_row(*cells(row))
    console.print(table, markup=False, highlight=False)


def as_tables(result: Result, taken: str) -> dict[str, object]:
    """A result as bench/results keeps it.

    Args:
        result: what a benchmark came to.
        taken: on which machine, in words.
    """
    table = {"columns": HEADINGS, "rows": [cells(row) for row in result.rows]}
    return {"name": result.name, "summary": result.summary, "taken": taken, "tables": [table]}
