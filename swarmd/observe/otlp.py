"""Push the metrics by OpenTelemetry's protocol over HTTP; needs the extra `otel`.

OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_TIMEOUT and the other variables of
OpenTelemetry's specification configure it. Names are those of /metrics without `_total`, which receivers add.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from swarmd import __version__
from swarmd.errors import ConfigError
from swarmd.installed import extra_command
from swarmd.logger import get_logger
from swarmd.observe.metrics import PART_SECONDS, EventCounts, Metrics
from swarmd.observe.status import Status

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
    from prometheus_client.metrics_core import Metric


PUSH_S = 30.0
ANSWER_S = 60.0  # a receiver that takes longer to accept a push counts as unreachable, even if it answers byte by byte
ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

log = get_logger("swarmd.otlp")
exporter_log = logging.getLogger("opentelemetry.exporter.otlp")  # logs the reason at each push and each retry


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names a receiver."""
    return any(environ.get(name) for name in ENDPOINTS)


def make_exporter() -> MetricExporter:
    """Make the exporter from the environment. Raises ConfigError if the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise ConfigError(
            f"{ENDPOINTS[1]} is set, and OpenTelemetry is not installed: {error}", extra_command("otel")
        ) from None
    return OTLPMetricExporter()


async def push_metrics(
    exporter: MetricExporter,
    metrics: Metrics,
    latest: Callable[[], Status | None],
    every_s: float = PUSH_S,
    answer_s: float = ANSWER_S,
) -> None:
    """Push until cancelled. Log once that the receiver is unreachable, with the reasons, and once that it is back.

    Args:
        latest: returns the node's newest status, None while there is none; must not block.
        every_s: seconds between two pushes.
        answer_s: a push that takes longer counts as failed until it succeeds; meanwhile no other is started.
    """
    reached = True
    push: asyncio.Future[bool] | None = None
    while True:
        push = push or asyncio.ensure_future(asyncio.to_thread(push_once, exporter, metrics, latest()))
        await asyncio.wait([push], timeout=answer_s)
        sent = push.done() and push.result()
        push = None if push.done() else push
        if sent != reached:
            exporter_log.setLevel(logging.NOTSET if sent else logging.CRITICAL)
            log.log(logging.INFO if sent else logging.WARNING, "the OTLP receiver %s", "is back" if sent else "is away")
        reached = sent
        await asyncio.sleep(every_s)


def push_once(exporter: MetricExporter, metrics: Metrics, status: Status | None) -> bool:
    """Push the present metrics; blocks until they are accepted or the exporter gives up. Returns whether they were
    accepted."""
    from opentelemetry.sdk.metrics.export import MetricExportResult

    return exporter.export(_make_metrics_data(metrics, status, metrics.current_time())) is MetricExportResult.SUCCESS


def _make_metrics_data(metrics: Metrics, status: Status | None, now: float) -> MetricsData:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    times = (int((metrics.progress.started_at or now) * 1e9), int(now * 1e9))
    converted = [_convert_metric(each, metrics.outcomes, *times) for each in metrics.metric_families(status)]
    scope = ScopeMetrics(InstrumentationScope("swarmd", __version__), converted, "")
    resource = Resource.create({"service.name": "swarmd", "service.version": __version__})
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _convert_metric(family: Metric, outcomes: EventCounts, start_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, NumberDataPoint, Sum
    from opentelemetry.sdk.metrics.export import Metric as Converted

    total = AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        points = _convert_histogram(outcomes, start_ns, now_ns)
        return Converted(family.name, family.documentation, "s", Histogram(points, total))
    numbers = [NumberDataPoint(dict(each.labels), start_ns, now_ns, each.value) for each in family.samples]
    held = Sum(numbers, total, is_monotonic=True) if family.type == "counter" else Gauge(numbers)
    unit = "s" if family.name.endswith("_seconds") else "By" if family.name.endswith("_bytes") else "1"
    return Converted(family.name, family.documentation, unit, held)


def _convert_histogram(outcomes: EventCounts, start_ns: int, now_ns: int) -> list[Any]:
    """Convert the only histogram, the times of the parts of a stage."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    return [
        HistogramDataPoint(
            attributes={"part": part},
            start_time_unix_nano=start_ns,
            time_unix_nano=now_ns,
            count=sum(took),
            sum=outcomes.part_s[part],
            bucket_counts=took,
            explicit_bounds=PART_SECONDS,
            min=None,  # type: ignore[arg-type]  # unknown, and left out of the message
            max=None,  # type: ignore[arg-type]
        )
        for part, took in outcomes.parts.items()
    ]
