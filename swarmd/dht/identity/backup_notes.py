"""What this machine knows of backups of an identity: a note beside the key file, which says when and where to."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.regular_files import read_start

SUFFIX = ".saved"  # identity.key.saved
NOTE_BYTES_MAX = 16 * 1024


class BackupNote(msgspec.Struct, frozen=True):
    """The latest backup that was made here."""

    peer: str
    at: float  # POSIX seconds
    file: str  # absolute


def note_of(key: Path) -> Path:
    """Where the note about a key file lies."""
    return key.with_name(key.name + SUFFIX)


def note_backup(key: Path, peer: str, at: float, out: Path) -> None:
    """Write down that a backup was made. Raises OSError; the backup is none the worse for it."""
    note_of(key).write_bytes(msgspec.json.encode(BackupNote(peer, at, str(out.absolute()))))


def last_backup(key: Path, peer: str = "") -> BackupNote | None:
    """The latest backup of this peer's key, or of whatever key lay there, that was made here; None: none is known."""
    try:
        saved = msgspec.json.decode(read_start(note_of(key), NOTE_BYTES_MAX), type=BackupNote)
    except (OSError, *DECODE_ERRORS):
        return None
    return saved if peer in ("", saved.peer) else None
