"""Backups of a node: making, checking and restoring them.

- The node may be running. All files of the log, rollouts and checkpoint are opened before the first is copied, so the
  node can remove them meanwhile. The last segment is copied up to its last whole commit, and the state at that commit
  decides which rollouts are needed.
- Files in the directory itself are copied unencrypted only if they are known to hold no secret. Keys, passphrases and
  the configuration go into one sealed part, or not at all.
- To move a node, stop it: its directory is closed to further starts before the archive gets its name, so at no instant
  can the node be started in both places.
- A backup lacks what the node signed after it was made. So a restored directory carries a note, and the node that
  starts there takes part only from the round after the first one that it sees opening (`swarmd.core.rounds`). Only the
  backup of a move has no such gap.
"""

import contextlib
import os
import re
import resource
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

import msgspec

from swarmd import __version__
from swarmd.backup import archive
from swarmd.bounds import DECODE_ERRORS
from swarmd.core.state import State
from swarmd.core.step import RULES, StateFold
from swarmd.daemon import directory
from swarmd.daemon.service import digests_in_use
from swarmd.dht.identity.backup import BackupProgress, progress_of
from swarmd.dht.identity.identity import parse_identity, write_private_file
from swarmd.errors import ArchiveError, ArchiveUnwritable, LogDamaged, OtherVersion
from swarmd.eventlog.blobs import BlobStore
from swarmd.eventlog.fold import apply_commit, base_upto, peer_id_of_log
from swarmd.eventlog.frame import decode_commit, read_frames
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.replay import VerifyResult, verify_log
from swarmd.eventlog.segment import first_seq_of, list_segments, read_header
from swarmd.eventlog.snapshot import list_snapshots, snapshot_seq
from swarmd.eventlog.store import acquire_writer_lock
from swarmd.files import open_regular
from swarmd.observe.redaction import redact_text
from swarmd.paths import CONFIG, IDENTITY, NodeDirectory
from swarmd.secret_files import seal, unseal
from swarmd.swarms.registry import questions_file_of
from swarmd.toml_text import parse_toml, read_toml
from swarmd.training.checkpoint_files import find_newest_complete

SWARM, PEERS, INVITATIONS = "swarm.toml", "network/peers.json", "network/invitations.json"
PUBLIC = (SWARM, "layout.json", "model.json")  # files of the directory itself that hold no secret
NOTES = ("moved.json", "restored.json")  # not copied: the manifest has their content
TRIES = 5  # a running node may remove a file that was just listed
PRIVATE_BYTES_MAX = archive.SEALED_BYTES_MAX // 2  # all sealed files together

_ANY = r"[^/\x00-\x1f\x7f\ud800-\udfff]"
QUESTIONS = rf"(?:{_ANY}{{1,128}}/){{0,8}}{_ANY}{{1,122}}\.jsonl"


class BackupManifest(archive.Manifest, frozen=True, kw_only=True):
    """The manifest of a backup.

    Attributes:
        from_seq, next_seq: the first event in it, and the number after its last.
        marks: the last stage trained, reward and vote; the node had signed nothing later when the backup was made.
        checkpoint: name of the checkpoint in it; empty if it has none.
        sealed: whether keys and configuration are in it, encrypted.
        for_move: the node was stopped, and its directory closed to further starts.
        missing: digests of rollouts that the state refers to and that were not on disk.
        restored: note of an earlier restore, if the node was not started since.
    """

    FILE: ClassVar[str] = "backup.json"
    NOUN: ClassVar[str] = "backup of a node"
    MAKE: ClassVar[str] = "swarmd backup make DIR FILE"
    NAMES: ClassVar[re.Pattern[str]] = re.compile(
        rf"(?:events|events/snapshots|blobs/[0-9a-f]{{2}}|checkpoints/{archive.PART})/{archive.PART}|{QUESTIONS}|"
        + "|".join(map(re.escape, (*PUBLIC, PEERS, INVITATIONS, CONFIG, archive.SEALED)))
    )

    made_at: float  # POSIX seconds
    version: str
    rules: int
    layout: int
    peer: str
    swarm: str
    from_seq: int
    next_seq: int
    marks: BackupProgress
    checkpoint: str
    sealed: bool
    for_move: bool
    missing: tuple[str, ...]
    restored: directory.RestoreNote | None = None


class BackupPlan(msgspec.Struct, frozen=True):
    """What a backup should contain. Without a passphrase it has no keys. `config`: a configuration outside the data
    directory. `for_move`: the node must be stopped, and its directory is closed to further starts."""

    passphrase: str | None
    checkpoint: bool = True
    config: Path | None = None
    for_move: bool = False


