"""Checking a backup, and making a node's directory from one.

What a node signed after its backup was made is not in the backup. So a restored directory carries a note, and the node
that starts on it takes part only from the round after the first one that it sees opening
(`swarmd.core.node.rounds`). Only the backup of a node that moved has no such gap.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from swarmd.backup.archive import AGAIN, read_archive, unpacking
from swarmd.backup.create import BackupManifest
from swarmd.bounds import DECODE_ERRORS
from swarmd.daemon.layout import LAYOUT
from swarmd.daemon.notes import Restored, write_note
from swarmd.dht.identity.identity import parse_identity, write_private
from swarmd.errors import ArchiveError, LogDamaged, OtherVersion
from swarmd.eventlog.fold import node_of
from swarmd.eventlog.offline.replay import Verified, verify
from swarmd.paths import IDENTITY, NodeDirectory
from swarmd.secret_files import unseal

MOVED_S_MAX = 24 * 3600.0  # an older backup of a move is treated as an ordinary one


def check_backup(path: Path, passphrase: str | None = None) -> BackupManifest:
    """Read a backup from end to end and compare everything with its manifest; with a passphrase also what is sealed.

    Raises:
        NotFoundError: there is no such file.
        ArchiveError: it is damaged or incomplete.
        OtherVersion: it has another format.
        IdentityError: the passphrase is wrong.
    """
    manifest, sealed = read_archive(path, BackupManifest)
    if manifest.sealed and passphrase is not None:
        open_sealed(sealed, manifest, passphrase)
    return manifest


def restore_backup(
    path: Path, root: Path, passphrase: str | None, moved: bool = False, from_round: int = 0
) -> tuple[BackupManifest, Verified]:
    """Make the data directory `root` from a backup. It is whole, and its log was replayed, or it is as it was.

    Args:
        root: must not exist, or be empty but for what a restore that was cut off has left.
        passphrase: of the sealed part; None leaves keys and configuration out.
        moved: the node was stopped for good when the backup was made, and goes on here where it was.
        from_round: first round that the node may take part in or open, if it is known to be later than it will hear.

    Raises:
        ArchiveError: as `check_backup` and `unpacking`, or the backup is not one of a move.
        OtherVersion, LogDamaged, ReplayDifference: the log in it does not replay here.
        NoSpaceLeft: the disk is full.
    """
    with unpacking(root) as making:
        data = NodeDirectory(making)
        manifest, sealed = read_archive(path, BackupManifest, making)
        if moved:
            _check_move(path, manifest)
        verified = _check_log(data, manifest)
        if manifest.sealed and passphrase is not None:
            for name, content in open_sealed(sealed, manifest, passphrase).items():
                write_private(data.root / name, content)
        _mark(data, manifest, moved, from_round)
    return manifest, verified


def _mark(data: NodeDirectory, manifest: BackupManifest, moved: bool, from_round: int) -> None:
    """The note for the next start: of this restore, or of an earlier one that the node had not yet started after."""
    earlier = manifest.restored
    if moved:
        if earlier is not None:
            write_note(data.restored, earlier)
        return
    made_at = min(manifest.made_at, earlier.made_at) if earlier else manifest.made_at
    first = max(from_round, earlier.from_round) if earlier else from_round
    write_note(data.restored, Restored(time.time(), made_at, first))


def _check_move(path: Path, manifest: BackupManifest) -> None:
    """Whether the node may go on as if nothing had happened. Raises ArchiveError."""
    if not manifest.for_move:
        fix = "Restore it without --moved; or stop the node and use `swarmd backup --for-move`"
        raise ArchiveError(f"{path} was made of a node that may have gone on", fix)
    if time.time() - manifest.made_at > MOVED_S_MAX:
        fix = "Restore it without --moved: the node then leaves out what it may have signed since"
        raise ArchiveError(f"{path} is older than a day; a node may have run on it already", fix)


def _check_log(data: NodeDirectory, manifest: BackupManifest) -> Verified:
    """Replay the log, and see that it is the one that the manifest speaks of."""
    if manifest.layout != LAYOUT:
        raise OtherVersion.of("the backup", "layout", manifest.layout, LAYOUT)
    verified = verify(data.events)
    owner = node_of(data.events)
    end = verified.from_seq + verified.events
    if owner != manifest.peer or end != manifest.next_seq:
        raise LogDamaged(f"the backup's log is of {owner} and ends at seq {end}, which is not what its manifest says")
    return verified


def open_sealed(sealed: bytes, manifest: BackupManifest, passphrase: str) -> dict[str, bytes]:
    """Keys and configuration by file name.

    Raises:
        ArchiveError: a name is a path, or the key is another node's.
        IdentityError: the part is missing or damaged, or the passphrase is wrong.
    """
    origin = "the sealed part of the backup"
    try:
        files = msgspec.msgpack.decode(unseal(sealed, passphrase, origin), type=dict[str, bytes])
    except DECODE_ERRORS as error:
        raise ArchiveError(f"{origin} does not hold files", AGAIN) from error
    if any(Path(name).name != name or name in ("", ".", "..") for name in files):
        raise ArchiveError(f"{origin} holds a file with a path for a name", AGAIN)
    if IDENTITY in files and parse_identity(files[IDENTITY], "the backup's key").peer_id != manifest.peer:
        raise ArchiveError(f"the key in the backup is not that of {manifest.peer}, whose log it holds", AGAIN)
    return files
