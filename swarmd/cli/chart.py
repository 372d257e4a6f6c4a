"""`swarmd chart`: list the statecharts or draw one, with the present state of a node marked."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from swarmd.cli.options import find_log_directory
from swarmd.core.chart import NAMES, AnyChart, Charts, DottedState, load_charts
from swarmd.core.state import State
from swarmd.core.submissions import next_submission
from swarmd.errors import NotFoundError
from swarmd.eventlog.fold import load_state


def chart(
    name: Annotated[str | None, typer.Argument(help=f"One of {', '.join(NAMES)}; without it, all are listed.")] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the chart as a mermaid state diagram.")] = False,
    state: Annotated[
        Path | None, typer.Option("--state", help="Mark the state that this data directory's log leads to.")
    ] = None,
    charts: Annotated[Path | None, typer.Option("--charts", help="Read the charts from this directory.")] = None,
) -> None:
    """List the statecharts or draw one."""
    loaded = load_charts(charts)
    current = chart_states(load_state(find_log_directory(state))[0]) if state else {}
    if name is None:
        Console().print(charts_table(loaded, current))
    elif mermaid:
        typer.echo(to_mermaid(find_chart(loaded, name), current.get(name)))
    else:
        Console().print(transitions_table(find_chart(loaded, name), current.get(name)))


def find_chart(charts: Charts, name: str) -> AnyChart:
    """The chart of that name. Raises NotFoundError."""
    if name not in NAMES:
        raise NotFoundError(f"there is no chart {name!r}", f"The charts are {', '.join(NAMES)}")
    found: AnyChart = getattr(charts, name)
    return found


def chart_states(state: State) -> dict[str, str]:
    """Each chart's current state, by chart name; a follower has no coordinator chart."""
    states: dict[str, str] = {"round": state.chart, "link": state.link.chart, "trainer": state.trainer.chart}
    if state.coordination:
        states["coordinator"] = state.coordination.chart
    if submission := next_submission(state):
        states["submission"] = submission.chart
    return states


def to_mermaid(chart: AnyChart, current: str | None = None) -> str:
    """Render the chart as a mermaid state diagram, with the `current` state coloured."""
    from transitions.extensions import HierarchicalGraphMachine

    class DrawnMachine(HierarchicalGraphMachine):
        state_cls = DottedState

    machine = DrawnMachine(
        states=chart.source["states"],
        transitions=[{key: row[key] for key in ("trigger", "source", "dest")} for row in chart.source["transitions"]],
        initial=chart.initial,
        auto_transitions=False,
        graph_engine="mermaid",
        title=f"title: {chart.name}",
    )
    graph = machine.model_graphs[id(machine)]
    graph.reset_styling()
    lines = str(graph.get_graph().draw(None)).splitlines()
    return "\n".join([*lines, *([f"  class {current} s_active"] if current else [])])


def charts_table(charts: Charts, current: dict[str, str]) -> Table:
    table = Table("chart", "states", "transitions", *(["now"] if current else []), box=None)
    for name in NAMES:
        chart = find_chart(charts, name)
        now = [current.get(name, "-")] if current else []
        table.add_row(name, str(len(chart.states)), str(len(chart.source["transitions"])), *now)
    return table


def transitions_table(chart: AnyChart, current: str | None) -> Table:
    """The outgoing transitions of each leaf state; the current state is marked."""
    table = Table("", "state", "trigger", "to", "why", box=None, title=chart.name, title_justify="left")
    for state in chart.states:
        moves = [(trigger, to) for (source, trigger), to in chart.table.items() if source == state]
        for row, (trigger, to) in enumerate(moves or [("", "")]):
            mark = "▶" if state == current and row == 0 else ""
            style = "bold green" if state == current else None
            table.add_row(
                mark,
                state if row == 0 else "",
                trigger,
                to,
                _find_transition_reason(chart, state, trigger),
                style=style,
            )
    return table


def _find_transition_reason(chart: AnyChart, state: str, trigger: str) -> str:
    parents = {state.rsplit(".", depth)[0] for depth in range(state.count(".") + 1)} | {"*"}
    for row in chart.source["transitions"]:
        sources = row["source"] if isinstance(row["source"], list) else [row["source"]]
        if row["trigger"] == trigger and parents & set(sources):
            return str(row.get("why", ""))
    return ""