class OpenPart(NamedTuple):
    """An open file and how many of its bytes to copy; it stays readable after the node removes it."""

    name: str
    file: BinaryIO
    size_bytes: int


def make_backup(data: NodeDirectory, out: Path, plan: BackupPlan) -> BackupManifest:
    """Write a backup of the node in `data`.

    Raises ArchiveError if the archive cannot be written or files change too fast; NotFoundError or LogDamaged if the
    log is not whole; and for a move LogInUse while the node runs, IdentityInUse if it has moved already.
    """
    if out.resolve().is_relative_to(data.root.resolve()):
        raise ArchiveUnwritable(f"{out} lies in {data.root}", "Name a new file elsewhere, best on another disk")
    list_segments(data.events)
    # All segments are open at once, and there is at least one for each start of the node.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with _hold_log_lock(data) if plan.for_move else contextlib.nullcontext(), archive.write_archive(out) as packed:
            manifest = _write_members(data, packed, plan)
            packed.finish(
                manifest,
                _mark_as_moved(data, directory.MoveNote(manifest.made_at, out.name)) if plan.for_move else None,
            )
        return manifest
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _hold_log_lock(data: NodeDirectory) -> Iterator[None]:
    """Hold the log's lock. Raises LogInUse, or IdentityInUse if the node has moved already."""
    lock = acquire_writer_lock(data.events)
    try:
        directory.refuse_moved(data)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _mark_as_moved(data: NodeDirectory, moved: directory.MoveNote) -> Iterator[None]:
    directory.write_note(data.moved, moved)
    try:
        yield
    except OSError:
        data.moved.unlink()
        raise


def _write_members(data: NodeDirectory, packed: archive.ArchiveWriter, plan: BackupPlan) -> BackupManifest:
    # Read this before the log: a start first writes the note into the log, then removes it.
    restored = directory.read_restore_note(data)
    with contextlib.ExitStack() as stack:
        parts, next_seq = _open_log_files(data.events, stack)
        state = _state_at(data.events, next_seq)
        in_use = digests_in_use(state)
        rollouts = _open_blobs(BlobStore(data.blobs), in_use, stack)
        checkpoint, files = _open_checkpoint(data, stack) if plan.checkpoint else ("", [])
        for part in (*parts, *rollouts, *files):
            packed.add(*part)
    _add_files(data, packed, plan)
    return BackupManifest(
        format=archive.FORMAT,
        made_at=time.time(),
        version=__version__,
        rules=RULES,
        layout=directory.read_layout(data),
        peer=peer_id_of_log(data.events),
        swarm=state.settings.swarm if state.settings else "",
        from_seq=min(first_seq_of(Path(part.name)) for part in parts if part.name.endswith(".seg")),
        next_seq=next_seq,
        marks=progress_of(state),
        checkpoint=checkpoint,
        sealed=plan.passphrase is not None,
        for_move=plan.for_move,
        missing=tuple(sorted(in_use - {part.name.rpartition("/")[2] for part in rollouts})),
        members=tuple(packed.members),
        restored=restored,
    )


def _open_log_files(events: Path, stack: contextlib.ExitStack) -> tuple[list[OpenPart], int]:
    """Open segments and snapshots, up to the last whole commit. Returns them and the seq after that commit."""
    for _ in range(TRIES):
        # the node may have removed its oldest segment since they were listed
        with contextlib.suppress(FileNotFoundError):
            *earlier, last = list_segments(events)
            parts = [_open(f"events/{path.name}", path, stack) for path in earlier]
            file = stack.enter_context(open_regular(last))
            end, next_seq = _find_last_commit(file, last)
            file.seek(0)
            parts.append(OpenPart(f"events/{last.name}", file, end))
            snapshots = [path for path in list_snapshots(events) if snapshot_seq(path) <= next_seq]
            parts += [_open(f"events/snapshots/{path.name}", path, stack) for path in snapshots]
            return parts, next_seq
    raise ArchiveError(f"the log in {events} changes too fast to be copied", "Try again, or stop the node first")


def _open(name: str, path: Path, stack: contextlib.ExitStack) -> OpenPart:
    file = stack.enter_context(open_regular(path))
    return OpenPart(name, file, os.fstat(file.fileno()).st_size)


