"""TOML that somebody else may have written: as much as there is room for, no names within names without an end, and the
lines in which its keys stand, which tomllib does not say.

tomllib keeps every beginning of a name with dots, so that one of 20,000 parts, 40 KB of text, takes 2 GB.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
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
        inside = [each for value in level for each in (value.values() if isinstance(value, dict) else value)]
        level = [each for each in inside if isinstance(each, dict | list)]
        if not level:
            return
    raise ValueError(f"its values are nested more than {DEPTH_MAX} deep")


SLIPS = {  # what a message of tomllib, and then the line that it names, show of a slip that many make
    "[“”‘’]": " (quotes are straight in TOML)",
    "Cannot overwrite|Cannot declare": " (it stands there twice)",
    r"Illegal character '\\n'": " (a quote is missing at its end)",
    r"Expected '=' .*\n\s*[\w-]+:": " (TOML has = where YAML has a colon)",
    r"Expected '=' .*\n": " (a line is KEY = VALUE or [TABLE]: is it the right file?)",
    r"Invalid value .*\n[^=]*=\s*(?:True|False)\b": " (it is true or false, in small letters)",
    r"Invalid value .*\n[^=]*=\s*[A-Za-z/.~]": " (texts need quotes)",
    r"Expected newline .*\n[^=]*=\s*[-+]?\d+,\d": " (decimals follow a point, as in 0.5)",
    r"Expected newline .*\n[^=]*=\s*[-+]?\d": " (numbers stand alone, as 0.0003 or 3e-4; texts need quotes)",
}


def show_line(text: str, message: str) -> str:
    """What to mend where tomllib's message names a line; empty where it names none."""
    found = re.search(r"at line (\d+)", message)
    lines = text.splitlines()
    if "\0" in text:
        return "This is no text: name a file of TOML"
    if text.lstrip()[:1] == "{":
        return "This is JSON: name a file of TOML, which has tables as [swarm] and keys as name = 'x'"
    if found is None:
        return "The file ends too early: see whether it is whole" if "end of document" in message else ""
    line = lines[int(found[1]) - 1] if int(found[1]) <= len(lines) else ""
    advice = next((fix for pattern, fix in SLIPS.items() if re.search(pattern, f"{message}\n{line}")), "")
    return f"Mend that line: {line.strip()[:LINE_CHARS_MAX]}{advice}"


LINE_CHARS_MAX = 80  # of a line that is shown
TABLE = re.compile(r"[ \t]*\[(\[?)([^\]]+)\]")
KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")
UNKNOWN = re.compile(r"unknown key '([^']+)'")
ELEMENT = re.compile(r"\[\d+\]$")
NAMED = re.compile(r"[a-z][a-z_0-9]*(?:\[\d+\]|\.[a-z_0-9]+)*")


def line_of(text: str, message: str) -> int:
    """The line, from 1, of the first key of a file that a message about it names; 0 where it names none of them.

    Keys are named with their tables, as training.steps or swarm.tasks[1].weight.
    """
    lines = lines_of(text)
    named = UNKNOWN.findall(message) or NAMED.findall(message)
    keys = [key for name in named for key in (name, ELEMENT.sub("", name))]  # of an array in one line, its own
    return next((lines[key] for key in keys if key in lines), 0)


def lines_of(text: str) -> dict[str, int]:
    """The line of every key and table, from 1, by dotted name; the first where one stands twice."""
    lines: dict[str, int] = {}
    table, elements = "", Counter[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := TABLE.match(line):
            name = table = plain(header[2].strip())
            if header[1]:
                table = f"{name}[{elements[name]}]"
                elements[name] += 1
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            lines.setdefault(f"{table}.{plain(key[1])}".lstrip("."), number)
    return lines


def plain(name: str) -> str:
    """Without quotes."""
    return re.sub(r"[\"']", "", name)
