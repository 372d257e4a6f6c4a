"""Where a restore unpacks to: the directory that it is for is whole at the end, or as it was."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from swarmd.backup.unfinished import clear_unfinished, unfinished_path
from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import BackupError, BackupUnwritable, ExitCode
from swarmd.eventlog.files import sync_directory, sync_tree, write_durably
from swarmd.paths import DataPaths
from swarmd.regular_files import read_regular

WHOLE_BYTES_MAX = 1024 * 1024
WHOLE = ".whole"  # in `.restoring` when all is in it: the names of what moves up, as JSON
BESIDE = ".restoring"  # how a directory ends that is unpacked to before it has its name
FOREIGN = "lost+found"  # an empty file system may have it
WITHOUT_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # said of a directory


@contextlib.contextmanager
def unpacking(root: Path) -> Iterator[DataPaths]:
    """A directory to fill, which becomes `root` when nothing was raised, and else is gone.

    Raises:
        BackupError: `root` holds something.
        OSError: as writing may.
    """
    if root.exists():
        with _inside(root) as making:
            yield making
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    clear_unfinished(root, BESIDE)
    beside = unfinished_path(root, BESIDE)
    beside.mkdir(mode=0o700)
    try:
        with _alone(beside):
            yield DataPaths(beside)
            sync_tree(beside, files=False)
            beside.rename(root)
            sync_directory(root.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


@contextlib.contextmanager
def _inside(root: Path) -> Iterator[DataPaths]:
    """A mount point cannot be renamed over, so what is unpacked moves up, entry by entry."""
    if not root.is_dir():
        raise BackupUnwritable(f"{root} is no directory", "Name a new directory")
    with _alone(root):
        yield from _fill(root)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """No other restore is at it. Where directories have no locks, as on NFS, nothing is said of that."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, root)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, root: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BackupError(f"another restore into {root} goes on", "Let it end").ending(ExitCode.IN_USE) from error
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise


def _fill(root: Path) -> Iterator[DataPaths]:
    _clear(root)
    if any(path.name != FOREIGN for path in root.iterdir()):
        raise BackupUnwritable(f"{root} is not empty, and nothing is overwritten", "Name a new directory")
    making = DataPaths(root).restoring
    making.mkdir(mode=0o700)
    sync_directory(root)
    try:
        yield DataPaths(making)
        _move_up(making, root)
    except BaseException:
        _clear(root)
        raise


def _move_up(making: Path, root: Path) -> None:
    """While `.restoring` is there no node starts, and another restore begins anew; so its going is what counts."""
    names = sorted(path.name for path in making.iterdir())
    sync_tree(making, files=False)
    write_durably(making / WHOLE, msgspec.json.encode(names))
    for name in names:
        (making / name).rename(root / name)
    sync_directory(root)
    gone = making.with_name(making.name + ".tmp")
    shutil.rmtree(gone, ignore_errors=True)
    making.rename(gone)
    sync_directory(root)
    shutil.rmtree(gone, ignore_errors=True)


def _clear(root: Path) -> None:
    """Remove what a restore that did not come to its end has left."""
    making = DataPaths(root).restoring
    if not making.is_dir():
        return
    for name in _moved_up(making):
        _remove(root / name)
    sync_directory(root)
    shutil.rmtree(making)
    sync_directory(root)


def _moved_up(making: Path) -> tuple[str, ...]:
    """What may lie in the directory already. The list is written whole or not at all.

    Raises BackupError where it is none that a restore wrote: what it names is about to be removed.
    """
    try:
        names = msgspec.json.decode(read_regular(making / WHOLE, WHOLE_BYTES_MAX), type=tuple[str, ...])
    except FileNotFoundError:
        return ()
    except DECODE_ERRORS:
        names = ("",)
    if any(name in ("", "..") or name != Path(name).name or "\0" in name for name in names):
        raise BackupError(f"{making / WHOLE} is none that a restore has left", "Look into it, and name a new directory")
    return names


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
