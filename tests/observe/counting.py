"""Metrics over events that a test tells, over logs, and what of them can be read back."""

from collections.abc import Iterable
from pathlib import Path

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from swarmd.core.applied import apply_facts
from swarmd.core.events import Event
from swarmd.core.state import State
from swarmd.eventlog.fold import commits_from, fold_commits, oldest_base
from swarmd.observe.metrics import Metrics
from swarmd.observe.status import Status

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
Samples = dict[tuple[str, ...], float]  # (name, label value, ...) -> value


def fold_into(metrics: Metrics, directory: Path, from_seq: int = 0) -> State:
    """Hand a log's events to metrics, those before `from_seq` left out; gives the state at its end."""
    base = oldest_base(directory)
    state = base.state
    for applied in fold_commits(commits_from(directory, base), state):
        if applied.seq >= from_seq:
            metrics.apply(applied)
        state = applied.after
    return state


def tell(metrics: Metrics, events: Iterable[tuple[float, Event]], state: State | None = None) -> State:
    """Let events happen at their times."""
    now, seq = state or State(), 0
    for at, event in events:
        for applied in apply_facts(now, seq, at, (event,)):
            metrics.apply(applied)
            now, seq = applied.after, seq + 1
    return now


def read(metrics: Metrics, status: Status | None = None) -> Samples:
    """All samples of the text format."""
    body, _ = metrics.render(status)
    return samples_of(body.decode())


def samples_of(text: str) -> Samples:
    """Samples by name and label values, in the labels' order of names."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def samples_of_openmetrics(text: str) -> Samples:
    """The same of OpenMetrics; its parser is strict."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in openmetrics.text_string_to_metric_families(text)
        for sample in family.samples
    }
