"""What the page shows of single events: their text, what each changed and caused, the charts, the recipe.

Everything is cut to a length, and whatever looks like a secret is redacted.
"""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from swarmd.config import Config
from swarmd.core.applied import AppliedEvent
from swarmd.core.by_peer import ValuesByPeer
from swarmd.core.chart import AnyChart, default_charts
from swarmd.core.commands import Command
from swarmd.core.events import tag_of
from swarmd.core.state import State, Trainer
from swarmd.eventlog.export import changes_between
from swarmd.observe.describe import describe, round_and_stage_of
from swarmd.observe.redaction import REDACTED, redact_text
from swarmd.web.shapes import (
    ChangeRow,
    ChartEdge,
    ChartState,
    ChartsView,
    ChartView,
    CommandRow,
    EventRow,
    Moment,
    RecipeView,
    TaskRow,
)

TEXT_CHARACTERS_MAX = 2000  # of one text
ITEMS_MAX = 256  # of one list; a state of a large swarm has longer ones
ROW_CHARACTERS_MAX = 500  # of an event's text
CACHED_TEXTS = 2048
INTEGER_MAX = 2**53  # beyond, JSON readers lose digits

_covered: list[str] = []  # secrets known by their text, longest first


def add_covered_secrets(secrets: Iterable[str]) -> None:
    """Redact these texts, secrets of this process's node, in everything that is shown from now on."""
    _covered[:] = sorted({*_covered, *secrets}, key=len, reverse=True)
    _redact_and_cut_cached.cache_clear()


def event_row(applied: AppliedEvent) -> EventRow:
    """A row of the event list."""
    told = describe(applied)
    round_, stage = round_and_stage_of(applied.event, applied.after)
    return EventRow(
        seq=applied.seq,
        at=finite_or_none(applied.at) or 0.0,
        type=tag_of(applied.event),
        level=told.level,
        text=redact_and_cut(told.text, ROW_CHARACTERS_MAX),
        round=round_ if round_ >= 0 else None,
        stage=stage if stage >= 0 else None,
        peer=redact_and_cut(getattr(applied.event, "peer", "") or "", ROW_CHARACTERS_MAX),
    )


def moment_of(applied: AppliedEvent) -> Moment:
    """An event with the changes and commands that it caused."""
    before, after = applied.before, applied.after
    fields = to_json_value(applied.event)
    fields.pop("type", None)
    return Moment(
        event=event_row(applied),
        fields=fields,
        charts=chart_states(after),
        before=chart_states(before),
        changes=tuple(
            ChangeRow(change.path, to_json_value(change.before), to_json_value(change.after))
            for change in changes_between(before, after)[:ITEMS_MAX]
        ),
        commands=tuple(map(command_row, applied.commands[:ITEMS_MAX])),
        pending=tuple(map(command_row, after.pending[:ITEMS_MAX])),
        deadlines=tuple(
            (deadline.name, finite_or_none(deadline.due_at) or 0.0) for deadline in after.deadlines[:ITEMS_MAX]
        ),
        state=to_json_value(after),
    )


def command_row(command: Command) -> CommandRow:
    fields = to_json_value(command)
    return CommandRow(str(fields.pop("id")), str(fields.pop("type")), fields)


def chart_states(state: State) -> dict[str, str]:
    """The state of each chart that this node has, by the chart's name."""
    charts: dict[str, str] = {"round": state.chart, "link": state.link.chart, "trainer": state.trainer.chart}
    if state.coordination is not None:
        charts["coordinator"] = state.coordination.chart
    if state.chain is not None:
        charts["chain"] = state.chain.chart
        under_way = [each.chart for each in state.submissions if each.chart not in ("confirmed", "refused")]
        latest = [each.chart for each in state.submissions]
        if latest:
            charts["submission"] = (under_way or latest[-1:])[0]
    return charts


