"""Question files: JSONL, bounded and checked, identified by a digest."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import SwarmError
from swarmd.files import detect_wrong_content, read_regular

Row = dict[str, Any]

SUFFIX = ".jsonl"
FILE_BYTES_MAX = 256 * 1024 * 1024
LINE_BYTES_MAX = 1024 * 1024
ROWS_MAX = 1_000_000
NAMES_CHARACTERS = 200  # column names listed in an error
_START_BYTES = 256
_FORM = "Write one JSON object a line. A file of another form is named in swarm.options.dataset, and made into this one"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # Windows editors write it at the start


def read_rows(path: Path, columns: Sequence[str] = ()) -> tuple[Row, ...]:
    """Read a JSONL file; blank lines are skipped. `columns`: keys that every row must have, with a non-blank text.
    Raises SwarmError, naming file and line, if the file is missing, too long, empty or not regular, or a line is not a
    UTF-8 JSON object with these columns."""
    rows: list[Row] = []
    for number, line in _read_numbered_lines(path):
        if len(rows) == ROWS_MAX:
            raise SwarmError(f"{path} has more than {ROWS_MAX} rows", "Leave the others out")
        rows.append(_parse_row(line, f"{path}, line {number}", columns))
    if not rows:
        raise SwarmError(f"{path} has no rows", 'Write one JSON object a line, for example {"prompt": "1 + 1"}')
    return tuple(rows)


def digest_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 over the rows in order, in canonical form: independent of spaces, key order and blank lines."""
    digest = hashlib.sha256()
    for row in rows:
        text = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def load_rows(home: Path, name: str, digest: str = "", columns: Sequence[str] = ()) -> tuple[tuple[Row, ...], str]:
    """Read the file that a swarm's options name. Returns its rows and their digest. `home`: the data directory, which
    relative names refer to. `digest`: required digest; empty: any. Raises SwarmError as `read_rows`, or if the digest
    differs."""
    rows = read_rows(home / name, columns)
    return rows, check_digest(home / name, rows, digest)


def check_digest(path: Path, rows: Iterable[Mapping[str, Any]], digest: str) -> str:
    """The digest of the rows. Raises SwarmError if it is not the required one."""
    found = digest_rows(rows)
    if digest and found != digest:
        raise SwarmError(
            f"{path} is not the swarm's: its rows have the digest {found[:16]}, the swarm's {digest[:16]}",
            "Get the file that belongs to the manifest from the swarm's creator",
        )
    return found


def _read_numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        body = read_regular(path, FILE_BYTES_MAX)
    except OSError as error:
        raise SwarmError(
            f"the file of questions {path} cannot be read: {error.strerror}",
            f"Put a JSONL file of at most {FILE_BYTES_MAX} bytes there; a relative path is taken from the node's data "
            "directory",
        ) from error
    if stand_in := detect_wrong_content(path, body[:_START_BYTES]):
        raise SwarmError(*stand_in)
    for number, line in enumerate(BytesIO(body.removeprefix(BYTE_ORDER_MARK)), 1):
        if len(line.rstrip(b"\r\n")) > LINE_BYTES_MAX:
            raise SwarmError(f"{path}, line {number}: longer than {LINE_BYTES_MAX} bytes", "Shorten the row")
        if line.strip():
            yield number, line


def _explain_value(row: Row, column: str) -> tuple[str, str]:
    """Why a value is not a valid text, and the fix."""
    value, fix = row.get(column), f'Every row needs a text, as in {{"{column}": "..."}}'
    if column not in row:
        return f"is missing; it has: {', '.join(map(repr, row))[:NAMES_CHARACTERS]}", fix
    if isinstance(value, str):
        return "is blank", fix
    said = msgspec.json.encode(value).decode()
    if isinstance(value, list) and column == "prompt":
        fix = "Write the user's message alone, as a text; a system prompt goes into swarm.options.system"
    elif value is None:
        fix = f"Leave the row out, or write its {column}"
    elif not isinstance(value, dict | list):
        fix = f'Write it in quotes: {{"{column}": "{said}"}}'
    return f"is not a text: {said[:NAMES_CHARACTERS]}", fix


def _parse_row(line: bytes, where: str, columns: Sequence[str]) -> Row:
    try:
        row = msgspec.json.decode(line)
    except DECODE_ERRORS as error:
        fix = "Save the file as UTF-8" if isinstance(error, UnicodeDecodeError) else _FORM
        raise SwarmError(f"{where}: not JSON in UTF-8: {error}", fix) from error
    if not isinstance(row, dict):
        raise SwarmError(f"{where}: {type(row).__name__}, not an object", _FORM)
    for column in columns:
        value = row.get(column)
        if not isinstance(value, str) or not value.strip():
            what, fix = _explain_value(row, column)
            raise SwarmError(f"{where}: {column!r} {what}", fix)
    return row
