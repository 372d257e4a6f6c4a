"""What goes out by OTLP is what /metrics has, to a receiver of the test's own."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from swarmd.config import Config, SwarmConfig
from swarmd.core.events import ReportPublished
from swarmd.errors import ExitCode
from swarmd.observe.metrics import Metrics
from swarmd.observe.otlp import make_exporter, push_metrics, push_once
from swarmd.observe.status import status_of
from swarmd.paths import NodeDirectory
from swarmd.web.companion import make_background_tasks
from swarmd.web.node import NodeLogSource
from tests.core.story import announced, trained
from tests.daemon.node import fake_node
from tests.observe.counting import Samples, read, tell
from tests.observe.test_metrics import JOINED
from tests.observe.test_status import LIVE, LOG, NOW, STATE
from tests.receiver import Receiver, receiving


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=here")
        yield server


def taken(server: Receiver) -> list[ExportMetricsServiceRequest]:
    assert {post.path for post in server.posted} == {"/v1/metrics"}
    return [ExportMetricsServiceRequest.FromString(post.body) for post in server.posted]


def filled() -> Metrics:
    metrics = Metrics(clock=lambda: NOW)
    events = [*JOINED, announced(0), trained(0), ReportPublished("report/0/0", 0, 0)]
    tell(metrics, [(NOW - 100 + 3 * place, event) for place, event in enumerate(events)])
    return metrics


def samples_of(request: ExportMetricsServiceRequest) -> Samples:
    """As they would stand in /metrics, buckets left out."""
    found: Samples = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = sorted((each.key, each.value.string_value) for each in point.attributes)
            values = tuple(value for _, value in labels)
            if kind == "histogram":
                found[(f"{metric.name}_count", *values)] = point.count
                found[(f"{metric.name}_sum", *values)] = point.sum
                assert sum(point.bucket_counts) == point.count
                assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
            else:
                found[(metric.name + "_total" * (kind == "sum"), *values)] = point.as_double
                assert kind != "sum" or (metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2)
    return found


def test_a_push_has_all_that_metrics_has(receiver: Receiver) -> None:
    metrics, status = filled(), status_of(STATE, NOW, LOG, LIVE)
    assert push_once(make_exporter(), metrics, status)
    shown = {name: value for name, value in read(metrics, status).items() if not name[0].endswith("_bucket")}
    assert samples_of(taken(receiver)[0]) == shown
    assert receiver.posted[0].headers["x-key"] == "abc"
    resource = {
        each.key: each.value.string_value for each in taken(receiver)[0].resource_metrics[0].resource.attributes
    }
    assert resource["service.name"] == "swarmd" and resource["host.name"] == "here"


def test_pushes_go_on_when_the_receiver_was_away(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "swarmd.otlp")

    async def live() -> None:
        receiver.statuses = [400]
        task = asyncio.create_task(push_metrics(make_exporter(), filled(), lambda: None, 0.01))
        async with asyncio.timeout(60):
            await until(lambda: len(receiver.posted) >= 4)
            receiver.statuses = [200]
            await until(lambda: "is back" in caplog.text)
        task.cancel()

    asyncio.run(live())
    said = [record.getMessage() for record in caplog.records if record.name == "swarmd.otlp"]
    assert said == ["the OTLP receiver is away", "the OTLP receiver is back"]
    assert len([record for record in caplog.records if record.name.startswith("opentelemetry.")]) == 1, "why, once"


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def test_a_node_that_has_neither_page_nor_messages_pushes_too(receiver: Receiver, tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.start()
        assert receiver.came.wait(60)
        assert node.stop() == ExitCode.OK
    settings = taken(receiver)[0].resource_metrics[0].resource.attributes
    assert "swarmd" in {each.value.string_value for each in settings}


def test_the_page_is_served_where_the_extra_is_missing(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    assert make_background_tasks(Config(SwarmConfig("a")), tmp_path, NodeLogSource(NodeDirectory(tmp_path))) == ()
    assert "metrics are not pushed" in caplog.text and "pip install 'opentelemetry-exporter" in caplog.text
