"""In which line of a TOML file a key stands: tomllib does not say it of what it has read."""

from __future__ import annotations

import re
from collections import Counter

TABLE = re.compile(r"[ \t]*\[(\[?)([^\]]+)\]")
KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")
UNKNOWN = re.compile(r"unknown key '([^']+)'")
ELEMENT = re.compile(r"\[\d+\]$")
NAMED = re.compile(r"[a-z][a-z_0-9]*(?:\[\d+\]|\.[a-z_0-9]+)*")


def line_of(text: str, message: str) -> int:
    """The line, from 1, of the first key of a file that a message about it names; 0 where it names none of them.

    Args:
        text: of the file.
        message: which names keys with their tables, as training.steps or swarm.tasks[1].weight.
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
