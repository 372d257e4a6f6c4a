"""Chooses the directory of p2pd's sockets: a socket's path must be short, a data directory's path may be long."""

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from swarmd.errors import PathUnusable

SOCKET_PATH_BYTES_MAX = 107  # sun_path without its final zero
FIX = "Remove it, or give the node a data directory with a shorter path"
SOCKET_NAME_BYTES = len("/p2pclient-") + 11 + len(".sock")


def socket_directory(preferred: Path) -> Path:
    """Return the directory for sockets: the preferred one, or a short temporary one if its path is too long."""
    preferred = preferred.absolute()
    if len(os.fsencode(preferred)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES_MAX:
        return preferred
    mark = hashlib.sha256(os.fsencode(preferred)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"swarmd-{os.geteuid()}-{mark}"


def make_socket_directory(preferred: Path) -> Path:
    """Create the directory for sockets and return it. Raises PathUnusable: the short one exists, and is not a directory
    of this user's; another owner could take over the sockets."""
    place = socket_directory(preferred)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    if place != preferred.absolute():
        _check_own_directory(place)
        place.chmod(0o700)
    return place


def remove_short_directory(preferred: Path) -> None:
    """Remove the short directory for sockets and its contents, if it is used and belongs to this user.

    The daemon does this after its workers have ended: the network worker that created the directory is confined to it,
    and may not remove it from its parent.
    """
    place = socket_directory(preferred)
    if place == preferred.absolute():
        return
    with suppress(OSError, PathUnusable):
        _check_own_directory(place)
        shutil.rmtree(place, ignore_errors=True)


def _check_own_directory(place: Path) -> None:
    """Raise PathUnusable unless this is a directory of this user's. Nobody else can move or replace it later: the
    temporary directory is sticky."""
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PathUnusable(f"{place} is not a directory", FIX)
    if found.st_uid != os.geteuid():
        raise PathUnusable(f"the socket directory {place} belongs to another user", FIX)
