"""Making a backup of a node, which may run meanwhile: its log up to a commit, and what goes with that."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import msgspec

from swarmd import __version__
from swarmd.backup.archive import (
    CONFIG,
    FORMAT,
    INVITATIONS,
    PEERS,
    PUBLIC,
    SEALED,
    ArchiveWriter,
    BackupManifest,
    mode_of,
)
from swarmd.backup.questions import find_questions
from swarmd.backup.sealed import SEALED_BYTES_MAX, seal
from swarmd.backup.unfinished import clear_unfinished, unfinished_path
from swarmd.core.state import State
from swarmd.core.step import RULES, StateFold
from swarmd.daemon.layout import read_layout
from swarmd.daemon.notes import Moved, read_restored, refuse_moved, write_note
from swarmd.daemon.service import digests_in_use
from swarmd.dht.identity.backup import marks_of
from swarmd.errors import BackupError, BackupUnwritable
from swarmd.eventlog.blobs import Blobs
from swarmd.eventlog.commit import decode_commit
from swarmd.eventlog.files import TEMPORARY, remove_left, sync_directory
from swarmd.eventlog.fold import base_upto, fold_commit, node_of
from swarmd.eventlog.frame import read_frames
from swarmd.eventlog.lock import take_lock
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.segment import first_seq_of, list_segments, read_header
from swarmd.eventlog.snapshot import list_snapshots, snapshot_seq
from swarmd.observe.logging.redaction import redact_text
from swarmd.paths import DataPaths
from swarmd.regular_files import open_regular
from swarmd.training.checkpoints.checkpoint_files import newest_whole

SWARM = "swarm.toml"
WITHOUT_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)  # said by sticks and network file systems
TRIES = 5  # a running node may remove a file that was just listed
LEFT_OUT = ("moved.json", "restored.json")  # notes, see `BackupManifest`
PRIVATE_BYTES_MAX = SEALED_BYTES_MAX // 2  # of all that is sealed


class BackupPlan(msgspec.Struct, frozen=True):
    """What to put into a backup.

    Attributes:
        passphrase: for keys and configuration; None leaves them out.
        checkpoint: whether the newest one goes along.
        config: the node's configuration, where it does not lie in the data directory.
        for_move: the node moves to another host: it must be stopped, and its directory is closed behind it.
    """

    passphrase: str | None
    checkpoint: bool = True
    config: Path | None = None
    for_move: bool = False


class OpenPart(msgspec.Struct, frozen=True):
    """A file that is open, so that nothing takes it away, and how much of it goes along."""

    name: str
    file: BinaryIO
    size_bytes: int


def make_backup(data: DataPaths, out: Path, plan: BackupPlan) -> BackupManifest:
    """Write a backup of the node in `data`.

    Raises:
        BackupError: `out` exists, lies in the data directory or nowhere, or has another ending than .tar.gz or .tar.
        NotFoundError, LogDamaged: there is no log, or not a whole one.
        LogInUse: the node is to be moved and still runs.
        IdentityInUse: it is to be moved and has moved already.
    """
    mode = mode_of(out)
    if out.exists() or out.resolve().is_relative_to(data.root.resolve()):
        raise BackupUnwritable(
            f"{out} exists already or lies in {data.root}", "Name a new file elsewhere, best another disk"
        )
    if not out.absolute().parent.is_dir():
        raise BackupUnwritable(f"there is no directory {out.absolute().parent}", "Make it first, or name another file")
    list_segments(data.events)
    with _many_files(), _leaving(data) if plan.for_move else contextlib.nullcontext():
        return _write(data, out, mode, plan)


@contextlib.contextmanager
def _many_files() -> Iterator[None]:
    """Have as many files open as the system lets us: all segments are, and each life of a node has begun one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _leaving(data: DataPaths) -> Iterator[None]:
    """Nothing else writes the log meanwhile, and the node has not left before."""
    lock = take_lock(data.events)
    try:
        refuse_moved(data)
        yield
    finally:
        os.close(lock)


