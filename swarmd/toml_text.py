"""TOML that somebody else may have written: as much as there is room for, and no names within names without an end.

tomllib keeps every beginning of a name with dots, so that one of 20,000 parts, 40 KB of text, takes 2 GB.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from swarmd.files import read_start

TEXT_BYTES_MAX = 2 * 1024 * 1024
PARTS_MAX = 32  # of one name with dots
DEPTH_MAX = 64  # of tables and arrays in each other

_STRING = r'"(?:[^"\\\n]|\\.)*+'  # these two without their ends
_LITERAL = r"'[^'\n]*+"
_PART = rf"""(?:[\w-]++|{_STRING}"|{_LITERAL}')[ \t]*+\.[ \t]*+"""
_LONG_STRING = r'"{3}(?:[^"\\]|\\[\s\S]|"(?!""))*+"{0,5}'
_LONG_LITERAL = r"'{3}(?:[^']|'(?!''))*+'{0,5}"
_OTHER = rf"""{_STRING}"?|{_LITERAL}'?|[\w-]++|#.*+|[^\w"'#-]++"""
_NAMES = re.compile(  # all that there is up to a name of too many parts; what looks like one within a text is none
    rf"(?:(?!(?:{_PART}){{{PARTS_MAX}}})(?:{_LONG_STRING}|{_LONG_LITERAL}|{_OTHER}))*+", re.ASCII
)


def read_toml(path: Path) -> str:
    """A file's text. Raises ValueError where it is too large or not UTF-8, OSError where it is no file."""
    content = read_start(path, TEXT_BYTES_MAX + 1)
    if len(content) > TEXT_BYTES_MAX:
        raise ValueError(f"it has more than {TEXT_BYTES_MAX} bytes")
    return content.decode("utf-8-sig").replace("\r\n", "\n")  # editors of other systems begin with a mark


def parse_toml(text: str) -> dict[str, Any]:
    """The tables in a text. Raises ValueError: it is no TOML, or nested beyond the bounds."""
    check_names(text)
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested without an end") from None
    _check_depth(tables)
    return tables


def check_names(text: str) -> None:
    """Look, before it is parsed, for names that would take much memory to read. Raises ValueError."""
    found = _NAMES.match(text)
    if found is not None and found.end() < len(text):
        raise ValueError(f"a name has more than {PARTS_MAX} parts: {text[found.end() :][:40]!r}…")


def _check_depth(tables: dict[str, Any]) -> None:
    level: list[Any] = [tables]
    for _ in range(DEPTH_MAX):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return
    raise ValueError(f"its values are nested more than {DEPTH_MAX} deep")


def _inside(value: Any) -> list[Any]:
    within = value.values() if isinstance(value, dict) else value
    return [each for each in within if isinstance(each, dict | list)]
