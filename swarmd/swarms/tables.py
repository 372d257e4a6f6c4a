"""Rows of one file, as they are written there: CSV, TSV, JSON and JSON lines.

What guesses types for a whole column changes what stands in its cells: of 18 and 3.5 it makes 18.0, of 007 it makes 7.
So columns of texts are read letter by letter here, numbers in JSON too. The other columns of a CSV file, which reward
functions may want as numbers, are numbers only if every cell can be told back as it was written.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import SwarmError
from swarmd.files import find_stand_in, read_start
from swarmd.swarms.jsonl import BYTE_ORDER_MARK, LINE_BYTES_MAX

BYTES_MAX = 2 * 1024**3  # of a file; the rows that are kept of it have bounds of their own
SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".jsonl", ".json", *SEPARATORS)

_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_QUOTED_LATE = re.compile(r'\s+".*"\s*', re.DOTALL)  # a cell whose quotes are not its first characters
_START_BYTES = 256
_RawRow = dict[str, msgspec.Raw]


def read_table(path: Path, texts: Collection[str]) -> dict[str, list[Any]]:
    """The columns of a file, by name; a cell that a row does not have is None.

    Args:
        texts: columns whose cells are given as they are written; lists and objects as what they are.

    Raises:
        SwarmError: the file is too large, not UTF-8, or not what its suffix says; names the row.
    """
    if path.stat().st_size > BYTES_MAX:
        raise SwarmError(f"{path} has more than {BYTES_MAX:,} bytes", "Take a part of it")
    start = read_start(path, _START_BYTES)
    if found := find_stand_in(path, start):
        raise SwarmError(*found)
    if not start or b"\0" in start:
        raise SwarmError(f"{path} is {'no text' if start else 'empty'}", "Save it in UTF-8, with a first line of names")
    try:
        if separator := SEPARATORS.get(path.suffix.lower()):
            return _read_separated(path, separator, texts)
        return _columns([_decode(row, texts) for row in _read_json(path)])
    except UnicodeDecodeError as error:
        raise SwarmError(f"{path} is not UTF-8: {error}", "Save it in UTF-8") from error


def _read_separated(path: Path, separator: str, texts: Collection[str]) -> dict[str, list[Any]]:
    csv.field_size_limit(LINE_BYTES_MAX)
    rows: list[list[str]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=True)
        try:
            names = next(reader, [])
            for row in filter(None, reader):
                if len(row) != len(names):
                    raise csv.Error(f"{len(row)} cells, and the header has {len(names)}")
                if any(map(_QUOTED_LATE.fullmatch, row)):
                    raise csv.Error("a cell has blanks before its quotes, which would be a part of it")
                rows.append(row)
        except csv.Error as error:
            raise SwarmError(
                f"{path}, row {len(rows) + 1}, which ends in line {reader.line_num}: {error}",
                "A cell with separators, quotes or line breaks in it stands in quotes, its own quotes doubled",
            ) from error
    others = {";", ",", "\t"} - {separator}
    if len(names) == 1 and (found := [each for each in others if each in names[0]]):
        raise SwarmError(
            f"{path} has one column, {names[0]!r}: its cells are parted by {found[0]!r}, not by {separator!r}",
            "Save it with commas as .csv, or with tabs as .tsv",
        )
    if len(set(names)) < len(names):
        raise SwarmError(f"{path} has two columns of one name: {', '.join(names)}", "Rename one in the first line")
    cells = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {
        name: list(column) if name in texts else _typed(list(column)) for name, column in zip(names, cells, strict=True)
    }


def _typed(cells: list[str]) -> list[Any]:
    """Numbers or truth values, if each is written as Python writes it; an empty cell among them is None."""
    given = [cell for cell in cells if cell]
    kinds: tuple[tuple[Callable[[str], Any], Callable[[str], bool]], ...] = (
        (int, lambda cell: bool(_INTEGER.fullmatch(cell))),
        (float, _is_plain_float),
        ("True".__eq__, {"True", "False"}.__contains__),
    )
    for convert, is_kept in kinds:
        if given and all(map(is_kept, given)):
            return [convert(cell) if cell else None for cell in cells]
    return list(cells)


def _is_plain_float(cell: str) -> bool:
    try:
        return repr(float(cell)) == cell
    except ValueError:
        return False


def _read_json(path: Path) -> Iterator[_RawRow]:
    """The rows, their cells not decoded yet: an array of objects, or an object a line."""
    body = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    try:
        if path.suffix.lower() == ".json" and body.lstrip().startswith(b"["):
            yield from msgspec.json.decode(body, type=list[_RawRow])
            return
    except DECODE_ERRORS as error:
        raise SwarmError(f"{path} is no list of objects in JSON: {error}", "Write [{...}, {...}]") from error
    decoder = msgspec.json.Decoder(_RawRow)
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except DECODE_ERRORS as error:
                raise SwarmError(f"{path}, line {number}: no JSON: {error}", "Write one JSON object a line") from error


def _decode(row: _RawRow, texts: Collection[str]) -> dict[str, Any]:
    return {name: _as_written(cell) if name in texts else msgspec.json.decode(cell) for name, cell in row.items()}


def _as_written(cell: msgspec.Raw) -> Any:
    """A number or truth value as the text that stands in the file; anything else as what it is."""
    value = msgspec.json.decode(cell)
    return bytes(cell).decode().strip() if isinstance(value, bool | int | float) else value


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
