"""Events, commands and changes as text: JSON lines for programs, short lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from types import NoneType
from typing import Any, get_args

import msgspec

from swarmd.core.by_peer import ByPeer
from swarmd.core.commands import Command
from swarmd.core.events import Event, tag_of
from swarmd.core.state import to_plain
from swarmd.eventlog.offline.changes import Change

VALUE_CHARS_MAX = 60  # of one value in a line for people
DIGEST_CHARS = 12
ITEMS_AT_ONCE = 1024  # of a list that is made text
SCALARS = {int, float, str, bool, NoneType}
TIMES_S = (1e8, 1e11)  # floats between are taken for POSIX seconds

_json = msgspec.json.Encoder(order="deterministic")
_by_name = msgspec.json.Encoder(order="sorted")


def event_json(seq: int, at: float, event: Event) -> bytes:
    """One JSON line: seq, at, type and the event's fields; NaN and infinities as strings, bytes as base64."""
    body = event_body(event)
    return b'{"seq":%d,"at":%s,%s' % (seq, _json.encode(at), body[1:])


def event_body(event: Event) -> bytes:
    """The event alone as JSON."""
    body = _json.encode(event)
    return _json.encode(plain(event)) if b"null" in body else body  # msgspec writes NaN as null


def to_json(value: Any) -> bytes:
    """Any value made of Structs as JSON, NaN and infinities as strings."""
    return _json.encode(plain(value))


def plain(value: Any) -> Any:
    """Dicts, lists and scalars that every JSON reader takes."""
    return _finite(msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=to_plain))


def full(value: Any) -> Any:
    """As `plain`, but with the fields that have their defaults."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = {name: full(getattr(value, name)) for name in value.__struct_fields__}
        return {"type": tag, **fields} if tag else fields
    if isinstance(value, tuple | ByPeer):
        return [full(inner) for inner in value]
    return _finite(value)


def indented(value: Any, pad: str = "") -> Iterator[str]:
    """The pieces of an indented JSON document; of a long list some items at a time are made text.

    Args:
        value: dicts and sequences of these, and of what `full` takes.
        pad: before each line but the first.
    """
    inner = f"{pad}  "
    if isinstance(value, dict) and value:
        for number, (key, each) in enumerate(sorted(value.items())):
            yield f"{',' if number else '{'}\n{inner}{_json.encode(key).decode()}: "
            yield from indented(each, inner)
        yield f"\n{pad}}}"
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        items, before = iter(value), "["
        while some := list(islice(items, ITEMS_AT_ONCE)):
            yield before
            yield from _indented_items(some, pad)
            before = ","
        yield f"\n{pad}]"
    else:
        yield msgspec.json.format(to_json(full(value)), indent=2).decode().replace("\n", f"\n{pad}")


def _indented_items(items: list[Any], pad: str) -> Iterator[str]:
    """Items of a list that stands behind `pad`, with commas between them."""
    if rows := _rows_json(items):
        yield msgspec.json.format(rows, indent=2)[1:-2].decode().replace("\n", f"\n{pad}")
        return
    inner = f"{pad}  "
    for number, each in enumerate(items):
        yield f"{',' if number else ''}\n{inner}"
        yield from indented(each, inner)


def _rows_json(rows: list[Any]) -> bytes | None:
    """Structs of one kind as JSON, a tenth of the work of `full`; None where that has to be asked."""
    kinds = {type(row) for row in rows}
    containers = _containers(kinds.pop())
    if kinds or containers is None or any(getattr(row, name) != () for row in rows for name in containers):
        return None
    encoded = _by_name.encode(rows)
    nulls = sum(msgspec.structs.astuple(row).count(None) for row in rows)
    return encoded if encoded.count(b"null") == nulls else None  # more of them: msgspec writes NaN as null


def _containers(kind: type[Any]) -> tuple[str, ...] | None:
    """Fields that may hold more than a number or text; None where msgspec may not write all fields, and only these."""
    if not issubclass(kind, msgspec.Struct):
        return None
    config = kind.__struct_config__
    if config.tag is not None or config.omit_defaults or config.array_like:
        return None
    fields = msgspec.structs.fields(kind)
    return tuple(field.name for field in fields if not set(get_args(field.type) or [field.type]) <= SCALARS)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def event_line(seq: int, at: float, event: Event) -> str:
    """One line for people: seq, UTC time, type and the fields that differ from their defaults."""
    return f"{seq:>8}  {clock(at)}  {tag_of(event):<22}{fields_of(event)}"


def command_line(command: Command) -> str:
    """A command and its fields."""
    return f"{type(command).__struct_config__.tag} {fields_of(command)}"


def change_line(change: Change) -> str:
    """A changed field, before → after."""
    return f"{change.path}: {short(change.before)} → {short(change.after)}"


def fields_of(struct: msgspec.Struct) -> str:
    """The fields that differ from their defaults, as name=value."""
    fields = msgspec.structs.fields(struct)
    shown = [(field.name, getattr(struct, field.name)) for field in fields]
    defaults = {field.name: field.default for field in fields}
    return " ".join(f"{name}={short(value)}" for name, value in shown if value != defaults[name])


def short(value: Any) -> str:
    """A value shortened for one line."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, float):
        return clock(value).replace(" ", "T") if TIMES_S[0] < value < TIMES_S[1] else f"{value:.6g}"
    if isinstance(value, msgspec.Struct):
        name = value.__struct_config__.tag or type(value).__name__
        return f"{name}({fields_of(value)})"
    if isinstance(value, tuple):
        return f"[{', '.join(map(short, value))}]"
    text = str(value)
    if len(text) == 64 and all(letter in "0123456789abcdef" for letter in text):
        return text[:DIGEST_CHARS]
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


def clock(at: float) -> str:
    """POSIX seconds as UTC date and time with milliseconds."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{at:.3f}"
