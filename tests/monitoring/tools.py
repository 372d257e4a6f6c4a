"""The shipped monitoring files, and the programs that they are held against."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from swarmd.observe.metrics import COUNTERS, GAUGES, Metrics
from tests.programs import path_of

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "configs" / "monitoring"
RULES = MONITORING / "swarmd.rules.yml"
DASHBOARD = MONITORING / "grafana" / "swarmd.json"
DOCS = ROOT / "docs" / "MONITORING.md"


def promtool(*words: str | Path, given: str = "") -> str:
    """Run it with `given` as its input; gives what it said. Fails where it is not content."""
    argv = [path_of("prometheus").with_name("promtool"), *words]
    ran = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def alerts(path: Path = RULES) -> list[dict[str, Any]]:
    """The rules of the shipped file."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def families() -> dict[str, str]:
    """Every family that a node can show, with its type."""
    shown = {family.name: family.type for family in Metrics().metric_families(None)}
    return shown | {f"swarmd_{name}": "gauge" for name in GAUGES} | {f"swarmd_{name}": "counter" for name in COUNTERS}


def series_names() -> set[str]:
    """Every name that a query may use."""
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {name + ending for name, kind in families().items() for ending in endings[kind]}


def names_in(expression: str) -> Iterator[str]:
    """Names of ours in a query."""
    yield from re.findall(r"\bswarmd_[a-z_]+", expression)
