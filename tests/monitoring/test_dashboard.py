"""The dashboard and docs/MONITORING.md: whole, and every query, metric, label and alert of them means something."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from swarmd.observe import labels
from swarmd.observe.metrics import COUNTERS, GAUGES, NOTIFICATIONS
from tests.monitoring.tools import DASHBOARD, DOCS, alerts, families, names_in, promtool, series_names

PAGE = DOCS.read_text(encoding="utf-8")


def rows() -> dict[str, tuple[tuple[str, ...], str]]:
    """The tables of metrics: name -> (labels, words)."""
    found = re.findall(r"^\| `(swarmd_[a-z_]+)` \| ([a-z_`, ]*) ?\| (.+) \|$", PAGE, re.MULTILINE)
    return {name: (tuple(re.findall(r"`([a-z_]+)`", named)), words) for name, named, words in found}


def test_every_counter_and_gauge_stands_in_a_table_as_the_code_has_it() -> None:
    counters = {**COUNTERS, "notifications": NOTIFICATIONS}
    written = {f"swarmd_{name}": (gauge.labels, gauge.text) for name, gauge in GAUGES.items()}
    written |= {f"swarmd_{name}_total": (tuple(count.labels), count.text) for name, count in counters.items()}
    assert rows() == written


def test_every_family_is_named() -> None:
    assert [name for name in families() if f"`{name}" not in PAGE] == []


def test_every_alert_has_its_section_with_what_to_do() -> None:
    for rule in alerts():
        _, _, section = PAGE.partition(f"\n### {rule['alert']}\n")
        section = " ".join(section.partition("\n##")[0].split())
        assert section.startswith(rule["labels"]["severity"])
        assert " ".join(rule["annotations"]["action"].split()) in section, rule["alert"]


@pytest.mark.parametrize(
    "values", [labels.EXIT_CAUSES, labels.SKIP_CAUSES, labels.FAILURE_CAUSES, labels.SUBMISSION_STATES]
)
def test_causes_are_explained(values: tuple[str, ...]) -> None:
    assert [value for value in values if f"`{value}`" not in PAGE] == []


BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
# What Grafana puts in the place of its variables.
VARIABLES = {"$job": ".*", "$instance": ".*", "$__rate_interval": "5m"}


def queries() -> Iterator[tuple[str, str]]:
    """(where, query) with the variables filled in."""
    for panel in PANELS:
        for target in panel.get("targets", []):
            yield panel["title"], filled(target["expr"])
    for annotation in BOARD["annotations"]["list"]:
        if "expr" in annotation:
            yield annotation["name"], filled(annotation["expr"])


def filled(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_every_query_parses(tmp_path: Path) -> None:
    rules = [{"record": f"query:{place}", "expr": query} for place, (_, query) in enumerate(queries())]
    path = tmp_path / "queries.rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)
    assert "$" not in "".join(query for _, query in queries())


def test_every_query_asks_for_what_nodes_have() -> None:
    known = series_names()
    for where, query in queries():
        assert set(names_in(query)) <= known, where
        assert re.search(r"swarmd_", query), where


def test_every_family_that_changes_has_a_panel() -> None:
    """But for those that alerts and other panels are made of."""
    asked = {name for _, query in queries() for name in names_in(query)}
    unseen = {name for name in families() if not any(each.startswith(name) for each in asked)}
    assert unseen <= {
        "swarmd_build_info", "swarmd_node_info", "swarmd_stage", "swarmd_swarm_finished", "swarmd_log_events",
        "swarmd_log_segments", "swarmd_log_limit_bytes", "swarmd_blob_limit_bytes", "swarmd_chain_registered",
        "swarmd_model_pushes", "swarmd_worker_up", "swarmd_submission_confirmed_timestamp_seconds",
    }  # fmt: skip
