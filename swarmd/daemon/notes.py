"""Notes that lie in a data directory and say what was done with it while its node was down: restored, or moved away."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeVar

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import IdentityInUse, LogDamaged
from swarmd.files import sync_directory, write_durably, write_failure
from swarmd.paths import NodeDirectory

NOTE_BYTES_MAX = 64 * 1024
Note = TypeVar("Note", "Restored", "Moved")


class Restored(msgspec.Struct, frozen=True):
    """The directory was brought back from a backup; the next start of the node takes note of it, and removes this."""

    at: float  # POSIX seconds of the restore
    made_at: float  # of the backup
    from_round: int = 0  # first round to take part in, where it is known


class Moved(msgspec.Struct, frozen=True):
    """Note that the node's data was moved to another directory."""

    at: float
    archive: str = ""  # that it left in, for another host
    to: str = ""  # directory of this host that it went to


def write_note(path: Path, note: Restored | Moved) -> None:
    """Put a note in place, durably. Raises NoSpaceLeft or LogWriteFailed."""
    write_durably(path, msgspec.json.format(msgspec.json.encode(note), indent=1) + b"\n")


def read_restored(data: NodeDirectory) -> Restored | None:
    """What the next start has to know of a restore. Raises LogDamaged."""
    return _read(data.restored, Restored)


def forget_restored(data: NodeDirectory) -> None:
    """The event log knows of the restore. Raises NoSpaceLeft or LogWriteFailed."""
    try:
        if data.restored.exists():
            data.restored.unlink(missing_ok=True)
            sync_directory(data.root)
    except OSError as error:
        raise write_failure(error, data.restored, "removal") from error


def refuse_moved(data: NodeDirectory) -> None:
    """Raise IdentityInUse where the node has moved to another directory or host."""
    moved = _read(data.moved, Moved)
    if moved is not None:
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moved.at))
        where, fix = _whereabouts(moved)
        raise IdentityInUse(
            f"the node in {data.root} was moved away on {day}, {where}; here too, it would run twice",
            f"{fix}: remove {data.moved}",
        )


def _whereabouts(moved: Moved) -> tuple[str, str]:
    """Where the node is, and when it may come back."""
    if moved.to:
        return f"to {moved.to}", "Run it there. Only if nothing is left of it there"
    fix = "Run it where it was restored. Only if that archive was never restored anywhere"
    return f"in {moved.archive}", fix


def _read(path: Path, kind: type[Note]) -> Note | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(NOTE_BYTES_MAX), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, *DECODE_ERRORS) as error:
        fix = "`swarmd restore`, `backup --for-move` and `service install` write it; bring it back from a copy"
        raise LogDamaged(f"the note {path} cannot be read: {error}", fix) from error
