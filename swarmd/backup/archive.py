"""Archives that swarmd writes and opens: backups and support bundles.

- An archive is a tar file, gzipped unless its name ends in `.tar`. Its last member is a JSON manifest with the size and
  SHA-256 of every other one, so an archive that was cut off has no manifest and is refused.
- Nothing in an archive is trusted: it may hold plain files only, under names that its kind and `tarfile`'s data filter
  allow, within bounds, and every digest is compared. Headers are bounded too: `tarfile` reads long names whole, so a
  file of some hundred KiB could take gigabytes of memory.
- An archive is written to `.NAME.tmp` under a lock and renamed when it is whole. What a killed process left there is
  overwritten by the next one.
- An archive is unpacked to `.restoring` in a directory that is new or empty, and its files move up when everything was
  checked. As long as `.restoring` is there, no node starts in that directory.
"""

import contextlib
import errno
import hashlib
import io
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

import msgspec

from swarmd import errors, files
from swarmd.bounds import DECODE_ERRORS
from swarmd.file_kind import ARCHIVE, describe_file
from swarmd.paths import NodeDirectory

FORMAT = 1
SEALED = "sealed.bin"  # the member that only a passphrase opens; never unpacked to disk
SEALED_BYTES_MAX = 4 * 1024 * 1024
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
HEADER_BYTES_MAX = 64 * 1024
MEMBERS_MAX = 200_000
ENDINGS = (".tar.gz", ".tgz", ".tar")
AGAIN = "Take another copy of it"
PART = r"[A-Za-z0-9._][A-Za-z0-9._-]{0,127}"  # one component of a member's name

_GZIP = b"\x1f\x8b"  # magic number of gzip
_FOREIGN = "lost+found"  # the one directory that an empty file system may contain
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError, RecursionError)

M = TypeVar("M", bound="Manifest")


