"""One writer per log: an advisory lock that ends with the process that holds it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from swarmd.errors import LogInUse
from swarmd.files import write_failure

LOCK_NAME = "writer.lock"
PID_BYTES_MAX = 32


def take_lock(directory: Path) -> int:
    """Lock the log for writing and leave this process's pid in the lock file. Returns the descriptor that holds it.

    Raises:
        LogInUse: another process holds the lock; the message names its pid.
        NoSpaceLeft, LogWriteFailed: the lock file cannot be written.
    """
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise write_failure(error, path, "opening") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise LogInUse(
            f"another process ({f'pid {holder}' if holder else 'pid unknown'}) writes the event log in {directory}",
            "Stop that daemon, or give this one a data directory of its own",
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise write_failure(error, path, "locking") from error
    return descriptor
