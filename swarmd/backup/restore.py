"""Checking a backup, and making a node's directory of it.

What a node signed after its backup was made is in no backup. So a restored directory carries a note, and the node that
starts on it takes part only from the round after the first one that it sees opening (`swarmd.core.node.restored`).
Only the backup of a node that moved has no such gap.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from swarmd.backup.archive import (
    AGAIN,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    SEALED,
    ArchiveMember,
    BackupManifest,
    decode_manifest,
    read_chunk,
    read_members,
)
from swarmd.backup.sealed import SEALED_BYTES_MAX, unseal
from swarmd.backup.unpacking import unpacking
from swarmd.daemon.layout import LAYOUT
from swarmd.daemon.notes import Restored, write_note
from swarmd.dht.identity.identity import parse_identity, write_private
from swarmd.errors import BackupError, BackupUnwritable, LogDamaged, NoSpaceLeft, OtherVersion, SwarmdError
from swarmd.eventlog.fold import node_of
from swarmd.eventlog.offline.replay import Verified, verify
from swarmd.paths import DataPaths

MOVED_S_MAX = 24 * 3600.0  # the backup of a move that is older is taken for an ordinary one
IDENTITY = "identity.key"

Sink = Callable[[str, BinaryIO, int], ArchiveMember]


def check_backup(path: Path, passphrase: str | None = None) -> BackupManifest:
    """Read a backup from end to end and compare everything with its manifest; with a passphrase also what is sealed.

    Raises:
        NotFoundError: there is no such file.
        BackupError: it is damaged or incomplete.
        OtherVersion: it has another format.
        IdentityError: the passphrase is wrong.
    """
    sealed = bytearray()

    def look(name: str, content: BinaryIO, size_bytes: int) -> ArchiveMember:
        keep = sealed.extend if name == SEALED and size_bytes <= SEALED_BYTES_MAX else None
        return _drain(name, content, size_bytes, keep)

    manifest = _read_all(path, look)
    if manifest.sealed and passphrase is not None:
        _check_keys(unseal(bytes(sealed), passphrase), manifest)
    return manifest


def _read_all(path: Path, sink: Sink) -> BackupManifest:
    """Give every member to `sink`, and compare what it found with the manifest. Raises BackupError."""
    found: dict[str, ArchiveMember] = {}
    manifest: BackupManifest | None = None
    for name, size_bytes, content in read_members(path):
        if manifest is not None or name in found:
            raise BackupError(f"{path} has {name} after its end, or twice", AGAIN)
        if name == MANIFEST:
            if size_bytes > MANIFEST_BYTES_MAX:
                raise BackupError(f"the manifest of {path} is too large", AGAIN)
            manifest = decode_manifest(read_chunk(content, MANIFEST_BYTES_MAX), path)
        else:
            found[name] = sink(name, content, size_bytes)
    if manifest is None:
        raise BackupError(f"{path} has no manifest: it was cut off, or is no backup of a node", AGAIN)
    for member in manifest.members:
        if found.pop(member.name, None) != member:
            raise BackupError(f"{path} is damaged: {member.name} is missing or not as it was", AGAIN)
    if found:
        raise BackupError(f"{path} holds {min(found)}, which its manifest does not name", AGAIN)
    return manifest


def _drain(name: str, content: BinaryIO, size_bytes: int, keep: Callable[[bytes], object] | None) -> ArchiveMember:
    """Read a member to its end. Returns what it is."""
    digest = hashlib.sha256()
    while chunk := read_chunk(content):
        digest.update(chunk)
        if keep is not None:
            keep(chunk)
    return ArchiveMember(name, size_bytes, digest.hexdigest())


def restore_backup(
    path: Path, root: Path, passphrase: str | None, moved: bool = False, from_round: int = 0
) -> tuple[BackupManifest, Verified]:
    """Make the data directory `root` of a backup. It appears whole, after its log was replayed, or not at all.

    In a directory that is there already, which may be a mount point, it lies in `.restoring` until then, and no node
    starts there meanwhile. What was cut off is done again by another restore.

    Args:
        root: must not exist, or be empty but for what a restore that was cut off has left.
        passphrase: of the sealed part; None leaves keys and configuration out.
        moved: the node was stopped for good when the backup was made, and goes on here where it was.
        from_round: first round that the node may take part in or open, where it is known to be later than it will hear.

    Raises:
        BackupError: as `check_backup`; or the directory holds something, or the backup is not one of a move.
        OtherVersion, LogDamaged, ReplayDifference: the log in it does not replay here.
        NoSpaceLeft: the disk is full.
    """
    try:
        with unpacking(root) as making:
            manifest = _read_all(path, lambda name, content, size: _extract(making.root, name, content, size))
            _check_move(path, manifest, moved)
            verified = _check_log(making, manifest)
            _open_sealed(making, manifest, passphrase)
            _mark(making, manifest, moved, from_round)
    except OSError as error:
        raise _write_failure(error, root) from error
    return manifest, verified


def _write_failure(error: OSError, root: Path) -> SwarmdError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceLeft(f"no space left to restore {root}", "Free some space there")
    return BackupUnwritable(f"{root} cannot be made: {error}", "See that this user may write there, or name another")


def _mark(making: DataPaths, manifest: BackupManifest, moved: bool, from_round: int) -> None:
    """The note for the next start: of this restore, or of an earlier one that the node had not yet started after."""
    earlier = manifest.restored
    if moved:
        if earlier is not None:
            write_note(making.restored, earlier)
        return
    made_at = min(manifest.made_at, earlier.made_at) if earlier else manifest.made_at
    first = max(from_round, earlier.from_round) if earlier else from_round
    write_note(making.restored, Restored(time.time(), made_at, first))


def _extract(root: Path, name: str, content: BinaryIO, size_bytes: int) -> ArchiveMember:
    """Write a member to disk, synced."""
    if shutil.disk_usage(root).free < size_bytes:
        raise NoSpaceLeft(f"no space left for {name} of the backup ({size_bytes} bytes)", "Free some space there")
    target = root / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        member = _drain(name, content, size_bytes, file.write)
        file.flush()
        os.fsync(file.fileno())
    return member


def _check_move(path: Path, manifest: BackupManifest, moved: bool) -> None:
    """Whether the node may go on as if nothing had happened. Raises BackupError."""
    if moved and not manifest.for_move:
        fix = "Restore it without --moved; or stop the node and use `swarmd backup --for-move`"
        raise BackupError(f"{path} was made of a node that may have gone on", fix)
    if moved and time.time() - manifest.made_at > MOVED_S_MAX:
        fix = "Restore it without --moved: the node then leaves out what it may have signed since"
        raise BackupError(f"{path} is older than a day; a node may have run on it already", fix)


def _check_log(making: DataPaths, manifest: BackupManifest) -> Verified:
    """Replay the log, and see that it is the one that the manifest speaks of."""
    if manifest.layout != LAYOUT:
        raise OtherVersion.of("the backup", "layout", manifest.layout, LAYOUT)
    verified = verify(making.events)
    owner = node_of(making.events)
    end = verified.from_seq + verified.events
    if owner != manifest.peer or end != manifest.next_seq:
        raise LogDamaged(f"the backup's log is of {owner} and ends at seq {end}, which is not what its manifest says")
    return verified


def _open_sealed(making: DataPaths, manifest: BackupManifest, passphrase: str | None) -> None:
    """Put keys and configuration in place, mode 0600."""
    sealed = making.root / SEALED
    if manifest.sealed and passphrase is not None:
        if not sealed.is_file() or sealed.stat().st_size > SEALED_BYTES_MAX:
            raise BackupError("the sealed part, which the manifest speaks of, is missing or too large", AGAIN)
        files = unseal(sealed.read_bytes(), passphrase)
        _check_keys(files, manifest)
        for name, content in files.items():
            write_private(making.root / name, content)
    sealed.unlink(missing_ok=True)


def _check_keys(files: dict[str, bytes], manifest: BackupManifest) -> None:
    """The sealed files are plain names, and the key in them is the node's. Raises BackupError or IdentityError."""
    if any(Path(name).name != name or name in ("", ".", "..") for name in files):
        raise BackupError("the sealed part holds a file with a path for a name", AGAIN)
    if IDENTITY in files and parse_identity(files[IDENTITY], "the backup's key").peer_id != manifest.peer:
        raise BackupError(f"the key in the backup is not that of {manifest.peer}, whose log it holds", AGAIN)
