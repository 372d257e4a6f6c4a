"""A real Prometheus of a test's own, on loopback, with the shipped rules in a hurry."""

import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.monitoring.tools import RULES
from tests.programs import path_of

HURRY = 20  # times shorter than shipped an alert's `for` is: a daemon counts as down after 6 s
LOOK_S = 0.25
READY_S = 60.0
UNITS_S = {"s": 1, "m": 60, "h": 3600}


def hurried(path: Path) -> dict[str, Any]:
    """The shipped rules, with `for` durations so short that a test sees the end of them."""
    rules: dict[str, Any] = yaml.safe_load(path.read_text())
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = f"{seconds(rule['for']) // HURRY}s"
    return rules


def seconds(duration: str) -> int:
    found = re.fullmatch(r"(\d+)([smh])", duration)
    assert found, duration
    return int(found[1]) * UNITS_S[found[2]]


class Prometheus:
    """One that runs."""

    def __init__(self, url: str, output: Path) -> None:
        self._client = httpx.Client(base_url=url, timeout=10.0)
        self._output = output

    def _get(self, path: str, **asked: str) -> Any:
        answer = self._client.get(f"/api/v1/{path}", params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def targets(self) -> dict[str, str]:
        """Health of each target by its instance: "up", "down" or "unknown"."""
        return {each["labels"]["instance"]: each["health"] for each in self._get("targets")["activeTargets"]}

    def value(self, query: str) -> float | None:
        """The one value of a query, None for none."""
        result = self._get("query", query=query)["result"]
        assert len(result) <= 1, result
        return float(result[0]["value"][1]) if result else None

    def names(self) -> set[str]:
        """Names of all series of ours."""
        return {name for name in self._get("label/__name__/values") if name.startswith("swarmd_")}

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {each["labels"]["alertname"] for each in self._get("alerts")["alerts"] if each["state"] == "firing"}

    def pending(self) -> set[str]:
        """Names of the alerts that are about to."""
        return {each["labels"]["alertname"] for each in self._get("alerts")["alerts"]} - self.firing()

    def ever_fired(self) -> set[str]:
        """Names of all alerts that fired at any time."""
        result = self._get("query", query='count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))')
        return {each["metric"]["alertname"] for each in result["result"]}

    def until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it answers."""
        end = time.monotonic() + READY_S
        while not self.is_ready():
            assert process.poll() is None and time.monotonic() < end, self._output.read_text()[-3000:]
            time.sleep(LOOK_S)

    def until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait for a condition; fails with the alerts and the last lines."""
        end = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end:
                said = self._output.read_text()[-1500:]
                raise AssertionError(f"{what}: firing {self.firing()}, targets {self.targets()}\n{said}")
            time.sleep(LOOK_S)


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def scraping(directory: Path, *targets: str) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these HOST:PORT every two seconds, with its data in a directory of its own."""
    directory.mkdir()
    (directory / "rules.yml").write_text(yaml.safe_dump(hurried(RULES)))
    config = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "swarmd", "static_configs": [{"targets": list(targets)}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    output, port = directory / "prometheus.log", free_port()
    argv = [
        path_of("prometheus"),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with output.open("w") as stream:
        process = subprocess.Popen(argv, stdout=stream, stderr=stream)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}", output)
        prometheus.until_ready(process)
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
