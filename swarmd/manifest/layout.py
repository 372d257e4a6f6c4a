"""How values are laid out in the TOML that is written here."""

from __future__ import annotations

from typing import Any

import tomlkit
from tomlkit.items import Array, InlineTable, Item

LINE_LENGTH = 80  # a list that is longer has each entry on a line of its own


def commented(value: Any, comment: str) -> Item:
    """A value with a comment behind it, if there is one."""
    item: Item = tomlkit.item(inline(value))
    if comment:
        item.comment(comment)
    return item


def inline(value: Any) -> Any:
    """The same with lists and tables written inside their value."""
    if isinstance(value, dict):
        table: InlineTable = tomlkit.inline_table()
        for key, entry in value.items():
            table.add(key, inline(entry))
        return table
    if isinstance(value, list | tuple):
        array: Array = tomlkit.array()
        for entry in value:
            array.append(inline(entry))
        return array.multiline(len(array.as_string()) > LINE_LENGTH)
    return value
