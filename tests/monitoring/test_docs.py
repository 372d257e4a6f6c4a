"""docs/MONITORING.md is complete: every metric with its labels and words, every alert, every label's cause."""

from __future__ import annotations

import re

import pytest

from swarmd.observe import labels
from swarmd.observe.metrics import COUNTERS, GAUGES, NOTIFICATIONS
from tests.monitoring.tools import DOCS, alerts, families

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
