"""Support bundles: what somebody else needs to see what a node did, without its secrets.

One ``.tar.gz`` of `bundle.json` (`BundleManifest`) and the files that it names. The slice of the event log in it folds
to the very state that the manifest has the SHA-256 of, on any machine.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from swarmd import __version__
from swarmd.backup.tar_headers import BoundedTarHeader, each_member
from swarmd.bounds import DECODE_ERRORS
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.errors import BundleError, BundleHoldsSecret, BundleUnwritable, NotFoundError, OtherVersion
from swarmd.eventlog.files import remedy, remove_left
from swarmd.eventlog.fold import load
from swarmd.eventlog.offline.replay import verify
from swarmd.eventlog.retention import disk_bytes
from swarmd.eventlog.segment import first_seq_of, list_segments
from swarmd.eventlog.snapshot import encode_state, list_snapshots, snapshot_directory, snapshot_seq
from swarmd.regular_files import open_regular, read_start

FORMAT = 1
MANIFEST = "bundle.json"
MANIFEST_BYTES_MAX = 4 * 1024 * 1024
MEMBERS_MAX = 10_000
BYTES_MAX = 8 * 1024**3  # unpacked, of a bundle that is opened
CHUNK_BYTES = 1024 * 1024

Report = Callable[[str], None]


class BundleMember(msgspec.Struct, frozen=True):
    """One file of a bundle."""

    name: str
    size_bytes: int
    sha256: str


class BundleManifest(msgspec.Struct, frozen=True):
    """What a bundle is.

    Attributes:
        first_seq: the first event in its slice of the log; earlier ones are in the snapshot before it.
        next_seq: the number after its last event.
        state_sha256: of the folded state, encoded as in a snapshot.
        notes: what is not in it, and why.
    """

    format: int
    made_at: float
    version: str
    python: str
    platform: str
    peer: str
    swarm: str
    rules: int
    first_seq: int
    next_seq: int
    state_sha256: str
    members: tuple[BundleMember, ...]
    notes: tuple[str, ...] = ()


class _Version(msgspec.Struct, frozen=True):
    """The one field that manifests of all formats have."""

    format: int


class Slice(msgspec.Struct, frozen=True):
    """The part of a log that goes into a bundle."""

    segments: tuple[Path, ...]
    snapshots: tuple[Path, ...]


def write_bundle(
    log: Path,
    out: Path,
    texts: Mapping[str, bytes],
    secrets: Iterable[str],
    log_bytes_max: int,
    notes: tuple[str, ...] = (),
    report: Report = lambda _: None,
) -> BundleManifest:
    """Make a bundle of a log, whose daemon may be running.

    Args:
        log: the directory of segments.
        out: the file to make; it must not exist.
        texts: further files by name: configuration, status, findings, stories.
        secrets: texts that must stand nowhere in it.
        log_bytes_max: the newest events within this bound go in; all of them where they fit.
        notes: for the manifest.
        report: told what is being done.

    Raises:
        BundleError: the file exists or cannot be written.
        BundleHoldsSecret: a secret stands in one of the files; nothing is left behind.
        LogDamaged, NotFoundError: there is no sound log.
    """
    if out.exists():
        raise BundleUnwritable(f"{out} exists already", "Name another file with --out: a bundle never overwrites one")
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=_parent(out)) as scratch:
        root = Path(scratch)
        part = slice_of(log, log_bytes_max)
        report(f"copying {len(part.segments)} segments of the log")
        _copy(part, root / "events")
        for name, content in texts.items():
            (root / name).write_bytes(content)
        report("folding the copy")
        state, next_seq = load(root / "events")
        first_seq = first_seq_of(part.segments[0])
        if first_seq:
            notes += (f"events before {first_seq} are not in it; the oldest snapshot stands for them",)
        manifest = _manifest_of(root, state, next_seq, first_seq, notes)
        (root / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        report("looking for secrets")
        refuse_secrets(root, secrets)
        _pack(root, out)
    return manifest


def open_bundle(file: Path, into: Path, report: Report = lambda _: None) -> BundleManifest:
    """Unpack a bundle into a new directory, check every digest, fold its log and compare the state.

    Raises:
        BundleError: it is no bundle, of a newer format, altered or too large; the directory is not empty; or its log
            folds to another state here than where it was made.
        CommitDiffers, LogDamaged, OtherVersion: as `verify` raises them.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise BundleUnwritable(f"{into} is not an empty directory", "Name a new one with --to")
    there = into.exists()
    try:
        return _open_into(file, into, report)
    except BaseException:
        _clear(into, there)
        raise