def _write(data: DataPaths, out: Path, mode: str, plan: BackupPlan) -> BackupManifest:
    clear_unfinished(out, TEMPORARY)
    unfinished = unfinished_path(out, TEMPORARY)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks; then it is never cleared away
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            archive = ArchiveWriter(file, mode)
            manifest = _fill(data, archive, plan)
            archive.finish(manifest)
            file.flush()
            os.fsync(file.fileno())
            with _closing(data, Moved(manifest.made_at, out.name)) if plan.for_move else contextlib.nullcontext():
                _put_in_place(unfinished, out)
        sync_directory(out.parent)
    except OSError as error:
        raise BackupUnwritable(
            f"the backup {out} cannot be written: {error.strerror or error}",
            f"See that there is room in {out.absolute().parent} and that this user may write there, or name another",
        ) from error
    finally:
        remove_left(unfinished)
    return manifest


def _put_in_place(unfinished: Path, out: Path) -> None:
    """Give the archive its name, and never that of a file that came meanwhile. Raises OSError."""
    try:
        os.link(unfinished, out)
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        os.close(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            unfinished.replace(out)
        except OSError:
            remove_left(out)
            raise


@contextlib.contextmanager
def _closing(data: DataPaths, moved: Moved) -> Iterator[None]:
    """First the note, then the archive: at no instant can the node be started in both places."""
    write_note(data.moved, moved)
    try:
        yield
    except OSError:
        data.moved.unlink()
        raise


def _fill(data: DataPaths, archive: ArchiveWriter, plan: BackupPlan) -> BackupManifest:
    restored = read_restored(data)  # before the log: a start writes it there first, then removes it
    with contextlib.ExitStack() as stack:
        parts, next_seq = _open_log(data.events, stack)
        state = _state_at(data.events, next_seq)
        parts += (rollouts := _open_blobs(Blobs(data.blobs), digests_in_use(state), stack))
        checkpoint, files = _open_checkpoint(data, stack) if plan.checkpoint else ("", [])
        for part in (*parts, *files):
            archive.add(part.name, part.file, part.size_bytes)
    _add_files(data, archive, plan)
    there = {part.name.rpartition("/")[2] for part in rollouts}
    return BackupManifest(
        format=FORMAT,
        made_at=time.time(),
        version=__version__,
        rules=RULES,
        layout=read_layout(data),
        peer=node_of(data.events),
        swarm=state.settings.swarm if state.settings else "",
        from_seq=min(first_seq_of(Path(part.name)) for part in parts if part.name.endswith(".seg")),
        next_seq=next_seq,
        marks=marks_of(state),
        checkpoint=checkpoint,
        sealed=plan.passphrase is not None,
        for_move=plan.for_move,
        missing=tuple(sorted(digests_in_use(state) - there)),
        members=tuple(archive.members),
        restored=restored,
    )


def _open_log(events: Path, stack: contextlib.ExitStack) -> tuple[list[OpenPart], int]:
    """Segments and snapshots, up to the last whole commit; and the seq that follows it."""
    for _ in range(TRIES):
        try:
            return _open_listed(events, stack)
        except FileNotFoundError:
            continue  # the node has just let go of its oldest segment
    raise BackupError(f"the log in {events} changes too fast to be copied", "Try again, or stop the node first")


def _open_listed(events: Path, stack: contextlib.ExitStack) -> tuple[list[OpenPart], int]:
    parts: list[OpenPart] = []
    segments = list_segments(events)
    for path in segments[:-1]:
        parts.append(_open(f"events/{path.name}", path, stack))
    last = stack.enter_context(open_regular(segments[-1]))
    end, next_seq = _whole_part(last, segments[-1])
    last.seek(0)
    parts.append(OpenPart(f"events/{segments[-1].name}", last, end))
    for path in list_snapshots(events):
        if snapshot_seq(path) <= next_seq:
            parts.append(_open(f"events/snapshots/{path.name}", path, stack))
    return parts, next_seq


def _open(name: str, path: Path, stack: contextlib.ExitStack) -> OpenPart:
    file = stack.enter_context(open_regular(path))
    return OpenPart(name, file, os.fstat(file.fileno()).st_size)


def _whole_part(file: FileIO, path: Path) -> tuple[int, int]:
    """Where the last whole commit of the last segment ends, and the seq that follows."""
    opening = read_header(file, path)
    end, last = opening.size_bytes, b""
    for offset, payload in read_frames(file, end, opening.seed):
        end, last = offset, payload
    return end, decode_commit(last, path).end_seq if last else opening.header.first_seq


def _state_at(events: Path, next_seq: int) -> State:
    """The fold of the log before an event; a node that runs may have made a snapshot of a later one meanwhile."""
    base = base_upto(events, next_seq)
    fold = StateFold(base.state)
    for commit in read_commits(events, base.seq):
        if commit.seq >= next_seq:
            break
        fold_commit(fold, commit)
    return fold.state


def _open_blobs(blobs: Blobs, digests: frozenset[str], stack: contextlib.ExitStack) -> list[OpenPart]:
    parts = []
    for digest in sorted(digests):
        with contextlib.suppress(FileNotFoundError):  # never fetched, or let go since
            parts.append(_open(f"blobs/{digest[:2]}/{digest}", blobs.directory / digest[:2] / digest, stack))
    return parts


def _open_checkpoint(data: DataPaths, stack: contextlib.ExitStack) -> tuple[str, list[OpenPart]]:
    """The newest checkpoint that is whole."""
    for _ in range(TRIES):
        found = newest_whole(data.checkpoints)
        if found is None:
            return "", []
        with contextlib.suppress(FileNotFoundError):  # the trainer has just written a newer one
            files = sorted(path for path in found.iterdir() if path.is_file())
            return found.name, [_open(f"checkpoints/{found.name}/{path.name}", path, stack) for path in files]
    raise BackupError(f"the checkpoints in {data.checkpoints} change too fast to be copied", "Try again")


def _add_files(data: DataPaths, archive: ArchiveWriter, plan: BackupPlan) -> None:
    """What lies in the directory itself: open if it is known to be no secret, else sealed or not at all."""
    files = {path.name: path for path in sorted(data.root.iterdir()) if path.is_file() and not path.is_symlink()}
    if plan.config is not None:
        files[CONFIG] = plan.config
    known = {name: files.pop(name) for name in PUBLIC if name in files}
    known |= find_questions(data.root, [path for path in (files.get(CONFIG), known.get(SWARM)) if path])
    if data.peers.is_file():  # but not the records beside it, which would be published again
        known[PEERS] = data.peers
    if data.invitations.is_file():
        known[INVITATIONS] = data.invitations
    for name, path in known.items():
        files.pop(name, None)
        _add_open(archive, name, path)
    files = {name: path for name, path in files.items() if not _stays(name)}
    if plan.passphrase is not None:
        archive.add_bytes(SEALED, seal(_read_private(files), plan.passphrase))
    elif CONFIG in files and files[CONFIG].stat().st_size <= PRIVATE_BYTES_MAX:
        content = _read_private({CONFIG: files[CONFIG]})[CONFIG]
        if _is_open(content):
            archive.add_bytes(CONFIG, content)


def _stays(name: str) -> bool:
    return name in LEFT_OUT or name.endswith((".tmp", ".log")) or name.startswith(".")


def _add_open(archive: ArchiveWriter, name: str, path: Path) -> None:
    with open_regular(path) as file:
        archive.add(name, file, os.fstat(file.fileno()).st_size)


def _read_private(files: dict[str, Path]) -> dict[str, bytes]:
    """Small files, whole. Raises BackupError, before it reads one, where they are not small."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if sum(sizes.values()) > PRIVATE_BYTES_MAX:
        largest = files[max(sizes, key=lambda name: sizes[name])]
        raise BackupError(
            f"{largest} is too large for a key",
            "Move what is no part of the node elsewhere; if it holds questions, name the configuration that names it: "
            "--config FILE",
        )
    return {name: _read_start(path, sizes[name]) for name, path in files.items()}


def _read_start(path: Path, size_bytes: int) -> bytes:
    with open_regular(path) as file:
        return file.read(size_bytes)


def _is_open(content: bytes) -> bool:
    """Whether a configuration holds nothing that looks like a secret."""
    text = content.decode("utf-8", "replace")
    return redact_text(text) == text