class ArchiveMember(msgspec.Struct, frozen=True):
    name: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of an archive. Each kind of archive has a subclass that says which members it allows."""

    FILE: ClassVar[str]
    NOUN: ClassVar[str]
    MAKE: ClassVar[str]  # the command that makes such an archive
    NAMES: ClassVar[re.Pattern[str]]  # what a member's name may look like
    BYTES_MAX: ClassVar[int] = 1 << 40  # all members together

    format: int
    members: tuple[ArchiveMember, ...]

    @classmethod
    def allows(cls, name: str) -> bool:
        """Whether such an archive may have a member of that name, which cannot lead out of the directory."""
        return cls.NAMES.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))


# --- writing ---


class ArchiveWriter:
    """Writes members one after another, and the manifest at the end."""

    def __init__(self, file: BinaryIO, scratch: Path, out: Path) -> None:
        self._file, self._scratch, self._out = file, scratch, out
        if out.name.endswith(".tar"):
            self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115
        else:
            self._tar = tarfile.open(fileobj=file, mode="w:gz", format=tarfile.GNU_FORMAT, compresslevel=1)  # noqa: SIM115
        self.members: list[ArchiveMember] = []

    def add(self, name: str, source: BinaryIO, size_bytes: int) -> None:
        """Add the first `size_bytes` of a file. Raises OSError if it has fewer."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = size_bytes, 0o600
        hashed = _HashingReader(source)
        self._tar.addfile(info, hashed)
        self.members.append(ArchiveMember(name, size_bytes, hashed.digest.hexdigest()))

    def add_file(self, name: str, path: Path) -> None:
        with files.open_regular(path) as file:
            self.add(name, file, os.fstat(file.fileno()).st_size)

    def add_bytes(self, name: str, content: bytes) -> None:
        self.add(name, io.BytesIO(content), len(content))

    def finish(self, manifest: Manifest, naming: contextlib.AbstractContextManager[None] | None = None) -> None:
        """Add the manifest, sync, and rename the archive into place inside the context manager `naming`."""
        self.add_bytes(manifest.FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        with naming or contextlib.nullcontext():
            if self._out.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._scratch.rename(self._out)
        files.sync_directory(self._out.parent)


class _HashingReader:
    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = self._source.read(size)
        self.digest.update(chunk)
        return chunk


def check_target(out: Path) -> None:
    """Raise ArchiveUnwritable if an archive cannot be made under this name."""
    if not out.name.endswith(ENDINGS):
        raise errors.ArchiveUnwritable(
            f"{out} does not have the ending of an archive", "Name a file that ends in .tar.gz or .tar"
        )
    if out.exists():
        raise errors.ArchiveUnwritable(f"{out} exists already", "Name a new file: an archive is never overwritten")
    if not out.absolute().parent.is_dir():
        raise errors.ArchiveUnwritable(
            f"there is no directory {out.absolute().parent}", "Make it first, or name another file"
        )


@contextlib.contextmanager
def write_archive(out: Path) -> Iterator[ArchiveWriter]:
    """Write a new archive, which `finish` renames to `out`. Raises ArchiveUnwritable if `out` exists or cannot be
    written, its directory is missing, or its ending is not an archive's."""
    check_target(out)
    scratch = out.with_name(f".{out.name}.tmp")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            files.lock_exclusively(descriptor, out)
            if not os.path.samestat(os.fstat(descriptor), scratch.stat()):  # just renamed into place
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            file.truncate()
            try:
                yield ArchiveWriter(file, scratch, out)
            except BaseException:
                files.remove_leftover(scratch)
                raise
    except OSError as error:
        reason = error if error.filename or not error.strerror else error.strerror
        raise errors.ArchiveUnwritable(
            f"{out} cannot be written: {reason}",
            f"See that there is room in {out.absolute().parent} and that this user may write there, or name another",
        ) from error


# --- reading ---


class _ForeignArchive(tarfile.ReadError):
    """A tar that swarmd did not write."""


class _PlainHeader(tarfile.TarInfo):
    """Accepts headers of plain files and of long names only: others can make `tarfile` read without a bound."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        """Override the hook that `tarfile` calls for every header."""
        long_name = self.type == tarfile.GNUTYPE_LONGNAME and self.size <= HEADER_BYTES_MAX
        if self.size < 0 or not (long_name or self.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
            raise _ForeignArchive("it has more than plain files, such as a directory, a link or an extended header")
        return super()._proc_member(archive)  # type: ignore[misc]


def read_archive(path: Path, kind: type[M], into: Path | None = None) -> tuple[M, bytes]:
    """Read a whole archive and compare every member with the manifest. Returns the manifest and the sealed member.

    It is unpacked to `into`, an empty directory; None only checks it. Raises NotFoundError; ArchiveError if it is
    damaged, incomplete or of another kind; OtherVersion; OSError if it cannot be unpacked there.
    """
    try:
        opened = files.open_regular(path)
    except FileNotFoundError as error:
        raise errors.NotFoundError(f"there is no {kind.NOUN} {path}", f"`{kind.MAKE}` makes one") from error
    except OSError as error:
        if path.is_dir():
            fix = f"Name the file that `{kind.MAKE}` wrote, before the directory that it goes to"
            raise errors.ArchiveError(f"{path} is a directory, not a {kind.NOUN}", fix) from error
        fix = files.advise_on_path_error(error, path) if isinstance(error, PermissionError) else AGAIN
        raise errors.ArchiveError(f"{path} cannot be read as a {kind.NOUN}: {error}", fix) from error
    fix = f"Name the file that `{kind.MAKE}` wrote"
    again = f"{AGAIN}, or name the file that `{kind.MAKE}` wrote"
    found: dict[str, ArchiveMember] = {}
    manifest, sealed, size_bytes = None, b"", 0
    with opened as file:
        try:
            # other compressions than gzip take more memory to unpack
            mode: Any = "r|gz" if file.read(len(_GZIP)) == _GZIP else "r|"
            file.seek(0)
            with tarfile.open(fileobj=file, mode=mode, tarinfo=_PlainHeader) as tar:
                for info in tar:
                    size_bytes += info.size
                    if manifest is not None or info.name in found:
                        raise errors.ArchiveError(f"{path} has {info.name!r} after its end, or twice", AGAIN)
                    if not info.isreg() or not (info.name == kind.FILE or kind.allows(info.name)):
                        raise errors.ArchiveError(
                            f"{path} holds {info.name[:200]!r}: it is not a {kind.NOUN}",
                            describe_file(path)[1] or AGAIN,
                        )
                    if len(found) >= MEMBERS_MAX or size_bytes > kind.BYTES_MAX:
                        raise errors.ArchiveError(f"{path} holds more than a {kind.NOUN} may", AGAIN)
                    if info.name == kind.FILE:
                        manifest = _decode_manifest(_read_member(tar, info, MANIFEST_BYTES_MAX), kind, path)
                    elif info.name == SEALED:
                        sealed = _read_member(tar, info, SEALED_BYTES_MAX)
                        found[SEALED] = ArchiveMember(SEALED, info.size, hashlib.sha256(sealed).hexdigest())
                    else:
                        found[info.name] = ArchiveMember(info.name, info.size, _digest_member(tar, info, into))
        except _DAMAGED as error:
            what, use = describe_file(path)
            if isinstance(error, _ForeignArchive):
                raise errors.ArchiveError(f"{path} is an archive, but not a {kind.NOUN}: {error}", fix) from error
            if what != ARCHIVE:
                raise errors.ArchiveError(f"{path} is {what}, not a {kind.NOUN}", use or fix) from error
            raise errors.ArchiveError(f"{path} cannot be read as a {kind.NOUN}: {error}", again) from error
    if manifest is None:
        raise errors.ArchiveError(f"{path} has no {kind.FILE}: it was cut off, or is not a {kind.NOUN}", again)
    named = {member.name: member for member in manifest.members}
    if wrong := sorted(name for name in named.keys() | found.keys() if named.get(name) != found.get(name)):
        raise errors.ArchiveError(f"{path} is damaged: {wrong[0]} is not what {kind.FILE} says", AGAIN)
    return manifest, sealed


def _read_member(tar: tarfile.TarFile, info: tarfile.TarInfo, bytes_max: int) -> bytes:
    content = tar.extractfile(info)
    if content is None or info.size > bytes_max:
        raise tarfile.ReadError(f"{info.name} has {info.size} bytes")
    return content.read()


def _digest_member(tar: tarfile.TarFile, info: tarfile.TarInfo, into: Path | None) -> str:
    """The SHA-256 of a member, which is also unpacked below `into` if that is given."""
    if into is None:
        content = tar.extractfile(info)
        assert content is not None, "plain files have contents"
        return hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
    tar.extract(info, into, set_attrs=False, filter="data")
    return files.hash_file(into / info.name)


def _decode_manifest(raw: bytes, kind: type[M], path: Path) -> M:
    try:
        version = msgspec.json.decode(msgspec.json.decode(raw, type=dict[str, msgspec.Raw])["format"], type=int)
        if version != FORMAT:  # checked first: in another format, other fields may differ as well
            raise errors.OtherVersion.from_numbers(f"the {kind.NOUN} {path}", "format", version, FORMAT)
        return msgspec.json.decode(raw, type=kind)
    except (*DECODE_ERRORS, KeyError) as error:
        raise errors.ArchiveError(f"{kind.FILE} of {path} cannot be read: {error}", AGAIN) from error


# --- unpacking ---


@contextlib.contextmanager
def unpack_atomically(root: Path) -> Iterator[Path]:
    """Yield a directory to fill; at the end its entries move into `root`. If the block raises, `root` is unchanged.

    `root` may be a mount point, which cannot be renamed over, so entries move up one by one. Raises ArchiveUnwritable
    if `root` is not empty or cannot be written, NoSpaceLeft, and PathUnusable while another command unpacks there.
    """
    there = root.exists()
    making, moved = NodeDirectory(root).restoring, []
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.hold_directory_lock(root):
            _refuse_nonempty(root, making)
            try:
                if making.exists():  # left by a command that was killed while it unpacked here
                    shutil.rmtree(making)
                making.mkdir(mode=0o700)
                files.sync_directory(root)
                if not there:
                    files.sync_directory(root.parent)
                yield making
                files.sync_tree(making)
                for path in sorted(making.iterdir()):
                    moved.append(path.rename(root / path.name))
                files.sync_directory(root)
                making.rmdir()
                files.sync_directory(root)
            except BaseException:
                _remove_unpacked(making, moved)
                if not there:
                    root.rmdir()
                raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise errors.NoSpaceLeft(f"no space left to unpack to {root}", "Free some space there") from error
        fix = "See that this user may write there, or name another"
        raise errors.ArchiveUnwritable(f"{root} cannot be made: {error}", fix) from error


def _refuse_nonempty(root: Path, making: Path) -> None:
    if all(path == making or path.name == _FOREIGN for path in root.iterdir()):
        return
    fix = "Name a new directory"
    if making.exists():
        fix = "An earlier restore was cut off there at its very end: empty the directory, and restore again"
    raise errors.ArchiveUnwritable(f"{root} is not empty, and nothing is overwritten", fix)


def _remove_unpacked(making: Path, moved: list[Path]) -> None:
    """Remove unpacked files, `.restoring` last: as long as it exists, no node starts on a partly removed directory."""
    for path in moved:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    if making.exists():
        shutil.rmtree(making)
