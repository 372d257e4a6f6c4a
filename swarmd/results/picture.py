"""Plots one or more nodes: held-out accuracy, reward, skipped rounds and restarts.

No display is needed. The colours are those of Okabe and Ito, distinguishable for the colour-blind; each node also has
its own marker and line style.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from swarmd.animals import animal_name
from swarmd.core.values import SkipCause
from swarmd.errors import PathUnusable
from swarmd.files import advise_on_path_error, remove_leftover
from swarmd.results.history import TrainingHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h")
LINES = ("-", "--", "-.", ":")
CAUSES: dict[SkipCause, tuple[str, str]] = {  # marker and colour
    "late": (">", "#666666"),
    "slow": ("d", "#E69F00"),
    "fault": ("x", "#D55E00"),
    "stopped": ("s", "#0072B2"),
}
NODES_MAX = 64  # nodes in one picture
TASKS_MAX = 8  # task panels in one picture
TASK_INCHES = 1.4  # height of a task panel
POINTS_MARKED_MAX = 60  # with more rounds, only some points get a marker
BARS_MAX = 1000  # bars in a row
POINTS_MAX = 4000  # points of a line; more are averaged
SKIPS_BESIDE = 5  # skipped rounds shown before the first and after the last trained one
LEGEND_CHARS = 140  # in one row of the legend
LABEL_CHARS_MAX = 60
WIDTH_INCHES, DPI = 10.0, 150
SUFFIXES = (".png", ".svg")


def draw(histories: Sequence[TrainingHistory], path: Path) -> None:
    """Write the picture, as PNG or SVG by suffix, atomically. Raises PathUnusable if the file cannot be written."""
    figure = make_figure(histories)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # such characters appear as boxes
            figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=DPI, metadata=_undated_metadata(path))
        temporary.replace(path)
    except OSError as error:
        fix = advise_on_path_error(error, path) or "Name another file with --out"
        if not path.parent.is_dir():
            fix = f"Make the directory {path.parent} first, or name another file with --out"
        raise PathUnusable(f"{path} cannot be written: {error.strerror or error}", fix) from error
    finally:
        remove_leftover(temporary)


def _undated_metadata(path: Path) -> dict[str, Any]:
    """Metadata without a date, so that the same log gives the same bytes."""
    return {"Date": None} if path.suffix == ".svg" else {"Software": "swarmd"}


def make_figure(histories: Sequence[TrainingHistory]) -> Figure:
    """Draw the first `NODES_MAX` nodes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "swarmd"
    from matplotlib.figure import Figure

    shown = histories[:NODES_MAX]
    lanes = 0.6 + 0.22 * len(shown)
    names = labels_of(shown)
    legend = 0.2 * math.ceil(len(shown) / _count_legend_columns(names))
    tasks = choose_tasks(shown)
    by_task = [TASK_INCHES] * len(tasks)
    figure = Figure(figsize=(WIDTH_INCHES, 6.4 + sum(by_task) + lanes + legend), layout="constrained")
    panels = figure.subplots(3 + len(tasks), 1, sharex=True, height_ratios=(3.1, *by_task, 3.1, lanes))
    accuracy, reward, life = panels[0], panels[-2], panels[-1]
    for axes, task in zip(panels[1:-2], tasks, strict=True):
        _draw_task(axes, shown, task)
    for place, (history, name) in enumerate(zip(shown, names, strict=True)):
        _draw_accuracy(accuracy, history, {**_node_style(place, history), "label": name})
        _draw_reward(reward, history, _node_style(place, history))
    _draw_node_lanes(life, shown, names)
    _label_panels(figure, (accuracy, reward, life), shown)
    for axes in panels[1:-2]:
        _style_frame(axes, "both")
    return figure


def choose_tasks(histories: Sequence[TrainingHistory]) -> list[str]:
    """Choose at most `TASKS_MAX` tasks for panels: first those whose accuracy has fallen, then by name."""
    curves = [curve for history in histories for curve in history.skills]
    fallen = {curve.task for curve in curves if any(point.fallen for point in curve.points)}
    return sorted({curve.task for curve in curves}, key=lambda task: (task not in fallen, task))[:TASKS_MAX]


