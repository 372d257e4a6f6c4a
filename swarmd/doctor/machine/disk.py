"""The file systems that a node writes to: room, i-nodes, how they are mounted, and what they promise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil

from swarmd.config import StorageConfig
from swarmd.daemon.space import free_bytes
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.machine.device import chosen_of
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import SwarmdError
from swarmd.eventlog.retention import log_bytes
from swarmd.paths import NodeDirectory

GIB, MIB = 2**30, 2**20
INODES_MIN = 2048  # a node makes some thousands of files over its life: segments, blobs, checkpoints
FILES_COUNTED_MAX = 100_000  # of the blob store and the checkpoints
VOLATILE = ("tmpfs", "ramfs")
LAYERED = ("overlay", "aufs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.glusterfs", "ceph", "afs")

DISK_FULL = FindingKind(
    "disk.full",
    "error",
    "The disk is full",
    "The node pauses before it fills the disk; where nothing is left it ends with code 73. Its log stays whole.",
    "Free some space, or lower storage.free_bytes_min",
)
DISK_BUDGET = FindingKind(
    "disk.budget",
    "warning",
    "The node may use more than is free",
    "Log, rollouts and checkpoints may grow to the sum of their bounds, and the disk ends before. The node then pauses "
    "until there is room.",
    "Free some space, or lower storage.log_bytes_max, storage.blob_bytes_max or training.checkpoints_kept",
)
DISK_INODES = FindingKind(
    "disk.inodes",
    "warning",
    "Few i-nodes are left",
    "New files cannot be made though there is room: the node stops as on a full disk.",
    "Remove small files that nobody needs (`df -i` shows where they are), or use another file system",
)
DISK_READ_ONLY = FindingKind(
    "disk.read-only",
    "error",
    "The data directory cannot be written to",
    "The node ends with code 73 or 74 at its start.",
    "Mount it writable, give the directory to the node's user, or name another one with --data",
)
DISK_NOEXEC = FindingKind(
    "disk.noexec",
    "error",
    "Programs may not run where swarmd is installed",
    "p2pd, which speaks to peers, is a program inside the installation and cannot be started.",
    "Install swarmd on a file system that is mounted without noexec",
)
DISK_VOLATILE = FindingKind(
    "disk.volatile",
    "note",
    "The data directory is in memory",
    "Identity, log and checkpoints are gone after a reboot, and they take memory that training could use.",
    "Put it on a disk, or keep the identity elsewhere (dht.identity) and a backup of it",
)
DISK_LAYERED = FindingKind(
    "disk.layered",
    "note",
    "The data directory is in a container's own layer",
    "It is gone with the container, and whether a sync reaches the disk is up to what lies below.",
    "Mount a volume there",
)
DISK_REMOTE = FindingKind(
    "disk.remote",
    "warning",
    "The data directory is on a network file system",
    "Locks and syncs do not always hold there: two daemons could write one log, and what was synced could be lost.",
    "Put it on a disk of this machine",
)


async def check_disk(subject: Subject) -> list[Finding]:
    """Where the data directory is, or will be."""
    config, data = subject.whole
    place = await in_thread(existing_part, data.root)
    mount = await in_thread(mount_of, place)
    found = [*await in_thread(lambda: list(_examine_rights(place))), *_examine_promises(place, mount)]
    found += await in_thread(list_of_room, place, data, config.storage, await _checkpoint_bytes(subject))
    if any(finding.severity in ("warning", "error") for finding in found):
        return found
    free = f"{await in_thread(free_bytes, place) / GIB:.1f} GiB are free for {data.root}"
    return [well("disk", "Disk", f"{free} ({mount.fstype})" if mount else free), *found]


async def check_programs(subject: Subject) -> list[Finding]:
    """May p2pd be started where swarmd is installed?"""
    import importlib.util

    spec = importlib.util.find_spec("hivemind")
    place = Path(spec.origin).parent if spec and spec.origin else Path(os.__file__)
    mount = await in_thread(mount_of, place)
    if mount is not None and "noexec" in mount.opts.split(","):
        return [DISK_NOEXEC.found(f"{place} is on {mount.mountpoint}, mounted {mount.opts}")]
    return [well("programs", "Programs", f"{place} is on a file system that lets programs run")]


def existing_part(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    whole = path.absolute()
    return next((place for place in (whole, *whole.parents) if place.exists()), Path("/"))


def mount_of(place: Path) -> psutil._common.sdiskpart | None:
    """The file system that a path is on; None where the system does not tell."""
    real = place.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if real.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint), default=None)


def _examine_rights(place: Path) -> Iterator[Finding]:
    try:
        read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    except OSError as error:
        yield DISK_READ_ONLY.found(f"{place}: {error.strerror}")
        return
    if read_only:
        yield DISK_READ_ONLY.found(f"the file system of {place} is mounted read-only")
    elif not os.access(place, os.W_OK | os.X_OK):
        yield DISK_READ_ONLY.found(f"user {os.geteuid()} may not write to {place}")


def _examine_promises(place: Path, mount: psutil._common.sdiskpart | None) -> Iterator[Finding]:
    if mount is None:
        return
    kinds = ((VOLATILE, DISK_VOLATILE), (LAYERED, DISK_LAYERED), (REMOTE, DISK_REMOTE))
    for names, kind in kinds:
        if mount.fstype in names:
            yield kind.found(f"{place} is on {mount.mountpoint}, a file system of the kind {mount.fstype}")


def list_of_room(place: Path, data: NodeDirectory, storage: StorageConfig, checkpoints: int) -> list[Finding]:
    """What is free against what the node may come to use; `checkpoints` are bytes that all that are kept will take."""
    free, found = free_bytes(place), []
    bounds = storage.log_bytes_max + storage.blob_bytes_max + checkpoints
    wanted = max(0, bounds - _used(data)) + storage.free_bytes_min
    if free < storage.free_bytes_min:
        lack = (
            f"{free / MIB:.1f} MiB are free for {place}, storage.free_bytes_min is {storage.free_bytes_min / MIB:.1f}"
        )
        found.append(DISK_FULL.found(f"{lack} MiB"))
    elif free < wanted:
        log, blobs, kept = (size / GIB for size in (storage.log_bytes_max, storage.blob_bytes_max, checkpoints))
        words = f"{log:.2f} GiB of log, {blobs:.2f} GiB of rollouts and {kept:.2f} GiB of checkpoints"
        found.append(DISK_BUDGET.found(f"{free / GIB:.2f} GiB are free for {place}; the bounds allow {words}"))
    status = os.statvfs(place)
    if status.f_files and status.f_favail < INODES_MIN:
        found.append(DISK_INODES.found(f"{status.f_favail} of {status.f_files} i-nodes are left for {place}"))
    return found


def _used(data: NodeDirectory) -> int:
    """Bytes that the node has on disk already, of what its bounds count."""
    try:
        log = log_bytes(data.events)
    except SwarmdError:
        log = 0
    return log + sum(_size_of(path) for place in (data.blobs, data.checkpoints) for path in _files_in(place))


def _files_in(place: Path) -> Iterator[Path]:
    """Files and directories, those that a running node removes meanwhile left out."""
    found = (Path(directory, name) for directory, inner, names in os.walk(place) for name in (*inner, *names))
    return islice(found, FILES_COUNTED_MAX)


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # removed meanwhile
        return 0


async def _checkpoint_bytes(subject: Subject) -> int:
    """What the checkpoints will take together: those that are kept, and the one being written."""
    try:
        chosen = chosen_of(await subject.probe())
    except SwarmdError:
        return 0  # the check of the device says why
    kept = subject.whole[0].training.checkpoints_kept + 1
    return chosen.checkpoint * kept if chosen else 0
