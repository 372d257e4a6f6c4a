"""Parses untrusted TOML, bounded in size, nesting and parts of a name; finds the lines of keys.

- tomllib keeps each prefix of a dotted name, so that one of 20,000 parts, 40 KB of text, takes 2 GB:
  `check_name_lengths` refuses such names before parsing.
- tomllib does not report the line of a key: `find_key_lines` finds it, for errors.
"""

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from swarmd.files import read_start

TEXT_BYTES_MAX = 2 * 1024 * 1024
PARTS_MAX = 32  # in a dotted name
DEPTH_MAX = 64  # of nested tables and arrays

_STRING = r'"(?:[^"\\\n]|\\.)*+'  # this one and the next match a string without its closing quotes
_LITERAL = r"'[^'\n]*+"
_PART = rf"""(?:[\w-]++|{_STRING}"|{_LITERAL}')[ \t]*+\.[ \t]*+"""
_LONG_STRING = r'"{3}(?:[^"\\]|\\[\s\S]|"(?!""))*+"{0,5}'
_LONG_LITERAL = r"'{3}(?:[^']|'(?!''))*+'{0,5}"
_OTHER = rf"""{_STRING}"?|{_LITERAL}'?|[\w-]++|#.*+|[^\w"'#-]++"""
_NAMES = re.compile(  # matches from the start up to a name of too many parts, skipping strings
    rf"(?:(?!(?:{_PART}){{{PARTS_MAX}}})(?:{_LONG_STRING}|{_LONG_LITERAL}|{_OTHER}))*+", re.ASCII
)


def read_toml(path: Path) -> str:
    """A file's text. Raises ValueError if it is too large or not UTF-8, OSError if it is not a regular file."""
    content = read_start(path, TEXT_BYTES_MAX + 1)
    if len(content) > TEXT_BYTES_MAX:
        raise ValueError(f"it has more than {TEXT_BYTES_MAX} bytes")
    return content.decode("utf-8-sig").replace("\r\n", "\n")  # some Windows editors write a byte order mark


def parse_toml(text: str) -> dict[str, Any]:
    """The tables in a text. Raises ValueError if it is not TOML, or is nested beyond the bounds."""
    check_name_lengths(text)
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested without an end") from None
    _check_depth(tables)
    return tables


def check_name_lengths(text: str) -> None:
    """Raise ValueError if parsing a name in the text would take too much memory."""
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


SLIPS = {  # frequent mistakes: a pattern for tomllib's message followed by the line that it names, and a hint
    "[“”‘’]": " (quotes are straight in TOML)",
    "Cannot overwrite|Cannot declare": " (it stands there twice)",
    r"Illegal character '\\n'": " (a quote is missing at its end)",
    r"Expected '=' .*\n\s*[\w-]+:": " (TOML has = where YAML has a colon)",
    r"Expected '=' .*\n": " (a line is KEY = VALUE or [TABLE]: is it the right file?)",
    r"Invalid value .*\n[^=]*=\s*(?:True|False)\b": " (it is true or false, in small letters)",
    r"Invalid value .*\n[^=]*=\s*[A-Za-z/.~]": " (texts need quotes)",
    r"Expected newline .*\n[^=]*=\s*[-+]?\d+,\d": " (decimals follow a point, as in 0.5)",
    r"Expected newline .*\n.*,\s*$": " (a line has no comma at its end)",
    r"Expected newline .*\n[^=]*=\s*[-+]?\d": " (numbers stand alone, as 0.0003 or 3e-4; texts need quotes)",
}


def describe_line(text: str, message: str) -> str:
    """How to correct the line that a tomllib message points to; empty if unknown."""
    found = re.search(r"at line (\d+)", message)
    lines = text.splitlines()
    if "\0" in text:
        return "This is not text: name a file of TOML"
    if text.lstrip()[:1] == "{":
        return "This is JSON: name a file of TOML, which has tables as [swarm] and keys as name = 'x'"
    if text.lstrip()[:1] == "<":
        return "This is a web page, or XML: download the file itself"
    if found is None:
        whole = "The file ends too early: see whether it is whole"
        return whole if "end of document" in message else "No file of swarmd is like this: is it the right one?"
    line = lines[int(found[1]) - 1] if int(found[1]) <= len(lines) else ""
    advice = next((fix for pattern, fix in SLIPS.items() if re.search(pattern, f"{message}\n{line}")), "")
    return f"Mend that line: {line.strip()[:LINE_CHARS_MAX]}{advice}"


LINE_CHARS_MAX = 80  # of a line quoted in an error
TABLE = re.compile(r"[ \t]*\[(\[?)([^\]]+)\]")
KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")
UNKNOWN = re.compile(r"unknown key '([^']+)'")
ELEMENT = re.compile(r"\[\d+\]$")
NAMED = re.compile(r"[a-z][a-z_0-9]*(?:\[\d+\]|\.[a-z_0-9]+)*")


def find_line_of_message(text: str, message: str) -> int:
    """The line, from 1, of the first key that a message mentions by its dotted name; 0 if it mentions none.

    Dotted names are as in training.steps or swarm.tasks[1].weight.
    """
    lines = find_key_lines(text)
    named = UNKNOWN.findall(message) or NAMED.findall(message)
    keys = [key for name in named for key in (name, ELEMENT.sub("", name))]  # for an element, also its array
    return next((lines[key] for key in keys if key in lines), 0)


def find_key_lines(text: str) -> dict[str, int]:
    """The line of each key and table, from 1, by dotted name; for repeated keys the first."""
    lines: dict[str, int] = {}
    table, elements = "", Counter[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := TABLE.match(line):
            name = table = strip_quotes(header[2].strip())
            if header[1]:
                table = f"{name}[{elements[name]}]"
                elements[name] += 1
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            lines.setdefault(f"{table}.{strip_quotes(key[1])}".lstrip("."), number)
    return lines


def strip_quotes(name: str) -> str:
    return re.sub(r"[\"']", "", name)