def _find_last_commit(file: FileIO, path: Path) -> tuple[int, int]:
    """Offset at which the last whole commit of the last segment ends, and the seq after it."""
    opening = read_header(file, path)
    end, last = opening.size_bytes, b""
    for offset, payload in read_frames(file, end, opening.seed):
        end, last = offset, payload
    return end, decode_commit(last, path).end_seq if last else opening.header.first_seq


def _state_at(events: Path, next_seq: int) -> State:
    """The state before event `next_seq`. Newer snapshots, which a running node may have just written, are not used."""
    base = base_upto(events, next_seq)
    fold = StateFold(base.state)
    for commit in read_commits(events, base.seq):
        if commit.seq >= next_seq:
            break
        apply_commit(fold, commit)
    return fold.state


def _open_blobs(blobs: BlobStore, digests: frozenset[str], stack: contextlib.ExitStack) -> list[OpenPart]:
    parts = []
    for digest in sorted(digests):
        with contextlib.suppress(FileNotFoundError):  # never fetched, or removed since
            parts.append(_open(f"blobs/{digest[:2]}/{digest}", blobs.directory / digest[:2] / digest, stack))
    return parts


def _open_checkpoint(data: NodeDirectory, stack: contextlib.ExitStack) -> tuple[str, list[OpenPart]]:
    """Open the files of the newest complete checkpoint. Returns its name and the files."""
    for _ in range(TRIES):
        found = find_newest_complete(data.checkpoints)
        if found is None:
            return "", []
        with contextlib.suppress(FileNotFoundError):  # replaced by a newer one that the trainer has just written
            files = sorted(path for path in found.iterdir() if path.is_file())
            return found.name, [_open(f"checkpoints/{found.name}/{path.name}", path, stack) for path in files]
    raise ArchiveError(f"the checkpoints in {data.checkpoints} change too fast to be copied", "Try again")


def _add_files(data: NodeDirectory, packed: archive.ArchiveWriter, plan: BackupPlan) -> None:
    """Add the directory's own files: unencrypted if they are known not to be secret, else sealed or not at all."""
    files = {path.name: path for path in sorted(data.root.iterdir()) if path.is_file() and not path.is_symlink()}
    if plan.config is not None:
        files[CONFIG] = plan.config
    known = {name: files[name] for name in PUBLIC if name in files}
    known |= find_questions(data.root, [files[name] for name in (CONFIG, SWARM) if name in files])
    # Not the signed records beside them: the restored node would publish those again.
    known |= {name: path for name, path in ((PEERS, data.peers), (INVITATIONS, data.invitations)) if path.is_file()}
    for name, path in known.items():
        packed.add_file(name, path)
    private = {
        name: path
        for name, path in files.items()
        if name not in known and name not in NOTES and not name.endswith((".tmp", ".log")) and not name.startswith(".")
    }
    if plan.passphrase is not None:
        packed.add_bytes(archive.SEALED, seal(msgspec.msgpack.encode(_read_private(private)), plan.passphrase))
    elif CONFIG in private and private[CONFIG].stat().st_size <= PRIVATE_BYTES_MAX:
        content = _read_private({CONFIG: private[CONFIG]})[CONFIG]
        text = content.decode("utf-8", "replace")
        if redact_text(text) == text:
            packed.add_bytes(CONFIG, content)


