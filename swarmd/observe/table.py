"""Pictures of a swarm in a terminal: a row per node while it runs, a row per round when it is over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

SPARKS = "▁▂▃▄▅▆▇█"
BAR_CELLS = 24
SPARKS_SHOWN = 8  # newest rounds in the live table, which must fit into 80 columns
ROUND_ROWS_MAX = 24  # more rounds are shown as means over equal spans
STATE_STYLES = {
    "round.training": "green",
    "waiting": "cyan",
    "skipping": "yellow",
    "paused": "red",
    "failed": "red",
    "exited": "red",
}


class TrainedRound(msgspec.Struct, frozen=True):
    """What one node made of one round: mean reward of its completions, held-out accuracy where measured."""

    round: int
    reward: float  # of several stages their mean
    held_out: float | None = None
    held_out_before: float | None = None  # before the node's very first step; in its first round only
    stages: tuple[tuple[int, float], ...] = ()  # (stage, reward) of those that were trained


class NodeRow(msgspec.Struct, frozen=True):
    """One node as the live table shows it."""

    name: str
    state: str
    round: int | None = None
    stage: int | None = None
    done: int = 0  # of the running command
    total: int = 0
    what: str = ""  # the running command
    rewards: tuple[float, ...] = ()  # by round, the newest last; of several stages those of the newest one's
    held_out: float | None = None
    peers: int = 0
    skipped: int = 0  # rounds
    restarts: int = 0  # of workers, recent
    note: str = ""
    on_chain: str = ""  # how submissions to the chain stand, empty without a chain
    stages: int = 1  # in a round

    @property
    def place(self) -> str:
        """Where the node is, as 3, or as 3.1 in rounds of several stages."""
        if self.round is None:
            return "-"
        return f"{self.round}.{self.stage or 0}" if self.stages > 1 else str(self.round)


def spark(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    """One character per value, its height between `low` and `high` (by default of the values); NaN is a gap."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return " " * len(values)
    low = min(known) if low is None else low
    high = max(known) if high is None else high
    return "".join(" " if math.isnan(value) else SPARKS[_height(value, low, high)] for value in values)


def _height(value: float, low: float, high: float) -> int:
    share = (value - low) / (high - low) if high > low else 0.5
    return round(min(1.0, max(0.0, share)) * (len(SPARKS) - 1))


def bar(value: float, high: float, cells: int = BAR_CELLS) -> str:
    """A bar of at most `cells` characters, full at `high`."""
    share = min(1.0, max(0.0, value / high)) if high > 0 else 0.0
    return "█" * round(share * cells)


