"""Checkpoints as files, for whoever does not load them: which there are, whether they are whole, what may go.

`swarmd.training.checkpoint` writes and reads them and needs torch; nothing here does.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

META = "meta.json"
META_BYTES_MAX = 16 * 1024 * 1024
NAME = re.compile(r"r(\d{9})-s(\d{4})")


class Listed(msgspec.Struct, frozen=True):
    """What `meta.json` says of the other files."""

    files: dict[str, str]  # name → SHA-256


def list_checkpoints(directory: Path) -> list[Path]:
    """Directories of the checkpoints, the newest first; none where there is no such directory."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if NAME.fullmatch(path.name) and path.is_dir()), reverse=True)


def is_whole(checkpoint: Path) -> bool:
    """Whether every file that `meta.json` names is there and has the digest that it says. Reads all of them."""
    try:
        with (checkpoint / META).open("rb") as file:
            listed = msgspec.json.decode(file.read(META_BYTES_MAX), type=Listed)
        return all(Path(name).name == name and _digest(checkpoint / name) == sha for name, sha in listed.files.items())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def newest_whole(directory: Path) -> Path | None:
    """The newest checkpoint that is whole."""
    return next((path for path in list_checkpoints(directory) if is_whole(path)), None)


def newest_bytes(directory: Path) -> int:
    """Size of the newest checkpoint, about what the next will take; 0 where there is none."""
    return sum(sum(_sizes(path)) for path in list_checkpoints(directory)[:1])


def _sizes(checkpoint: Path) -> Iterator[int]:
    for file in checkpoint.iterdir():
        try:
            yield file.stat().st_size
        except FileNotFoundError:  # it is just being replaced
            continue


def drop_older(directory: Path) -> int:
    """Remove the checkpoints before the newest whole one. Returns how many."""
    kept = newest_whole(directory)
    older = [path for path in list_checkpoints(directory) if kept is not None and path.name < kept.name]
    for path in older:
        shutil.rmtree(path, ignore_errors=True)
    return len(older)
