"""The statecharts as a page draws them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swarmd.core.chart import AnyChart, default_charts
from swarmd.core.state import State
from swarmd.web.shapes import ChartEdge, ChartState, ChartsView, ChartView
from swarmd.web.views.moments import charts_of


def charts_view(state: State) -> ChartsView:
    """The charts that this node has, and where each is; a chart of links serves both DHT and chain."""
    charts = default_charts()
    views = [chart_view("round", charts.round), chart_view("link", charts.link)]
    if state.chain is not None:
        views += [chart_view("chain", charts.link), chart_view("submission", charts.submission)]
    views.append(chart_view("trainer", charts.trainer))
    if state.coordination is not None:
        views.append(chart_view("coordinator", charts.coordinator))
    return ChartsView(tuple(views), charts_of(state))


def chart_view(name: str, chart: AnyChart) -> ChartView:
    """One chart, under the name that its instance has."""
    source = chart.source
    edges = tuple(edge for item in source["transitions"] for edge in _edges(item))
    return ChartView(name, chart.initial, tuple(_states(source["states"], "")), edges)


def _states(states: list[Any], parent: str) -> Iterator[ChartState]:
    for state in states:
        label = str(state["name"] if isinstance(state, dict) else state)
        name = f"{parent}.{label}" if parent else label
        yield ChartState(name, label, parent)
        if isinstance(state, dict):
            yield from _states(state.get("children", []), name)


def _edges(item: dict[str, Any]) -> Iterator[ChartEdge]:
    sources = item["source"] if isinstance(item["source"], list) else [item["source"]]
    for source in sources:
        yield ChartEdge(str(item["trigger"]), str(source), str(item["dest"]))
