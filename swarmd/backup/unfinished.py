"""What is being written beside the place that it is for: its name has the process id, and who writes it holds its lock.

So what killed processes have left, keys among it or many gigabytes, can be told from what is going on, and goes.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
from pathlib import Path


def unfinished_path(target: Path, ending: str) -> Path:
    """Where this process writes what gets the name `target` when it is whole."""
    return target.with_name(f".{target.name}.{os.getpid()}{ending}")


def clear_unfinished(target: Path, ending: str) -> None:
    """Remove what processes that were killed have left beside a place. Where nothing can be locked, nothing goes."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{ending}"):
        if not left.name[len(target.name) + 2 : -len(ending)].isdecimal():
            continue  # of another place, whose name begins alike
        with contextlib.suppress(OSError):
            _remove_unheld(left)


def _remove_unheld(left: Path) -> None:
    """Raises OSError where somebody holds its lock."""
    descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()
    finally:
        os.close(descriptor)
