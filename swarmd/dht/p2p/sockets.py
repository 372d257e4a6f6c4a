"""Where p2pd's sockets lie: the path of one has few bytes, a data directory's may have many. No hivemind in it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from swarmd.errors import PathUnusable

SOCKET_PATH_BYTES_MAX = 107  # sun_path without its final zero
FIX = "Remove it, or give the node a data directory with a shorter path"
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
        remove_short_place(preferred)


def make_place(preferred: Path) -> Path:
    """Make the directory for sockets and give it.

    Raises:
        PathUnusable: the short one is there and is not this user's own: others may write beside it, and whoever put a
            link or a directory there first would have the sockets.
    """
    place = socket_place(preferred)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    if place != preferred.absolute():
        with _own_directory(place) as descriptor:
            os.fchmod(descriptor, 0o700)
    return place


def remove_short_place(preferred: Path) -> None:
    """Remove a short directory for sockets with all in it; what is not this user's stays, and the data directory's."""
    place = socket_place(preferred)
    if place == preferred.absolute():
        return
    with suppress(OSError, PathUnusable), _own_directory(place) as descriptor:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                _remove(entry.name, descriptor)
        place.rmdir()


def _remove(name: str, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        shutil.rmtree(name, ignore_errors=True, dir_fd=directory)


@contextmanager
def _own_directory(path: Path) -> Iterator[int]:
    """A descriptor of what is there, looked at after it was opened, so that nothing else can take its place meanwhile.

    A directory of this user's stays where it is: in a directory for temporary files nobody else may move or remove it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise PathUnusable(f"{path} is no directory of this user's: {error.strerror}", FIX) from None
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PathUnusable(f"the socket directory {path} belongs to another user", FIX)
        yield descriptor
    finally:
        os.close(descriptor)
