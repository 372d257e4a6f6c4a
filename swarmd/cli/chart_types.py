"""Writes the charts' states and triggers as types: `python -m swarmd.cli.chart_types FILE`; `make drift` compares."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from swarmd.core.chart import NAMES, AnyChart, load_chart, shipped_directory

HEAD = '''"""The states and triggers of `statecharts/*.yaml`, as types. Written by `make charts`: change the charts."""

from typing import Literal
'''


def source_of(charts: Iterable[AnyChart]) -> str:
    """The module, formatted as ruff would."""
    return HEAD + "".join(
        f"\n{chart.name.title()}{what} = {_literal(names)}\n"
        for chart in charts
        for what, names in (("State", chart.states), ("Trigger", chart.triggers))
    )


def _literal(names: Iterable[str]) -> str:
    return "Literal[\n" + "".join(f'    "{name}",\n' for name in names) + "]"


if __name__ == "__main__":
    charts = [load_chart(shipped_directory() / f"{name}.yaml") for name in NAMES]
    Path(sys.argv[1]).write_text(source_of(charts), encoding="utf-8")
