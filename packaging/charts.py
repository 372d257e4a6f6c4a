"""Writes what follows from statecharts/*.yaml: `python packaging/charts.py DIR TYPES` (`make charts`).

DIR gets a Markdown page for each chart, TYPES the states and triggers of all charts as types of Python.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from swarmd.cli.chart import find_chart, to_mermaid
from swarmd.core.chart import NAMES, AnyChart, load_charts

PAGE = """\
# The chart `{name}`

Drawn from `statecharts/{name}.yaml` by `make charts`; edit that file, not this one.

```mermaid
{mermaid}
```

| Trigger | From | To | Why |
|---|---|---|---|
{rows}

These change nothing. Any other trigger is an error in tests and in the simulator; a node logs it and keeps its state.

| Trigger | In | Why |
|---|---|---|
{ignored}
"""


def page(chart: AnyChart) -> str:
    """The Markdown page of a chart, the same bytes for the same chart."""
    rows = "\n".join(
        f"| {each['trigger']} | {_in_words(each['source'], 'any')} | {each['dest']} | {each.get('why', '')} |"
        for each in chart.source["transitions"]
    )
    ignored = "\n".join(
        f"| {each['trigger']} | {_in_words(each['source'], 'any other')} | {each['why']} |"
        for each in chart.source.get("ignored", ())
    )
    # On a page no state is coloured, so the diagram needs no styles, and states no declarations but for nested ones.
    mermaid = re.sub(r'^ *(?:classDef .*|Class .*|state "(\w+)" as \1)\n', "", to_mermaid(chart), flags=re.M)
    return PAGE.format(name=chart.name, mermaid=mermaid, rows=rows, ignored=ignored)


def _in_words(source: str | list[str], all_of_them: str) -> str:
    return ", ".join(source) if isinstance(source, list) else all_of_them if source == "*" else source


HEAD = '''"""The states and triggers of `statecharts/*.yaml`, as types. Written by `make charts`: change the charts."""

from typing import Literal
'''


def source_of(charts: Iterable[AnyChart]) -> str:
    """The module, formatted as ruff would."""
    return HEAD + "".join(
        f"\n{chart.name.title()}{what} = Literal[\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"
        for chart in charts
        for what, names in (("State", chart.states), ("Trigger", chart.triggers))
    )


def main() -> None:
    directory, types = map(Path, sys.argv[1:])
    charts = [find_chart(load_charts(None), name) for name in NAMES]
    directory.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        (directory / f"{chart.name}.md").write_text(page(chart), encoding="utf-8")
    types.write_text(source_of(charts), encoding="utf-8")


if __name__ == "__main__":
    main()
