"""What a data directory takes on disk, and what is left."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from swarmd.paths import NodeDirectory

FILES_MAX = 100_000  # looked at in one directory; further ones are not counted
SEGMENT = ".seg"


class DiskUsage(msgspec.Struct, frozen=True):
    """Sizes in bytes."""

    log: int
    segments: int  # number of files
    blobs: int
    checkpoints: int
    free: int | None  # that this user may still write; None where it cannot be told


def measure_disk(paths: NodeDirectory) -> DiskUsage:
    """Look at a data directory. Directories that are not there count as empty. Blocks for as long as the disk takes."""
    log = sizes(paths.events)
    segments = [size for name, size in log.items() if name.endswith(SEGMENT)]
    return DiskUsage(
        log=sum(log.values()),
        segments=len(segments),
        blobs=sum(sizes(paths.blobs).values()),
        checkpoints=sum(sizes(paths.checkpoints).values()),
        free=_free(paths.root),
    )


def sizes(directory: Path) -> dict[str, int]:
    """Size of every file below a directory, by path; what goes away meanwhile is left out."""
    found: dict[str, int] = {}
    for base, _, names in os.walk(directory):
        for name in names:
            path = Path(base) / name
            try:
                found[str(path)] = path.lstat().st_size
            except OSError:  # removed since it was listed
                continue
            if len(found) >= FILES_MAX:
                return found
    return found


def _free(directory: Path) -> int | None:
    try:
        room = os.statvfs(directory)
    except OSError:
        return None
    return room.f_bavail * room.f_frsize
