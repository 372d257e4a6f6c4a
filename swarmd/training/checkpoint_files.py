"""Checkpoints as files, for whoever does not load them: which there are, whether they are whole, what may go.

`swarmd.training.checkpoints` writes and reads them and needs torch; nothing here does.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import CheckpointDamaged, CheckpointUnreadable
from swarmd.files import hash_file

FORMAT = 1
CHECKPOINTS_KEPT = 2  # the newest
META = "meta.json"
META_BYTES_MAX = 16 * 1024 * 1024
DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)  # a file is missing, something else, or on a bad block
NAME = re.compile(r"r(\d{9})-s(\d{4})")


class CheckpointListing(msgspec.Struct, frozen=True):
    """What `meta.json` says of itself and of the other files."""

    format: int
    files: dict[str, str]  # name → SHA-256


def list_checkpoints(directory: Path) -> list[Path]:
    """Directories of the checkpoints, the newest first; none where there is no such directory."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if NAME.fullmatch(path.name) and path.is_dir()), reverse=True)


def check_whole(checkpoint: Path) -> bytes:
    """The content of `meta.json`, once every file that it names is there and has the digest that it says.

    Reads all of them.

    Raises:
        CheckpointDamaged: it is not; names the file.
        CheckpointUnreadable: a file cannot be read now, so nobody can tell.
    """
    path = checkpoint / META
    try:
        with path.open("rb") as file:
            encoded = file.read(META_BYTES_MAX)
        listed = msgspec.json.decode(encoded, type=CheckpointListing)
    except (OSError, *DECODE_ERRORS) as error:
        check_damage(path, error)
        raise CheckpointDamaged(f"{path} cannot be read: {error}") from error
    if listed.format != FORMAT:
        raise CheckpointDamaged(f"{path} has format {listed.format}, this version reads {FORMAT}")
    for name, expected in listed.files.items():
        if Path(name).name != name or not _has_digest(checkpoint / name, expected):
            raise CheckpointDamaged(f"{checkpoint / name} is missing or does not match its digest")
    return encoded


def _has_digest(path: Path, expected: str) -> bool:
    try:
        return hash_file(path) == expected
    except OSError as error:
        check_damage(path, error)
        return False


def check_damage(path: Path, error: Exception) -> None:
    """Raise CheckpointUnreadable for an error of the system's that says nothing of the file: it may not be read by this
    user, or not now. Another than that is taken for damage, and the checkpoint before it counts."""
    if isinstance(error, OSError) and error.errno not in DAMAGE:
        raise CheckpointUnreadable(
            f"the checkpoint's file {path} cannot be read: {error.strerror}",
            "Let this node's user read it, or see to the disk; moved away, the checkpoint before it counts",
        ) from error


def newest_whole(directory: Path) -> Path | None:
    """The newest checkpoint that is whole."""
    for path in list_checkpoints(directory):
        with contextlib.suppress(CheckpointDamaged, CheckpointUnreadable):
            check_whole(path)
            return path
    return None


def newest_bytes(directory: Path) -> int:
    """Size of the newest checkpoint, about what the next will take; 0 where there is none.

    What cannot be looked into is left out: that is for the trainer to tell, who has to read it.
    """
    total = 0
    with contextlib.suppress(OSError):  # or it is just being replaced, with one of about the same size
        for path in list_checkpoints(directory)[:1]:
            for file in path.iterdir():
                total += file.stat().st_size
    return total


def drop_older(directory: Path) -> int:
    """Remove the checkpoints before the newest whole one. Returns how many."""
    kept = newest_whole(directory)
    older = [path for path in list_checkpoints(directory) if kept is not None and path.name < kept.name]
    for path in older:
        shutil.rmtree(path, ignore_errors=True)
    return len(older)
