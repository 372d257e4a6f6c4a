"""Events, commands and changes of state as text: JSON lines for programs, short lines for people."""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from swarmd.core.by_peer import ValuesByPeer
from swarmd.core.commands import Command
from swarmd.core.events import Event, tag_of
from swarmd.core.state import state_enc_hook
from swarmd.errors import PathUnusable
from swarmd.eventlog.frame import Commit
from swarmd.files import TEMPORARY, make_write_error


class FieldChange(msgspec.Struct, frozen=True):
    """One field that differs. For a list, only the differing part is kept."""

    path: str  # dotted, as in "link.chart"
    before: Any
    after: Any


def changes_between(before: msgspec.Struct, after: msgspec.Struct, prefix: str = "") -> tuple[FieldChange, ...]:
    """Differences between two Structs of the same class, in field order."""
    changes: list[FieldChange] = []
    for name in before.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old is not new:
            changes += _changes_of(f"{prefix}{name}", old, new)
    return tuple(changes)


def _changes_of(path: str, old: Any, new: Any) -> tuple[FieldChange, ...]:
    if isinstance(old, msgspec.Struct) and type(old) is type(new):
        return changes_between(old, new, f"{path}.")
    if isinstance(old, ValuesByPeer) and isinstance(new, ValuesByPeer):
        old, new = _values_of_changed_peers(old, new)
    if old == new or (old != old and new != new):  # NaN stays NaN
        return ()
    if isinstance(old, tuple) and isinstance(new, tuple) and _has_structs(old or new):
        old, new = _strip_common_ends(old, new)
    return (FieldChange(path, old, new),)


def _values_of_changed_peers(old: ValuesByPeer[Any], new: ValuesByPeer[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The values of the peers that may differ, if these are known; else all values."""
    if not new.is_successor_of(old):
        return tuple(old), tuple(new)
    peers = list(dict.fromkeys(new.peers_changed_since(old.size)))
    return tuple(filter(None, map(old.get, peers))), tuple(filter(None, map(new.get, peers)))


def _has_structs(values: tuple[Any, ...]) -> bool:
    return bool(values) and isinstance(values[0], msgspec.Struct)


def _strip_common_ends(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Both lists without their common prefix and suffix."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return old[head : len(old) - tail], new[head : len(new) - tail]


VALUE_CHARS_MAX = 60  # of one value in text output
DIGEST_CHARS = 12
TIMES_S = (1e8, 1e11)  # floats in this range are shown as POSIX seconds

_json = msgspec.json.Encoder(order="deterministic")


def event_json(seq: int, at: float, event: Event) -> bytes:
    """One JSON line: seq, at, type and the event's fields; NaN and infinities as strings, bytes as base64."""
    body = event_body_json(event)
    return b'{"seq":%d,"at":%s,%s' % (seq, _json.encode(at), body[1:])


def event_body_json(event: Event) -> bytes:
    body = _json.encode(event)
    return _json.encode(to_builtins(event)) if b"null" in body else body  # msgspec writes NaN and infinities as null


def to_json(value: Any) -> bytes:
    """Any value made of Structs as JSON, NaN and infinities as strings."""
    return _json.encode(to_builtins(value))


def to_builtins(value: Any) -> Any:
    """Dicts, lists and scalars that every JSON reader takes."""
    return _replace_non_finite(msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=state_enc_hook))


def to_builtins_with_defaults(value: Any) -> Any:
    """As `to_builtins`, including fields that have their default values."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = {name: to_builtins_with_defaults(getattr(value, name)) for name in value.__struct_fields__}
        return {"type": tag, **fields} if tag else fields
    if isinstance(value, dict):
        return {key: to_builtins_with_defaults(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | ValuesByPeer):
        return [to_builtins_with_defaults(inner) for inner in value]
    return _replace_non_finite(value)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def format_event(seq: int, at: float, event: Event) -> str:
    """One line for people: seq, UTC time, type and the fields that differ from their defaults."""
    return f"{seq:>8}  {format_time(at)}  {tag_of(event):<22}{format_fields(event)}"


def format_command(command: Command) -> str:
    return f"{type(command).__struct_config__.tag} {format_fields(command)}"


def format_change(change: FieldChange) -> str:
    return f"{change.path}: {shorten_value(change.before)} → {shorten_value(change.after)}"


def format_fields(struct: msgspec.Struct) -> str:
    """The fields that differ from their defaults, as name=value."""
    fields = msgspec.structs.fields(struct)
    shown = [(field.name, getattr(struct, field.name)) for field in fields]
    defaults = {field.name: field.default for field in fields}
    return " ".join(f"{name}={shorten_value(value)}" for name, value in shown if value != defaults[name])


def shorten_value(value: Any) -> str:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, float):
        return format_time(value).replace(" ", "T") if TIMES_S[0] < value < TIMES_S[1] else f"{value:.6g}"
    if isinstance(value, msgspec.Struct):
        name = value.__struct_config__.tag or type(value).__name__
        return f"{name}({format_fields(value)})"
    if isinstance(value, tuple):
        return f"[{', '.join(map(shorten_value, value))}]"
    text = str(value)
    if len(text) == 64 and all(letter in "0123456789abcdef" for letter in text):
        return text[:DIGEST_CHARS]
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


def format_time(at: float) -> str:
    """POSIX seconds as UTC date and time with milliseconds."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{at:.3f}"


def write_json_lines(commits: Iterable[Commit], out: BinaryIO) -> int:
    """Write one JSON line for each event: seq, at, type and the event's fields. Returns the number of events."""
    events = 0
    for commit in commits:
        lines = [event_json(seq, commit.at, event) for seq, event in enumerate(commit.events, commit.seq)]
        out.write(b"\n".join(lines) + b"\n")
        events += len(lines)
    return events


def export_json_lines(commits: Iterable[Commit], path: Path) -> int:
    """Write JSON lines to a file atomically. Returns the number of events. Raises PathUnusable if `path` is not a
    regular file; NoSpaceLeft, LogWriteFailed if it could not be written."""
    with _written_atomically(path) as temporary, temporary.open("wb") as out:
        return write_json_lines(commits, out)


@contextmanager
def _written_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary file, which is renamed to `path` if the block ends without an error."""
    if path.exists() and not path.is_file():  # a rename would replace a pipe or /dev/stdout
        raise PathUnusable(
            f"{path} is not a regular file", "Name a file; `swarmd log cat` prints JSON lines into a pipe"
        )
    target = path.resolve()
    temporary = target.with_name(f"{target.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise make_write_error(error, path, "export") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
