"""Checkpoints as files: which exist, whether they are complete, and which may be removed.

`swarmd.training.checkpoints` writes and reads them and needs torch; this module does not.
"""

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
CHECKPOINTS_KEPT = 2  # number of newest checkpoints kept
META = "meta.json"
TEMPORARY = ".saving-"  # prefix of a checkpoint that is being written
META_BYTES_MAX = 16 * 1024 * 1024
DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)  # the file is missing, not a file, or on a bad block
NAME = re.compile(r"r(\d{9})-s(\d{4})")


class CheckpointListing(msgspec.Struct, frozen=True):
    """The part of `meta.json` that verification needs."""

    format: int
    files: dict[str, str]  # name → SHA-256


def list_checkpoints(directory: Path) -> list[Path]:
    """Directories of the checkpoints, the newest first; none if there is no such directory."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if NAME.fullmatch(path.name) and path.is_dir()), reverse=True)


def verify_checkpoint(checkpoint: Path) -> bytes:
    """Verify that each file named in `meta.json` has its digest. Returns the content of `meta.json`. Raises
    CheckpointDamaged: a file, which it names, is missing or differs; CheckpointUnreadable: a file cannot be read now,
    but may be intact."""
    path = checkpoint / META
    try:
        with path.open("rb") as file:
            encoded = file.read(META_BYTES_MAX)
        listed = msgspec.json.decode(encoded, type=CheckpointListing)
    except (OSError, *DECODE_ERRORS) as error:
        raise_if_unreadable(path, error)
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
        raise_if_unreadable(path, error)
        return False


def raise_if_unreadable(path: Path, error: Exception) -> None:
    """Raise CheckpointUnreadable if an error does not mean damage: the file is unreadable for this user, or at present.
    After other errors, which count as damage, the checkpoint before is used."""
    if isinstance(error, OSError) and error.errno not in DAMAGE:
        raise CheckpointUnreadable(
            f"the checkpoint's file {path} cannot be read: {error.strerror}",
            "Let this node's user read it, or check the disk; if it is moved away, the checkpoint before it counts",
        ) from error


def find_newest_complete(directory: Path) -> Path | None:
    for path in list_checkpoints(directory):
        with contextlib.suppress(CheckpointDamaged, CheckpointUnreadable):
            verify_checkpoint(path)
            return path
    return None


def measure_newest_checkpoint(directory: Path) -> int:
    """Bytes of the newest checkpoint, about as large as the next one; 0 if there is none. Unreadable files are left
    out: the trainer, which has to read them, reports the error."""
    total = 0
    with contextlib.suppress(OSError):  # or another checkpoint of about the same size is replacing it
        for path in list_checkpoints(directory)[:1]:
            for file in path.iterdir():
                total += file.stat().st_size
    return total


def is_writing(directory: Path) -> bool:
    """Whether a checkpoint is being written, or the trainer was killed while it wrote one and has not run since."""
    return any(directory.glob(f"{TEMPORARY}*"))


def remove_older_checkpoints(directory: Path) -> int:
    """Remove the checkpoints before the newest complete one. Returns their number."""
    kept = find_newest_complete(directory)
    older = [path for path in list_checkpoints(directory) if kept is not None and path.name < kept.name]
    for path in older:
        shutil.rmtree(path, ignore_errors=True)
    return len(older)
