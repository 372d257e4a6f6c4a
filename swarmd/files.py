"""Files: written so that they survive a power cut whole, read without waiting for a pipe, locked exclusively.

- `replace_durably` puts a whole file in place or leaves the old one; `sync_*` make other changes durable.
- A file that a user named, or that others may have put there, is opened only if it is a regular one.
- `make_write_error` and `advise_on_path_error` turn an OSError into the error and the fix that users see.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from swarmd.errors import ExitCode, LogWriteFailed, NoSpaceLeft, PathUnusable, SwarmdError

TEMPORARY = ".tmp"  # suffix of files being written
READ_BYTES_MAX = 1024 * 1024 * 1024  # largest file that is read whole

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM)
_BLOCKED = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
_STAND_INS = (  # first bytes of a file, what it then is, and the fix
    (
        rb"version https://git-lfs",
        "is a pointer of Git LFS, not the file itself",
        "Run `git lfs install` and `git -C {} lfs pull`, or `hf download` with --local-dir",
    ),
    (rb"(?i)\s*<(!doctype|html|\?xml)", "is a web page, not the file that it is called after", "Download it again"),
    (rb"\xff\xfe|\xfe\xff", "is text in UTF-16", "Save it in UTF-8"),
)


def make_write_error(error: OSError, path: Path, doing: str) -> LogWriteFailed:
    """Turn a failed write, sync or rename into NoSpaceLeft or LogWriteFailed."""
    if error.errno in _FULL:
        return NoSpaceLeft(f"no space left for {path} ({doing})", "Free space on that file system, then start again")
    missing = f"Name another place, or make the directory {path.parent}" if error.errno == errno.ENOENT else ""
    fix = f"{advise_on_path_error(error, path) or missing or 'Check the disk'}, then start again"
    return LogWriteFailed(f"{doing} of {path} failed: {error.strerror or error}", fix)


def make_path_error(error: Exception) -> SwarmdError | None:
    """Turn an OSError about a path into an error that names the path and the fix; None for other errors."""
    if not isinstance(error, OSError) or error.filename is None or not error.strerror:
        return None
    path = os.fsdecode(error.filename)
    fix = (
        advise_on_path_error(error, Path(path))
        or "Name another place: one that exists, and that this user may read and write"
    )
    return SwarmdError(f"{path}: {error.strerror}", fix)


def advise_on_path_error(error: OSError, path: Path) -> str:
    """The fix for a path that the system refuses, without a full stop; empty if unknown."""
    if error.errno in _DENIED:
        return f"Run as the user whose it is, or see that {path} and its directory belong to user {os.geteuid()}"
    if error.errno in _BLOCKED:
        return f"Move away what is at {path}, or above it"
    if error.errno == errno.EROFS:
        return "Have that file system mounted for writing"
    if error.errno in _FULL:
        return "Free space on that file system"
    if error.errno == errno.ENAMETOOLONG:
        return "Give it a shorter name"
    return "Check the disk" if error.errno == errno.EIO else ""


def describe_copy_error(error: OSError) -> str:
    """Why a copy failed; for a directory, `shutil` collects errors as (source, target, reason)."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        source, _, reason = error.args[0][0]
        return f"{source}: {reason}"
    return str(error)


