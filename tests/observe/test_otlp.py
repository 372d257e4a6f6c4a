"""What goes out by OTLP is what /metrics has, to a receiver of the test's own."""

import asyncio
import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from swarmd.config import Config, SwarmConfig
from swarmd.core.events import ReportPublished
from swarmd.errors import ExitCode
from swarmd.observe.metrics import Metrics
from swarmd.observe.otlp import make_exporter, push_metrics, push_once
from swarmd.observe.status import status_of
from swarmd.paths import NodeDirectory
from swarmd.web.companion import tasks_of
from swarmd.web.node import LogNode
from tests.core.story import announced, trained
from tests.daemon.node import fake_node
from tests.observe.counting import Samples, read, tell
from tests.observe.test_metrics import JOINED
from tests.observe.test_status import LIVE, LOG, NOW, STATE


class Receiver(ThreadingHTTPServer):
    """Takes OTLP over HTTP, and keeps it."""

    def __init__(self) -> None:
        self.taken: list[ExportMetricsServiceRequest] = []
        self.headers: dict[str, str] = {}
        self.status = 200
        self.came = threading.Event()
        super().__init__(("127.0.0.1", 0), _Take)


class _Take(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/metrics"
        self.server.headers = dict(self.headers.items())
        self.server.taken.append(ExportMetricsServiceRequest.FromString(body))
        self.server.came.set()
        answer = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing on the test's own stderr."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    server = Receiver()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=here")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


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
    assert samples_of(receiver.taken[0]) == shown
    assert receiver.headers["x-key"] == "abc"
    resource = {each.key: each.value.string_value for each in receiver.taken[0].resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "swarmd" and resource["host.name"] == "here"


def test_pushes_go_on_when_the_receiver_was_away(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "swarmd.otlp")

    async def live() -> None:
        receiver.status = 400
        task = asyncio.create_task(push_metrics(make_exporter(), filled(), lambda: None, 0.01))
        async with asyncio.timeout(60):
            await until(lambda: len(receiver.taken) >= 4)
            receiver.status = 200
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
    settings = receiver.taken[0].resource_metrics[0].resource.attributes
    assert "swarmd" in {each.value.string_value for each in settings}


def test_the_page_is_served_where_the_extra_is_missing(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    assert tasks_of(Config(SwarmConfig("a")), tmp_path, LogNode(NodeDirectory(tmp_path))) == ()
    assert "metrics are not pushed" in caplog.text and "pip install 'opentelemetry-exporter" in caplog.text