def _clear(into: Path, there: bool) -> None:
    """Leave it as it was before: empty, or not there."""
    if not there:
        shutil.rmtree(into, ignore_errors=True)
        return
    for path in into.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _open_into(file: Path, into: Path, report: Report) -> BundleManifest:
    try:
        with (
            open_regular(file) as opened,
            tarfile.open(fileobj=opened, mode="r:gz", tarinfo=BoundedTarHeader) as archive,
        ):
            into.mkdir(parents=True, exist_ok=True)
            _unpack(archive, file, into)
    except FileNotFoundError:
        raise NotFoundError(f"there is no bundle {file}", "Name the file that `swarmd bundle` has made") from None
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise BundleError(f"{file} cannot be unpacked: {error}", "Ask for it again") from error
    manifest = read_manifest(into / MANIFEST, file)
    report("checking digests")
    _check_members(manifest, into, file)
    report("folding the log")
    verify(into / "events")
    state, next_seq = load(into / "events")
    if (next_seq, state_digest(state)) != (manifest.next_seq, manifest.state_sha256):
        raise BundleError(
            f"the log in {file} folds to another state here ({next_seq} events) than where it was made "
            f"({manifest.next_seq} events, swarmd {manifest.version})",
            f"Replay it with swarmd {manifest.version}, and report the difference",
        )
    return manifest


def slice_of(log: Path, bytes_max: int) -> Slice:
    """The whole log where it fits; else from the oldest snapshot on that lets it fit; else from the newest on."""
    segments, snapshots = list_segments(log), list_snapshots(log)
    part = Slice(tuple(segments), tuple(snapshots))
    for index, path in enumerate(snapshots):
        if sum(map(disk_bytes, part.segments)) <= bytes_max:
            break
        until = [each for each in segments if first_seq_of(each) <= snapshot_seq(path)]
        later = [each for each in segments if first_seq_of(each) > snapshot_seq(path)]
        part = Slice((*until[-1:], *later), tuple(snapshots[index:]))
    return part


def state_digest(state: State) -> str:
    """SHA-256 of a state, lower-case hex."""
    return hashlib.sha256(encode_state(state)).hexdigest()


def refuse_secrets(root: Path, secrets: Iterable[str]) -> None:
    """Look through every file, byte by byte.

    Raises:
        BundleHoldsSecret: naming the file and not the secret.
    """
    wanted = [secret.encode() for secret in secrets]
    longest = max(map(len, wanted), default=0)
    for path in _files(root):
        if wanted and _holds(path, wanted, longest):
            raise BundleHoldsSecret(
                f"one of this node's secrets stands in {path.relative_to(root)}: no bundle was made",
                "Change that secret where it was given out. `swarmd replay` shows the log here, without sending it",
            )


def read_manifest(path: Path, file: Path) -> BundleManifest:
    """The manifest of an unpacked bundle. Raises BundleError, OtherVersion."""
    try:
        raw = read_start(path, MANIFEST_BYTES_MAX)
        version = msgspec.json.decode(raw, type=_Version).format
        if version != FORMAT:  # whose other fields may be others
            raise OtherVersion.of(f"the bundle {file}", "format", version, FORMAT)
        return msgspec.json.decode(raw, type=BundleManifest)
    except (OSError, *DECODE_ERRORS) as error:
        raise BundleError(f"{file} is no bundle: {MANIFEST} cannot be read: {error}") from error