def _read_private(files: dict[str, Path]) -> dict[str, bytes]:
    """Read small files into memory. Raises ArchiveError, before it reads any, if they are too large together."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if sum(sizes.values()) > PRIVATE_BYTES_MAX:
        largest = files[max(sizes, key=lambda name: sizes[name])]
        raise ArchiveError(
            f"{largest} is too large for a key",
            "Move what is not part of the node elsewhere; if it holds questions, name the configuration that names it: "
            "--config FILE",
        )
    contents = {}
    for name, path in files.items():
        with open_regular(path) as file:
            contents[name] = file.read(sizes[name])
    return contents


def find_questions(root: Path, texts: list[Path]) -> dict[str, Path]:
    """Question files in the data directory that any of these texts (a configuration, a manifest) names, by name."""
    found = {}
    for text in texts:
        try:
            tables = parse_toml(read_toml(text))
        except (OSError, ValueError):
            continue  # a text that does not parse: no node could start with it
        for above in (tables.get("swarm"), tables.get("recipe")):
            options = above.get("options") if isinstance(above, dict) else None
            value = questions_file_of(options) if isinstance(options, dict) else ""
            name = os.path.relpath(os.path.normpath(root.absolute() / value), root.absolute())
            if re.fullmatch(QUESTIONS, name) and BackupManifest.allows(name) and (root / name).is_file():
                found[name] = root / name
    return found


MOVED_S_MAX = 24 * 3600.0  # an older backup of a move is treated as an ordinary one


def check_backup(path: Path, passphrase: str | None = None) -> BackupManifest:
    """Read a whole backup and compare everything with its manifest; with a passphrase, also open the sealed part.
    Raises NotFoundError, ArchiveError if it is damaged, OtherVersion, IdentityError for a wrong passphrase."""
    manifest, sealed = archive.read_archive(path, BackupManifest)
    if manifest.sealed and passphrase is not None:
        open_sealed(sealed, manifest, passphrase)
    return manifest


def restore_backup(
    path: Path, root: Path, passphrase: str | None, moved: bool = False, from_round: int = 0
) -> tuple[BackupManifest, VerifyResult]:
    """Make the data directory `root` from a backup, and replay its log. If anything fails, `root` is unchanged.

    Args:
        passphrase: opens the sealed part; None leaves keys and configuration out.
        moved: the node was stopped for good when the backup was made, and continues here.
        from_round: earliest round that the node may take part in or open; a later round that it hears of prevails.

    Raises ArchiveError as `check_backup` and `unpack_atomically`, or if `moved` and this is not the backup of a move;
    NoSpaceLeft; and OtherVersion, LogDamaged or ReplayDifference if its log does not replay here.
    """
    with archive.unpack_atomically(root) as making:
        data = NodeDirectory(making)
        manifest, sealed = archive.read_archive(path, BackupManifest, making)
        if moved:
            _check_move(path, manifest)
        verified = _check_log(data, manifest)
        if manifest.sealed and passphrase is not None:
            for name, content in open_sealed(sealed, manifest, passphrase).items():
                write_private_file(data.root / name, content)
        _write_restore_note(data, manifest, moved, from_round)
    return manifest, verified


def _write_restore_note(data: NodeDirectory, manifest: BackupManifest, moved: bool, from_round: int) -> None:
    """Write the restore note for the next start. An older note stays in force if the node was not started since."""
    earlier = manifest.restored
    if moved:
        if earlier is not None:
            directory.write_note(data.restored, earlier)
        return
    made_at = min(manifest.made_at, earlier.made_at) if earlier else manifest.made_at
    first = max(from_round, earlier.from_round) if earlier else from_round
    directory.write_note(data.restored, directory.RestoreNote(time.time(), made_at, first))


def _check_move(path: Path, manifest: BackupManifest) -> None:
    """Raise ArchiveError unless this is a recent backup of a move, so that the node may continue without a gap."""
    if not manifest.for_move:
        fix = "Restore it without --moved; or stop the node and use `swarmd backup --for-move`"
        raise ArchiveError(f"{path} was made of a node that may have kept running", fix)
    if time.time() - manifest.made_at > MOVED_S_MAX:
        fix = "Restore it without --moved: the node then leaves out what it may have signed since"
        raise ArchiveError(f"{path} is older than a day; a node may have run on it already", fix)


def _check_log(data: NodeDirectory, manifest: BackupManifest) -> VerifyResult:
    """Replay the log and check that it is the one the manifest describes."""
    if manifest.layout != directory.LAYOUT:
        raise OtherVersion.from_numbers("the backup", "layout", manifest.layout, directory.LAYOUT)
    verified = verify_log(data.events)
    owner = peer_id_of_log(data.events)
    end = verified.from_seq + verified.events
    if owner != manifest.peer or end != manifest.next_seq:
        raise LogDamaged(
            f"the backup's log is of {owner} and ends at seq {end}, which is not what its manifest says", archive.AGAIN
        )
    return verified


def open_sealed(sealed: bytes, manifest: BackupManifest, passphrase: str) -> dict[str, bytes]:
    """Keys and configuration by file name. Raises ArchiveError if a name is a path, or the key another node's, and
    IdentityError if the part is damaged, or the passphrase is wrong."""
    origin = "the sealed part of the backup"
    try:
        files = msgspec.msgpack.decode(unseal(sealed, passphrase, origin), type=dict[str, bytes])
    except DECODE_ERRORS as error:
        raise ArchiveError(f"{origin} does not hold files", archive.AGAIN) from error
    if any(Path(name).name != name or name in ("", ".", "..") for name in files):
        raise ArchiveError(f"{origin} holds a file with a path for a name", archive.AGAIN)
    if IDENTITY in files and parse_identity(files[IDENTITY], "the backup's key").peer_id != manifest.peer:
        raise ArchiveError(f"the key in the backup is not that of {manifest.peer}, whose log it holds", archive.AGAIN)
    return files
