"""Files to read that anybody may have named or laid there: regular ones, and nothing on which a reader may wait."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

READ_BYTES_MAX = 1024 * 1024 * 1024  # of what is read whole


def open_regular(path: Path) -> FileIO:
    """A file to read, unbuffered, as `regular_descriptor` opens it. Raises OSError."""
    return FileIO(regular_descriptor(path), "rb")


def regular_descriptor(path: Path) -> int:
    """A file opened to read; no pipe or device, on which whoever reads might wait for ever.

    Raises:
        OSError: it cannot be opened; of what is no regular file `strerror` says what it is.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, irregular(mode), str(path))
    return descriptor


def irregular(mode: int) -> str:
    """What a file of this mode is that is no regular one, in words."""
    kinds = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFDIR: "directory"}
    what = kinds.get(stat.S_IFMT(mode), "device")
    return f"it is a {what}, and no regular file"


def read_regular(path: Path, bytes_max: int = READ_BYTES_MAX) -> bytes:
    """The content of a regular file of at most so many bytes. Raises OSError."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > bytes_max:
            raise OSError(errno.EFBIG, f"it has {size_bytes} bytes, no more than {bytes_max} are read", str(path))
        return file.readall()


def read_start(path: Path, bytes_max: int) -> bytes:
    """The first bytes of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return file.read(bytes_max)