def to_json_value(value: Any) -> Any:
    """Convert Structs to dicts, lists and scalars that JSON has, cut to what a page can show."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = {name: to_json_value(getattr(value, name)) for name in value.__struct_fields__}
        return {"type": tag, **fields} if tag else fields
    if isinstance(value, list | tuple | ValuesByPeer):
        rest = len(value) - ITEMS_MAX
        items = [to_json_value(inner) for inner in islice(value, ITEMS_MAX)]
        return [*items, f"... {rest} more"] if rest > 0 else items
    if isinstance(value, dict):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    return _scalar_to_json(value)


def _scalar_to_json(value: Any) -> Any:
    if isinstance(value, str):
        return redact_and_cut(value, TEXT_CHARACTERS_MAX)
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > INTEGER_MAX:
        return str(value)
    return value


def redact_and_cut(text: str, characters_max: int) -> str:
    """Cut a text to a length and redact secrets; half of a surrogate pair, which UTF-8 cannot hold, becomes "?"."""
    # no more than this is searched for secrets or cached
    return _redact_and_cut_cached(text[: 2 * characters_max], characters_max)


@lru_cache(CACHED_TEXTS)
def _redact_and_cut_cached(text: str, characters_max: int) -> str:
    for secret in _covered:
        text = text.replace(secret, REDACTED)
    text = redact_text(text).encode("utf-8", "replace").decode()
    return text if len(text) <= characters_max else text[:characters_max] + " ..."


def finite_or_none(value: float) -> float | None:
    """The value; None for NaN and infinities, which JSON does not have."""
    return value if math.isfinite(value) else None


def charts_view(state: State) -> ChartsView:
    """The charts that this node has, and the state of each; the DHT and the chain both have the chart of a link."""
    charts = default_charts()
    views = [chart_view("round", charts.round), chart_view("link", charts.link)]
    if state.chain is not None:
        views += [chart_view("chain", charts.link), chart_view("submission", charts.submission)]
    views.append(chart_view("trainer", charts.trainer))
    if state.coordination is not None:
        views.append(chart_view("coordinator", charts.coordinator))
    return ChartsView(tuple(views), chart_states(state))


def chart_view(name: str, chart: AnyChart) -> ChartView:
    """One chart under the given name."""
    source = chart.source
    edges = tuple(
        ChartEdge(str(item["trigger"]), str(place), str(item["dest"]))
        for item in source["transitions"]
        for place in (item["source"] if isinstance(item["source"], list) else [item["source"]])
    )
    return ChartView(name, chart.initial, tuple(_list_chart_states(source["states"], "")), edges)


def _list_chart_states(states: list[Any], parent: str) -> Iterator[ChartState]:
    for state in states:
        label = str(state["name"] if isinstance(state, dict) else state)
        name = f"{parent}.{label}" if parent else label
        yield ChartState(name, label, parent)
        if isinstance(state, dict):
            yield from _list_chart_states(state.get("children", []), name)


# Keys of [training] that decide what is learnt and what is shared, in the order shown.
SETTINGS = (
    "steps",
    "questions",
    "generations",
    "peer_questions",
    "peer_loss",
    "completion_tokens",
    "prompt_tokens",
    "temperature",
    "learning_rate",
    "schedule",
    "optimizer",
    "beta",
    "clip_low",
    "clip_high",
    "format_reward",
    "replay_questions",
    "share_groups",
    "staleness_rounds",
    "held_out_questions",
    "held_out_every",
    "seed",
)


def recipe_view(state: State, trainer: Trainer, config: Config | None) -> RecipeView:
    """What is trained and how; `trainer` is the last one that was ready."""
    settings = state.settings
    return RecipeView(
        swarm=settings.swarm if settings else config.swarm.id if config else "",
        kind=(settings.kind if settings else "") or (config.swarm.kind if config else ""),
        role=settings.role if settings else "",
        stages=settings.stages if settings else 1,
        model=to_json_value(trainer.model or (config.training.model if config else "")),
        revision=config.training.revision if config else "",
        device=trainer.device,
        parameters=trainer.parameters,
        numbers=trainer.numbers,
        configured=config is not None,
        tasks=tuple(TaskRow(task.name, task.weight, to_json_value(task.config)) for task in config.swarm.tasks)
        if config
        else (),
        settings=tuple((key, to_json_value(getattr(config.training, key))) for key in SETTINGS) if config else (),
    )