@contextlib.contextmanager
def open_descriptor(path: Path, flags: int, mode: int = 0o600) -> Iterator[int]:
    """Open a file or directory, and close the descriptor at the end of the block. Raises OSError."""
    descriptor = os.open(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in a directory durable."""
    with open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's content durable. Raises OSError."""
    with open_descriptor(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def sync_tree(root: Path) -> None:
    """Make a directory and everything in it durable. Raises OSError."""
    for place, _, names in os.walk(root):
        for name in names:
            sync_file(Path(place, name))
        sync_directory(Path(place))


def make_directory(path: Path) -> None:
    """Create a directory and its parents, durably. Raises NoSpaceLeft or LogWriteFailed."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        for place in missing:
            sync_directory(place.parent)
    except OSError as error:
        raise make_write_error(error, path, "creation") from error


def write_all(descriptor: int, content: bytes, offset: int) -> None:
    """Write at `offset` until all of it is written. Raises OSError."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def write_durably(path: Path, *parts: bytes) -> None:
    """Like `replace_durably`, for the event log and the files beside it. Raises NoSpaceLeft or LogWriteFailed."""
    try:
        replace_durably(path, *parts)
    except OSError as error:
        raise make_write_error(error, path, "writing") from error


def replace_durably(path: Path, *parts: bytes, mode: int = 0o644) -> None:
    """Write a file atomically: temporary file, fsync, rename, fsync of the directory. Raises OSError.

    After an error, an earlier file of that name is untouched, unless only the sync of the directory failed.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}{TEMPORARY}")
    try:
        with open_descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode) as descriptor:
            offset = 0
            for part in parts:
                write_all(descriptor, part, offset)
                offset += len(part)
            os.fsync(descriptor)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError:
        remove_leftover(temporary)
        raise


@contextlib.contextmanager
def hold_directory_lock(place: Path) -> Iterator[None]:
    """Hold an exclusive lock on a directory, against other commands that use this function. Raises PathUnusable,
    OSError."""
    with open_descriptor(place, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        lock_exclusively(descriptor, place)
        yield


def make_directory_atomically(place: Path, make: Callable[[Path], object]) -> bool:
    """Make a directory completely or not at all. An interrupted attempt is redone; a second process waits. `make`:
    fills the directory that it is given, which is then renamed to `place`. Returns False if `place` existed. Raises
    NoSpaceLeft, LogWriteFailed."""
    around = place.with_name(f".{place.name}.part")
    while not place.is_dir():
        make_directory(around)
        with open_descriptor(around, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            with contextlib.suppress(OSError):  # no locking there, as on NFS
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The previous holder may have removed the directory, and another process may have made a new one.
            if around.exists() and os.path.samestat(os.fstat(descriptor), around.stat()):
                return _fill_and_rename(place, around, make)
    return False


def _fill_and_rename(place: Path, around: Path, make: Callable[[Path], object]) -> bool:
    part = around / place.name
    try:
        if place.is_dir():
            return False
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        make(part)
        sync_tree(part)
        part.rename(place)
        sync_directory(place.parent)
    except OSError as error:
        raise make_write_error(error, place, "writing") from error
    finally:
        shutil.rmtree(around, ignore_errors=True)
    return True


def lock_exclusively(descriptor: int, place: Path) -> None:
    """Lock an open file or directory; a no-op where locks are missing, as on some NFS. Raises PathUnusable."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        busy = PathUnusable(f"another command is at work in {place}", "Wait until it has ended")
        raise busy.with_exit_code(ExitCode.IN_USE) from error
    except OSError:
        return


def remove_leftover(path: Path) -> None:
    """Remove what a failed write left; ignore failures, as on a disk that has become read-only."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


# --- regular files ---


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading, unbuffered, see `open_regular_descriptor`. Raises OSError."""
    return FileIO(open_regular_descriptor(path), "rb")


def open_regular_descriptor(path: Path) -> int:
    """Open a file for reading, but no pipe or device, which could block for ever.

    Raises OSError, whose `strerror` says what it is if it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, describe_irregular_file(mode), str(path))
    return descriptor


def describe_irregular_file(mode: int) -> str:
    """Describe what a file that is not regular is, from its mode."""
    kinds = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFDIR: "directory"}
    what = kinds.get(stat.S_IFMT(mode), "device")
    return f"it is a {what}, not a regular file"


def read_regular(path: Path, bytes_max: int = READ_BYTES_MAX) -> bytes:
    """The content of a regular file of at most `bytes_max`. Raises OSError."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > bytes_max:
            raise OSError(errno.EFBIG, f"it has {size_bytes} bytes, no more than {bytes_max} are read", str(path))
        return file.readall()


def read_start(path: Path, bytes_max: int) -> bytes:
    """The first bytes of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return file.read(bytes_max)


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def detect_wrong_content(path: Path, start: bytes) -> tuple[str, str] | None:
    """What a file really is, by its first bytes, and the fix; None if it matches its suffix as far as these tell."""
    for pattern, what, fix in _STAND_INS:
        if re.match(pattern, start):
            return f"{path} {what}", fix.format(path.parent)
    return None