def _draw_task(axes: Axes, histories: Sequence[TrainingHistory], task: str) -> None:
    """Plot the nodes' accuracy on one task by round, with a wider line while the task is drawn more often."""
    for place, history in enumerate(histories):
        look = {**_node_style(place, history), "markersize": 3.0, "linewidth": 1.2}
        for points in (curve.points for curve in history.skills if curve.task == task):
            held_out = average_points(((point.round, point.held_out) for point in points), len(points))
            axes.plot([round for round, _ in held_out], [value for _, value in held_out], **look)
            drawn_more = ((each.round, each.held_out if each.weight > 1 else math.nan) for each in points)
            more = average_points(drawn_more, len(points))
            under = {"color": look["color"], "marker": "o", "markersize": 9, "linewidth": 7, "alpha": 0.25}
            axes.plot([round for round, _ in more], [value for _, value in more], **under, label=None)
    axes.set_ylim(-0.04, 1.04)
    axes.set_ylabel("held out", fontsize=8)
    axes.set_title(escape_label(task), loc="left", fontsize=8)


def _node_style(place: int, history: TrainingHistory) -> dict[str, Any]:
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": LINES[place // len(COLOURS) % len(LINES)],
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 4.5,
        "markevery": max(min(len(history.rounds), POINTS_MAX) // POINTS_MARKED_MAX, 1),
        "linewidth": 1.6,
    }


def _draw_accuracy(axes: Axes, history: TrainingHistory, look: dict[str, Any]) -> None:
    count = sum(row.held_out is not None for row in history.rounds)
    measured = average_points(((row.round, row.held_out) for row in history.rounds if row.held_out is not None), count)
    if history.held_out_before is not None and measured:
        first = measured[0][0] - 1
        unnamed = {**look, "label": None, "markevery": 1}
        axes.plot([first], [history.held_out_before], **{**unnamed, "markerfacecolor": "white"})
        dotted = {**unnamed, "linestyle": ":", "marker": "", "linewidth": 1.0}
        axes.plot([first, measured[0][0]], [history.held_out_before, measured[0][1]], **dotted)
    axes.plot([round for round, _ in measured], [value for _, value in measured], **look)


def _draw_reward(axes: Axes, history: TrainingHistory, look: dict[str, Any]) -> None:
    points = average_points(((row.round, row.reward) for row in history.rounds), len(history.rounds))
    axes.plot([round for round, _ in points], [reward for _, reward in points], **look)


def average_points(points: Iterable[tuple[int, float]], count: int) -> list[tuple[float, float]]:
    """Average neighbouring points so that at most `POINTS_MAX` of `count` remain."""
    step = math.ceil(count / POINTS_MAX)
    if step <= 1:
        return [*points]
    rest, means = iter(points), []
    while group := list(islice(rest, step)):
        means.append((sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)))
    return means


def _draw_node_lanes(axes: Axes, histories: Sequence[TrainingHistory], names: Sequence[str]) -> None:
    """Draw one lane per node: a bar for each trained round, marks for skipped rounds and restarts."""
    low, high = _shown_rounds(histories)
    axes.set_xlim(low - 1.5, high + 0.7)
    for lane, history in enumerate(histories):
        trained = [
            (first - 0.4, last - first + 0.8) for first, last in list_trained_spans(history, (high - low) / BARS_MAX)
        ]
        axes.broken_barh(trained, (lane - 0.22, 0.44), color=COLOURS[lane % len(COLOURS)], alpha=0.45, linewidth=0)
        for skip in history.skips:
            marker, colour = CAUSES[skip.cause]
            begin, end = max(skip.first, low), min(skip.last, high)
            if begin <= end:
                axes.hlines(lane, begin - 0.3, end + 0.3, color=colour, linewidth=1.2)
                axes.plot([(begin + end) / 2], [lane], marker=marker, color=colour, markersize=6)
        restarts = [restart.round for restart in history.restarts]
        axes.plot(restarts, [lane - 0.36] * len(restarts), marker=7, color="black", linestyle="", markersize=5)
    axes.set_yticks(range(len(histories)), list(names), fontsize=8)
    axes.set_ylim(len(histories) - 0.4, -0.8)