# --- making ---


def _parent(out: Path) -> Path:
    parent = out.absolute().parent
    if not parent.is_dir():
        raise BundleUnwritable(f"there is no directory {parent}", "Make it first, or name another file with --out")
    return parent


def _copy(part: Slice, to: Path) -> None:
    """Snapshots first: a copied one never speaks of an event that the copied segments lack."""
    snapshot_directory(to).mkdir(parents=True)
    try:
        if sum(path.stat().st_size for path in (*part.snapshots, *part.segments)) > BYTES_MAX:
            raise BundleError(f"the log's newest part has more than {BYTES_MAX} bytes", "See `swarmd log compact`")
        for path in part.snapshots:
            _copy_file(path, snapshot_directory(to) / path.name)
        for path in part.segments:
            _copy_file(path, to / path.name)
    except FileNotFoundError as error:
        raise BundleError(f"{error.filename} was removed while the log was copied", "Try again") from error


def _copy_file(path: Path, to: Path) -> None:
    with open_regular(path) as source, to.open("xb") as copy:
        shutil.copyfileobj(source, copy)


def _manifest_of(root: Path, state: State, next_seq: int, first_seq: int, notes: tuple[str, ...]) -> BundleManifest:
    settings = state.settings
    return BundleManifest(
        format=FORMAT,
        made_at=time.time(),
        version=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        peer=settings.peer if settings else "",
        swarm=settings.swarm if settings else "",
        rules=RULES,
        first_seq=first_seq,
        next_seq=next_seq,
        state_sha256=state_digest(state),
        members=tuple(_member(path, root) for path in _files(root)),
        notes=notes,
    )


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def _member(path: Path, root: Path) -> BundleMember:
    return BundleMember(path.relative_to(root).as_posix(), path.stat().st_size, _sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _holds(path: Path, wanted: list[bytes], longest: int) -> bool:
    before = b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            window = before + chunk
            if any(secret in window for secret in wanted):
                return True
            before = window[-longest:]
    return False


def _pack(root: Path, out: Path) -> None:
    """Under a name of its own first: a bundle is whole or not there."""
    scratch = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with scratch.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            scratch.chmod(0o600)
            members = _files(root)
            members.sort(key=lambda path: path != root / MANIFEST)
            for path in members:
                archive.add(path, path.relative_to(root).as_posix(), recursive=False, filter=_anonymous)
        scratch.rename(out)
    except OSError as error:
        fix = remedy(error, out) or "Name another file with --out"
        raise BundleUnwritable(f"{out} cannot be written: {error.strerror}", fix) from error
    finally:
        remove_left(scratch)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names of users on this machine."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o600
    return entry


# --- opening ---


def _unpack(archive: tarfile.TarFile, file: Path, into: Path) -> None:
    """Regular files only, within bounds; tarfile's own filter refuses names that lead elsewhere."""
    size_bytes = 0
    for count, entry in enumerate(each_member(archive), 1):
        size_bytes += max(0, entry.size)
        if count > MEMBERS_MAX or size_bytes > BYTES_MAX:
            raise BundleError(f"{file} holds more than {MEMBERS_MAX} files or {BYTES_MAX} bytes: it is no bundle")
        if not entry.isreg():
            raise BundleError(f"{file} holds {entry.name!r}, which is no plain file: it is no bundle")
        archive.extract(entry, into, filter="data")


def _check_members(manifest: BundleManifest, root: Path, file: Path) -> None:
    named = {member.name: member for member in manifest.members}
    there = {path.relative_to(root).as_posix() for path in _files(root)} - {MANIFEST}
    if odd := sorted(set(named) ^ there):
        raise BundleError(f"{file} and its {MANIFEST} disagree about {odd[0]}", "Ask for it again")
    for name, member in named.items():
        if _sha256(root / name) != member.sha256:
            raise BundleError(f"{name} in {file} is not what {MANIFEST} says: it was altered", "Ask for it again")