def number(value: float | None) -> str:
    """Three decimals, or a dash for what is not known."""
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def swarm_table(rows: Sequence[NodeRow], title: str, caption: str = "") -> RenderableType:
    """The live table."""
    table = Table(title=title, caption=caption, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    for name in ("node", "state", "round", "progress", "reward", "held-out", "peers", "restarts"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("round", "peers", "restarts") else "left")
    for row in rows:
        table.add_row(*_cells(row))
    notes = [Text(f"{row.name}: {note}", style="yellow") for row in rows for note in _notes(row)]
    chained = [Text(f"{row.name}: on chain: {row.on_chain}", style="dim") for row in rows if row.on_chain]
    return Group(table, *chained, *notes)


def _notes(row: NodeRow) -> list[str]:
    skipped = [f"skipped {row.skipped} rounds"] if row.skipped else []
    return skipped + ([row.note] if row.note else [])


def _cells(row: NodeRow) -> list[RenderableType]:
    latest = f"{number(row.rewards[-1])} {spark(row.rewards[-SPARKS_SHOWN:], low=0.0)}" if row.rewards else "-"
    state = Text(row.state.removeprefix("round."), style=STATE_STYLES.get(row.state, ""))
    figures = [number(row.held_out), str(row.peers), str(row.restarts)]
    return [Text(row.name), state, row.place, _progress(row), latest, *figures]


def _progress(row: NodeRow) -> RenderableType:
    if not row.total:
        return Text(row.what, style="dim")
    cells = Table.grid(padding=(0, 1))
    cells.add_row(ProgressBar(total=row.total, completed=row.done, width=6), f"{row.done}/{row.total}")
    return cells


def plain_line(row: NodeRow) -> str:
    """One node in one line, for what is no terminal."""
    parts = [f"{row.name:8} {row.state}"]
    parts += [f"round {row.place}"] if row.round is not None else []
    parts += [f"reward {number(row.rewards[-1])}"] if row.rewards else []
    parts += [f"held-out {number(row.held_out)}"] if row.held_out is not None else []
    parts += [f"peers {row.peers}"]
    parts += [f"skipped {row.skipped}"] if row.skipped else []
    parts += [f"restarts {row.restarts}"] if row.restarts else []
    parts += [f"on chain: {row.on_chain}"] if row.on_chain else []
    parts += [row.note] if row.note else []
    return "  ".join(parts)


def progress_line(rows: Sequence[NodeRow]) -> str:
    """How far each node is with what it does, as `node-1 training 3/8, node-2 waiting`."""
    return ", ".join(f"{row.name} {_doing(row)}" for row in rows)


def _doing(row: NodeRow) -> str:
    doing = row.what or row.state.removeprefix("round.")
    return f"{doing} {row.done}/{row.total}" if row.total else doing


def rewards_tables(histories: Mapping[str, Sequence[TrainedRound]]) -> list[Table]:
    """Rewards by round, for each stage by itself: stages are paid differently."""
    stages = sorted({stage for rows in histories.values() for row in rows for stage, _ in row.stages})
    if len(stages) < 2:
        return [rewards_table(histories)]
    return [rewards_table(_of_stage(histories, stage), f"reward by round, stage {stage}") for stage in stages]


def _of_stage(histories: Mapping[str, Sequence[TrainedRound]], stage: int) -> dict[str, list[TrainedRound]]:
    return {
        name: [TrainedRound(row.round, reward) for row in rows for trained, reward in row.stages if trained == stage]
        for name, rows in histories.items()
    }


def rewards_table(histories: Mapping[str, Sequence[TrainedRound]], title: str = "reward by round") -> Table:
    """Mean reward by round and node, with the mean over the nodes as a bar."""
    by_round = {name: {row.round: row.reward for row in rows} for name, rows in histories.items()}
    rounds = sorted({round for rewards in by_round.values() for round in rewards})
    spans = [rounds[at : at + _span(len(rounds))] for at in range(0, len(rounds), _span(len(rounds)))]
    means = [
        [_mean([rewards.get(round, math.nan) for round in span]) for rewards in by_round.values()] for span in spans
    ]
    high = max((_mean(row) for row in means), default=0.0)
    table = Table(title=title, title_justify="left")
    for name in ("round", *by_round):
        table.add_column(Text(name), justify="right")
    table.add_column("mean")
    for span, row in zip(spans, means, strict=True):
        label = str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}"
        table.add_row(label, *map(number, row), f"{number(_mean(row))} {bar(_mean(row), high)}")
    return table


def _span(rounds: int) -> int:
    return max(1, math.ceil(rounds / ROUND_ROWS_MAX))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def held_out_table(histories: Mapping[str, Sequence[TrainedRound]]) -> Table:
    """Held-out accuracy by node, from the first measurement to the last."""
    table = Table(title="held-out accuracy: questions never trained on", title_justify="left")
    for name in ("node", "first", "last", "by round"):
        table.add_column(name)
    for name, rows in histories.items():
        measured = [(f"round {row.round}", row.held_out) for row in rows if row.held_out is not None]
        if rows and rows[0].held_out_before is not None:
            measured.insert(0, ("untrained", rows[0].held_out_before))
        if measured:
            accuracies = [accuracy for _, accuracy in measured]
            first, last = (f"{number(accuracy)} ({when})" for when, accuracy in (measured[0], measured[-1]))
            table.add_row(Text(name), first, last, spark(accuracies[-40:], low=0.0, high=1.0))
    return table
