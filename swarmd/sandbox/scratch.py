"""A program's scratch directory where it is one of this machine's: gone afterwards, whatever the program put there."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def make_scratch() -> Iterator[str]:
    """A new directory, removed in the end. Raises OSError where that cannot be done."""
    top = Path(tempfile.mkdtemp(prefix="swarmd-program-"))
    scratch = top / "scratch"
    scratch.mkdir()
    try:
        yield str(scratch)
    finally:
        _bring_up(scratch)
        shutil.rmtree(top)


def _bring_up(scratch: Path) -> None:
    """Put all directories beside each other: a program may have made more in each other than a path has room for, or
    than Python descends into, and have closed them."""
    waiting, number = [scratch], 0
    while waiting:
        directory = waiting.pop()
        directory.chmod(0o700)
        with os.scandir(directory) as entries:
            inner = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for path in inner:
            path.chmod(0o700)  # to give a directory another parent is to write to it
            number += 1
            waiting.append(path.rename(scratch.with_name(str(number))))