def list_trained_spans(history: TrainingHistory, gap: float) -> list[tuple[int, int]]:
    """First and last rounds of spans of trained rounds; rounds at most `gap` apart are joined."""
    spans: list[tuple[int, int]] = []
    for row in history.rounds:
        if spans and row.round - spans[-1][1] <= gap:
            spans[-1] = (spans[-1][0], row.round)
        else:
            spans.append((row.round, row.round))
    return spans


def _shown_rounds(histories: Sequence[TrainingHistory]) -> tuple[int, int]:
    """First and last round to show: the trained ones, with nearby skips and restarts."""
    ends = [(history.rounds[0], history.rounds[-1]) for history in histories if history.rounds]
    trained = [row.round for both in ends for row in both] or [0]
    first, last = min(trained), max(trained)
    margin = max((last - first) // 2, SKIPS_BESIDE)
    skips = [skip for history in histories for skip in history.skips]
    restarts = [restart.round for history in histories for restart in history.restarts]
    low = max(min([first, *restarts, *(skip.first for skip in skips)]), first - margin)
    return low, min(max([last, *restarts, *(skip.last for skip in skips)]), last + margin)


def labels_of(histories: Sequence[TrainingHistory]) -> list[str]:
    """The nodes' names; duplicates get the name derived from the peer id as well."""
    names = [history.label for history in histories]
    full = [
        name if names.count(name) == 1 else f"{name} ({animal_name(history.peer)})"
        for name, history in zip(names, histories, strict=True)
    ]
    return [escape_label(name) for name in full]


def escape_label(text: str) -> str:
    """Escape matplotlib's markup, on one line; a leading underscore would hide a legend entry."""
    line = "".join(c if c.isprintable() else " " for c in text)[:LABEL_CHARS_MAX].replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line


def _label_panels(figure: Figure, panels: tuple[Axes, Axes, Axes], histories: Sequence[TrainingHistory]) -> None:
    from matplotlib.ticker import MaxNLocator

    accuracy, reward, life = panels
    accuracy.set_ylabel("held-out accuracy (pass@1)")
    accuracy.set_ylim(-0.02, 1.02)
    reward.set_ylabel("reward (own completions)")
    life.set_xlabel("round")
    life.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for axes in panels:
        _style_frame(axes, "x" if axes is life else "both")
    life.xaxis.set_major_formatter(lambda round, _: f"{round:g}" if round >= 0 else "")
    swarms = ", ".join(sorted({history.swarm for history in histories}))
    accuracy.set_title(f"Swarm {escape_label(swarms)}", loc="left")
    if any(history.held_out_before is not None for history in histories):
        accuracy.set_title("hollow: before the first step", loc="right", fontsize=8, color="#555555")
    if not any(row.held_out is not None for history in histories for row in history.rounds):
        accuracy.text(0.5, 0.5, "not measured", transform=accuracy.transAxes, ha="center", color="#555555")
    _draw_legends(figure)


def _style_frame(axes: Axes, grid: Literal["x", "both"]) -> None:
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _count_legend_columns(names: Sequence[str]) -> int:
    """Number of columns of the legend for these names."""
    return max(LEGEND_CHARS // (max(map(len, names)) + 7), 1)


def _draw_legends(figure: Figure) -> None:
    """Draw the two legends: nodes above the panels, marks below."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        lines, names, loc="outside upper center", fontsize=8, ncols=_count_legend_columns(names), frameon=False
    )
    skipped = [
        Line2D([], [], marker=marker, color=colour, linewidth=1.2, label=f"skipped: {cause}")
        for cause, (marker, colour) in CAUSES.items()
    ]
    restart = Line2D([], [], marker=7, color="black", linestyle="", label="restart")
    more = [Patch(color=COLOURS[0], alpha=0.25, label="drawn more")] * (len(figure.axes) > 3)
    marks = [*more, Patch(color=COLOURS[0], alpha=0.45, label="trained"), *skipped, restart]
    figure.legend(handles=marks, loc="outside lower center", fontsize=8, ncols=len(marks), frameon=False)
