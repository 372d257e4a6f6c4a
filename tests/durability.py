"""What a power cut would take: a record of writes, renames and syncs, to see that each change was synced in time."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """What was changed and not yet synced.

    Attributes:
        lost: files whose content, and directories whose entries, a power cut now would take back.
        synced: files and directories that were synced at least once.
        hazards: files that got their names before their content was synced: after a power cut they may be empty.
    """

    def __init__(self) -> None:
        self.lost: set[Path] = set()
        self.synced: set[Path] = set()
        self.hazards: list[str] = []

    def written(self, descriptor: int, *_: Any) -> None:
        """A file's content or length was changed."""
        self.lost.add(_path_of(descriptor))

    def sync(self, descriptor: int) -> None:
        """A file or directory was synced."""
        self.lost.discard(path := _path_of(descriptor))
        self.synced.add(path)

    def named(self, source: Any, target: Any, **_: Any) -> None:
        """A file or directory was renamed or linked."""
        if Path(source) in self.synced:
            self.synced.add(Path(target))
        else:
            self.hazards.append(f"{target} was put in place before it was synced")
        self.lost |= {Path(source).parent, Path(target).parent}

    def changed(self, path: Any, *_: Any, **__: Any) -> None:
        """A file or directory was made or removed."""
        self.lost.add(Path(path).parent)
        self.lost.discard(Path(path))


@contextlib.contextmanager
def recording() -> Iterator[Disk]:
    """Record what this process does to the disk. Writes by Python's file objects are seen at their sync only."""
    disk = Disk()
    notes: dict[str, Callable[..., None]] = {
        "pwrite": disk.written,
        "ftruncate": disk.written,
        "fsync": disk.sync,
        "fdatasync": disk.sync,
        "rename": disk.named,
        "replace": disk.named,
        "link": disk.named,
        "mkdir": disk.changed,
        "unlink": disk.changed,
    }

    def noting(work: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = work(*args, **kwargs)
            note(*args, **kwargs)
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name, note in notes.items():
            patch.setattr(os, name, noting(getattr(os, name), note))
        yield disk


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()
