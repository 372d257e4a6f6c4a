"""The log as JSON lines, or as a Parquet table for DuckDB and its like."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from swarmd.core.events import Envelope, Event, tag_of
from swarmd.errors import PathUnusable, SwarmdError
from swarmd.eventlog.commit import Commit
from swarmd.eventlog.offline.text import event_body, event_json
from swarmd.files import TEMPORARY, write_failure
from swarmd.installed import extra_command

ROWS_PER_GROUP = 65536
AT_MIN, AT_MAX = -62_135_596_800.0, 253_402_300_800.0  # the years 1 to 9999, which is what readers take
PARQUET_COMMITS = 4096  # commits turned into rows at a time


def write_json_lines(commits: Iterable[Commit], out: BinaryIO) -> int:
    """One line an event: seq, at, type and the event's fields. Returns the number of events."""
    events = 0
    for commit in commits:
        lines = [event_json(seq, commit.at, event) for seq, event in enumerate(commit.events, commit.seq)]
        out.write(b"\n".join(lines) + b"\n")
        events += len(lines)
    return events


def export_json_lines(commits: Iterable[Commit], path: Path) -> int:
    """Write JSON lines to a file, whole or not at all. Returns the number of events.

    Raises:
        PathUnusable: there is something other than a file at `path`.
        NoSpaceLeft, LogWriteFailed: the file could not be written.
    """
    target = _target(path)
    temporary = _temporary(target)
    try:
        with temporary.open("wb") as out:
            events = write_json_lines(commits, out)
        temporary.replace(target)
    except OSError as error:
        raise write_failure(error, path, "export") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return events


def export_parquet(commits: Iterable[Commit], path: Path) -> int:
    """Write a Parquet table, whole or not at all. Returns the number of events.

    Columns: seq (int64), at (timestamp, UTC), type, round, stage, peer, command, submission, block (a number; these six
    are null where the event has none), rules, commands_digest (hex, of the event's commit) and event (the whole event
    as JSON). A submission's round and stage are those that its id names. A number that its column cannot hold is null,
    and so is a time that is none; the event as JSON has it.

    Raises:
        SwarmdError: pyarrow is not installed.
        PathUnusable: there is something other than a file at `path`.
        NoSpaceLeft, LogWriteFailed: the file could not be written.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise SwarmdError("Parquet export needs pyarrow", extra_command("parquet")) from error
    schema = _schema(arrow)
    target = _target(path)
    temporary = _temporary(target)
    events = 0
    try:
        with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
            source = iter(commits)
            while batch := list(islice(source, PARQUET_COMMITS)):
                rows = [_row(commit, envelope) for commit in batch for envelope in commit.envelopes()]
                writer.write_table(arrow.Table.from_pylist(rows, schema), row_group_size=ROWS_PER_GROUP)
                events += len(rows)
        temporary.replace(target)
    except OSError as error:
        raise write_failure(error, path, "export") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return events


def _target(path: Path) -> Path:
    """The file to replace. Renaming over a device, a pipe or /dev/stdout would remove it for everybody."""
    if path.exists() and not path.is_file():
        raise PathUnusable(f"{path} is no regular file", "Name a file; `swarmd log cat` prints JSON lines into a pipe")
    return path.resolve()


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")


def _schema(arrow: Any) -> Any:
    text = arrow.string()
    return arrow.schema(
        [
            ("seq", arrow.int64()),
            ("at", arrow.timestamp("us", tz="UTC")),
            ("type", text),
            ("round", arrow.int64()),
            ("stage", arrow.int64()),
            ("peer", text),
            ("command", text),
            ("submission", text),
            ("block", arrow.int64()),
            ("rules", arrow.int32()),
            ("commands_digest", text),
            ("event", text),
        ]
    )


def _row(commit: Commit, envelope: Envelope) -> dict[str, Any]:
    event = envelope.event
    round_, stage = place_of(event)
    return {
        "seq": _held(envelope.seq),
        "at": _microseconds(envelope.at),
        "type": tag_of(event),
        "round": _held(round_),
        "stage": _held(stage),
        "peer": getattr(event, "peer", None),
        "command": getattr(event, "command", None),
        "submission": getattr(event, "submission", None),
        "block": _held(block_of(event)),
        "rules": commit.rules,
        "commands_digest": commit.commands_digest.hex(),
        "event": event_body(event).decode(),
    }


def _microseconds(at: float) -> int | None:
    return round(at * 1_000_000) if AT_MIN <= at < AT_MAX else None


def _held(value: int | None) -> int | None:
    """The number, None where a column cannot hold it: a log's are unsigned."""
    return value if value is not None and -(1 << 63) <= value < 1 << 63 else None


def place_of(event: Event) -> tuple[int | None, int | None]:
    """Round and stage that an event is about, its own or those of its submission's id (reward/<round>/<stage>)."""
    named = re.fullmatch(r"[a-z]+/(\d{1,18})(?:/(\d{1,18}))?", getattr(event, "submission", ""))
    if named is None:
        return getattr(event, "round", None), getattr(event, "stage", None)
    return int(named[1]), None if named[2] is None else int(named[2])


def block_of(event: Event) -> int | None:
    """Number of the block that an event is about: it, the fork of a reorganisation, or the head."""
    block = getattr(event, "block", None) or getattr(event, "fork", None) or getattr(event, "head", None)
    return None if block is None else int(block.number)
