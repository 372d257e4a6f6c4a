"""JSON for programs that read it: one document in UTF-8, whatever a terminal here would have."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import typer


def print_json(value: Any) -> None:
    """Print a value made of Structs, as `encode_json` has it."""
    typer.echo(encode_json(value))


def encode_json(value: Any) -> bytes:
    """A value made of Structs as indented JSON. Of a path that is no UTF-8, what is none is replaced (U+FFFD)."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:  # Python keeps such bytes of a path as surrogates, which are no text
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        encoded = msgspec.json.encode(json.loads(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")))
    return msgspec.json.format(encoded, indent=2)
