"""The layout of a data directory: its number lies in `layout.json`, and a directory of another one is refused."""

from __future__ import annotations

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import LogDamaged, OtherVersion
from swarmd.files import write_durably
from swarmd.paths import NodeDirectory, quoted

LAYOUT = 1


class DataLayout(msgspec.Struct, frozen=True):
    """What `layout.json` says: how files lie in a data directory."""

    layout: int


def claim_layout(data: NodeDirectory) -> None:
    """Write `layout.json` where there is none, before anything else reads the directory. Raises as `refuse_start`."""
    refuse_start(data)
    if not data.layout.exists():
        write_durably(data.layout, msgspec.json.encode(DataLayout(LAYOUT)) + b"\n")


def refuse_start(data: NodeDirectory) -> None:
    """See that a node may start in a data directory.

    Raises:
        OtherVersion: it has another layout.
        LogDamaged: a restore into it was cut off, or `layout.json` cannot be read.
    """
    if data.restoring.exists():
        raise LogDamaged(
            f"a restore into {data.root} was cut off, or goes on",
            f"Let it end; if it was cut off, run it again: `swarmd restore FILE {quoted(data.root)}`",
        )
    layout = read_layout(data)
    if layout != LAYOUT:
        raise OtherVersion.of(f"the data directory {data.root}", "layout", layout, LAYOUT)


def read_layout(data: NodeDirectory) -> int:
    """The directory's layout. Raises LogDamaged."""
    try:
        return msgspec.json.decode(data.layout.read_bytes(), type=DataLayout).layout
    except FileNotFoundError:
        return LAYOUT
    except (OSError, *DECODE_ERRORS) as error:
        raise LogDamaged(
            f"{data.layout} cannot be read: {error}", f'Of this version it holds {{"layout": {LAYOUT}}}'
        ) from error
