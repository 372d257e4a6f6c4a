"""Files of questions in a data directory: a node's configuration names them, or its swarm's manifest does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swarmd.backup.archive import is_questions
from swarmd.toml_text import parse_toml, read_toml


def find_questions(root: Path, texts: Sequence[Path]) -> dict[str, Path]:
    """By their names relative to the data directory `root`, those that lie in it and that one of the texts names.

    What cannot be read as TOML names none: no node starts with it.
    """
    found = {}
    for value in (value for text in texts for value in _values(list(_options(text)))):
        name = os.path.relpath(os.path.normpath(root.absolute() / value), root.absolute())
        if is_questions(name) and (root / name).is_file():
            found[name] = root / name
    return found


def _options(text: Path) -> Iterator[Any]:
    """`swarm.options` of a configuration, `recipe.options` of a manifest."""
    try:
        tables = parse_toml(read_toml(text))
    except (OSError, ValueError):
        return
    for above in (tables.get("swarm"), tables.get("recipe")):
        if isinstance(above, Mapping):
            yield above.get("options")


def _values(value: Any) -> Iterator[str]:
    """All texts in it that end as a file of questions does."""
    if isinstance(value, str) and value.endswith(".jsonl") and "\0" not in value:
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _values(each)
    elif isinstance(value, list):
        for each in value:
            yield from _values(each)
