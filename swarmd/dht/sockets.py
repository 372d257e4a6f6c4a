"""Where p2pd's sockets lie: the path of one has few bytes, a data directory's may have many. No hivemind in it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET_PATH_BYTES_MAX = 107  # sun_path without its final zero
SOCKET_NAME_BYTES = len("/p2pclient-") + 11 + len(".sock")


def socket_place(preferred: Path) -> Path:
    """The directory for sockets: the preferred one, or a short one for temporary files where its path is too long."""
    preferred = preferred.absolute()
    if len(os.fsencode(preferred)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES_MAX:
        return preferred
    mark = hashlib.sha256(os.fsencode(preferred)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"swarmd-{os.geteuid()}-{mark}"


@contextmanager
def clearing_short_place(preferred: Path) -> Iterator[None]:
    """After the block a short directory for sockets is gone, with all in it.

    For the daemon, when its workers have ended: the network worker that made the directory has confined itself to it,
    and may not take it out of the directory above.
    """
    try:
        yield
    finally:
        place = socket_place(preferred)
        if place != preferred.absolute() and _is_own_directory(place):
            shutil.rmtree(place, ignore_errors=True)


def _is_own_directory(path: Path) -> bool:
    """Whether it is there, no link, and this user's: others may write beside it."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
