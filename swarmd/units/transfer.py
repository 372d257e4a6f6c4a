"""A node's data, taken along from where it was made to where its service has it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from swarmd.config import Config
from swarmd.daemon.notes import Moved, refuse_moved, write_note
from swarmd.daemon.swarm_check import refuse_other_swarm, swarm_of_config
from swarmd.errors import OtherSwarm, SwarmdError, UnitError
from swarmd.eventlog.files import copy_reason
from swarmd.eventlog.lock import take_lock
from swarmd.paths import DataPaths
from swarmd.units.plan import ServicePaths

KEY_BYTES_MAX = 64 * 1024


class Transfer(msgspec.Struct, frozen=True):
    """What is to be taken where."""

    config: Path
    source: DataPaths
    target: DataPaths
    there: bool  # the service has this node's data already


def refuse_other_log(config: Path, loaded: Config, place: ServicePaths) -> None:
    """Raise OtherSwarm where the service's data, or the node's own, is of another swarm than the configuration."""
    for root in (place.data, config.parent / loaded.data):
        try:
            refuse_other_swarm(DataPaths(root), swarm_of_config(loaded))
        except OtherSwarm:
            raise
        except (SwarmdError, OSError):
            continue  # a log that this user cannot read, or nobody: the start tells of it


def find_transfer(config: Path, loaded: Config, place: ServicePaths) -> Transfer | None:
    """Where the node of a configuration has its data, if that is not where its service has it; None without any.

    Raises:
        UnitError: the service has data that is not this node's.
        IdentityInUse: the node was moved from there, and is not where its service would have it.
    """
    source = DataPaths((config.parent / loaded.data).resolve())
    try:
        transfer = _look(config.resolve(), source, DataPaths(place.data), Path(loaded.dht.identity))
    except OSError as error:
        raise UnitError(f"{error.filename}: {error.strerror}", "Run as root, or with --user") from error
    if transfer is not None and not transfer.there:
        refuse_moved(source)
    return transfer


def _look(config: Path, source: DataPaths, target: DataPaths, key: Path) -> Transfer | None:
    if source.root == target.root or not ((source.root / key).exists() or source.events.is_dir()):
        return None
    filled = target.root.exists() and any(target.root.iterdir())
    there = filled and _same(source.root / key, target.root / key)
    if filled and not there:
        raise UnitError(
            f"{target.root} is not empty, and has not the identity of {source.root}",
            "See what lies there; another node needs another place: --instance NAME",
        )
    return Transfer(config, source, target, there)


def _same(one: Path, other: Path) -> bool:
    """Whether both are there and are alike."""
    return one.is_file() and other.is_file() and _start(one) == _start(other)


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEY_BYTES_MAX)


def take_along(transfer: Transfer) -> None:
    """Copy the data and close what it was copied from, so that the node runs in one place only.

    The copy appears whole or not at all. It is root's; systemd gives it to the unit's user at the first start.

    Raises:
        UnitError: it cannot be copied; nothing has changed then.
        LogInUse: the node is running.
    """
    target = transfer.target.root
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    with _stopped(transfer.source):
        try:
            _make_parents(target)
            shutil.copytree(transfer.source.root, unfinished, symlinks=True, ignore=_Left(transfer))
            unfinished.chmod(0o700)
            os.sync()
            _close(transfer, unfinished)
        except OSError as error:
            raise UnitError(
                f"{transfer.source.root} cannot be copied to {target}: {copy_reason(error)}",
                "See that there is room, and that all files there are this user's; or run as root",
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def _stopped(source: DataPaths) -> Iterator[None]:
    """No daemon writes the log meanwhile; a node that never ran has none."""
    if not source.events.is_dir():
        yield
        return
    lock = take_lock(source.events)
    try:
        yield
    finally:
        os.close(lock)


def _make_parents(target: Path) -> None:
    """systemd wants /var/lib/private closed."""
    target.parent.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    target.parent.mkdir(mode=0o700, exist_ok=True)


def _close(transfer: Transfer, unfinished: Path) -> None:
    """First the note, then the copy: at no instant can the node be started in both places."""
    write_note(transfer.source.moved, Moved(time.time(), to=str(transfer.target.root)))
    try:
        unfinished.rename(transfer.target.root)
    except OSError:
        transfer.source.moved.unlink()
        raise


class _Left:
    """What stays behind: the configuration, which has a place of its own, sockets, and what is no file."""

    def __init__(self, transfer: Transfer) -> None:
        self._named = {transfer.config, transfer.source.sockets, transfer.source.moved}

    def __call__(self, directory: str, names: list[str]) -> set[str]:
        return {name for name in names if self._stays(Path(directory, name))}

    def _stays(self, path: Path) -> bool:
        mode = path.lstat().st_mode
        return path in self._named or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
