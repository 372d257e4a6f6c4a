"""All verbs with their options as one page of Markdown, made from the verbs themselves.

`python -m swarmd.cli.markdown FILE` writes it; `make packaging` has it write docs/CLI.md, and CI holds that what is
committed is what it writes.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from swarmd.cli import GROUPS, VERBS, load_verb
from swarmd.cli.manual import codes, head_of, inner_verbs, options_of

COLUMNS = 120
INTRODUCTION = """\
Made from the verbs by `make packaging`. Every verb says the same with `--help`. `swarmd.1` is the manual page, and
completion scripts for bash, zsh and fish come with the package.

A data directory, a configuration and a manifest are each known by what they hold, so most verbs take any of them as
`DIR`. What an exit code asks of you stands in [OPERATING.md](OPERATING.md)."""


def page() -> str:
    """The page: a table of the verbs by purpose, then each verb, then the exit codes."""
    lines = ["# The command line", "", INTRODUCTION, ""]
    for group, verbs in GROUPS.items():
        lines += [f"**{group}**", "", "| Verb | |", "|---|---|"]
        lines += [f"| [`swarmd {name}`](#swarmd-{name}) | {_cell(verb.summary)} |" for name, verb in verbs.items()]
        lines.append("")
    for name, verb in VERBS.items():
        lines += _section(f"swarmd {name}", load_verb(name), 2)
        lines += ["For example:", "", f"    {verb.example}", ""]
    lines += ["## Exit codes", "", *_table(("Code", "Means"), codes())]
    return "\n".join(lines) + "\n"


def _section(path: str, command: Any, depth: int) -> Iterator[str]:
    yield from (f"{'#' * depth} {path}", "")
    for paragraph in re.split(r"\n\s*\n", (command.help or "").strip()):
        text = re.sub(r"\s+", " ", paragraph).strip()
        yield from (*textwrap.wrap(_markup(text), COLUMNS, break_long_words=False, break_on_hyphens=False), "")
    shown = [(f"`{head_of(each)}`", each.help or "") for each in options_of(command)]
    if shown:
        yield from (*_table(("Option", "Means"), shown), "")
    for name, inner in inner_verbs(command):
        yield from _section(f"{path} {name}", inner, depth + 1)


def _table(heads: tuple[str, str], rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"| {heads[0]} | {heads[1]} |"
    yield "|---|---|"
    for name, text in rows:
        yield f"| {_cell(name)} | {_cell(_markup(text))} |"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", r"\|")


def _markup(text: str) -> str:
    """Text in which angle brackets and asterisks stand for themselves, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<>*_])", r"\\\1", part) for part in parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
