"""A backup's file: a tar archive whose last member says what the others are.

`backup.json` (`BackupManifest`) comes last, with the size and SHA-256 of every other member, so an archive that was
cut off has none and is refused. Nothing in it is trusted: names, sizes and digests are checked member by member.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from swarmd.backup.tar_headers import BoundedTarHeader, each_member
from swarmd.bounds import DECODE_ERRORS
from swarmd.daemon.notes import Restored
from swarmd.dht.identity.backup import BackupMarks
from swarmd.errors import BackupError, NotFoundError, OtherVersion
from swarmd.eventlog.files import remedy
from swarmd.regular_files import read_start

FORMAT = 1
MANIFEST = "backup.json"
SEALED = "sealed.bin"
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
MEMBERS_MAX = 200_000
CHUNK_BYTES = 1024 * 1024
PUBLIC = ("swarm.toml", "layout.json", "model.json")  # files of the directory itself that hold nothing secret
PEERS = "network/peers.json"
INVITATIONS = "network/invitations.json"
CONFIG = "config.toml"
MODES = {".tar": "", ".tar.gz": "gz", ".tgz": "gz"}
AGAIN = "Take another copy of the backup"

_PART = r"[A-Za-z0-9._][A-Za-z0-9._-]{0,127}"
GZIP = b"\x1f\x8b"  # how such a file begins

_ANY = r"[^/\x00-\x1f\x7f\ud800-\udfff]"
_NAME = re.compile(rf"(events|events/snapshots|blobs/[0-9a-f]{{2}}|checkpoints/{_PART})/{_PART}")
_QUESTIONS = re.compile(rf"(?:{_ANY}{{1,128}}/){{0,8}}{_ANY}{{1,122}}\.jsonl")


class ArchiveMember(msgspec.Struct, frozen=True):
    """One file of a backup."""

    name: str  # relative to the data directory
    size_bytes: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True):
    """What a backup is.

    Attributes:
        from_seq, next_seq: first event in it, and the one that would have followed its last.
        marks: how far the node had come: it had signed nothing beyond when the backup was made.
        checkpoint: name of the one that is in it, empty for none.
        sealed: whether keys and configuration are in it, encrypted.
        for_move: the node was stopped, and its directory closed to further starts.
        missing: digests of rollouts in use that were not there.
        restored: the note of an earlier restore that no start had read yet.
    """

    format: int
    made_at: float  # POSIX seconds
    version: str
    rules: int
    layout: int
    peer: str
    swarm: str
    from_seq: int
    next_seq: int
    marks: BackupMarks
    checkpoint: str
    sealed: bool
    for_move: bool
    missing: tuple[str, ...]
    members: tuple[ArchiveMember, ...]
    restored: Restored | None = None


def mode_of(path: Path) -> str:
    """How a file of that name is compressed. Raises BackupError."""
    for suffix, mode in MODES.items():
        if path.name.endswith(suffix):
            return mode
    raise BackupError(f"{path} does not say how it is to be written", "Name a file that ends in .tar.gz or .tar")


class ArchiveWriter:
    """Writes members one after another, and the manifest at the end."""

    def __init__(self, file: BinaryIO, mode: str) -> None:
        if mode == "gz":
            self._tar = tarfile.open(fileobj=file, mode="w:gz", compresslevel=1)  # noqa: SIM115
        else:
            self._tar = tarfile.open(fileobj=file, mode="w")  # noqa: SIM115
        self.members: list[ArchiveMember] = []

    def add(self, name: str, source: BinaryIO, size_bytes: int) -> None:
        """Add so many bytes of a file. Raises BackupError when it has fewer."""
        reader = _Hashing(source, size_bytes)
        self._tar.addfile(_info(name, size_bytes), reader)
        self.members.append(ArchiveMember(name, size_bytes, reader.digest.hexdigest()))

    def add_bytes(self, name: str, content: bytes) -> None:
        self.add(name, io.BytesIO(content), len(content))

    def finish(self, manifest: BackupManifest) -> None:
        """Add the manifest and end the archive."""
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._tar.addfile(_info(MANIFEST, len(encoded)), io.BytesIO(encoded))
        self._tar.close()


def _info(name: str, size_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size_bytes, 0o600
    return info


class _Hashing:
    """The first bytes of a file, hashed as they are read."""

    def __init__(self, source: BinaryIO, size_bytes: int) -> None:
        self._source = source
        self._left = size_bytes
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = self._source.read(min(size, self._left) if size >= 0 else self._left)
        if not chunk and self._left and size:
            raise BackupError("a file became shorter while it was copied", "Make the backup again")
        self._left -= len(chunk)
        self.digest.update(chunk)
        return chunk


def read_members(path: Path) -> Iterator[tuple[str, int, BinaryIO]]:
    """Every member as (name, size in bytes, contents), in the archive's order; the contents are to be read at once.

    Raises:
        NotFoundError: there is no such file.
        BackupError: it is no archive, it is damaged, or a member is none that a backup has.
    """
    try:
        with _opened(path) as tar:
            for count, info in enumerate(each_member(tar)):
                if count > MEMBERS_MAX or not info.isreg() or not is_member(info.name):
                    raise BackupError(f"{path} holds {info.name[:200]!r}, which is no part of a backup", AGAIN)
                content = tar.extractfile(info)
                assert content is not None, "regular files have contents"
                yield info.name, info.size, content  # type: ignore[misc]
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no backup {path}", "`swarmd backup make DIR FILE` makes one") from error
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        fix = remedy(error, path) if isinstance(error, PermissionError) else AGAIN
        raise BackupError(f"{path} cannot be read as a backup: {error}", fix) from error


def _opened(path: Path) -> tarfile.TarFile:
    """With gzip or plain, as `ArchiveWriter` writes: what else there is takes more memory to unpack."""
    zipped = read_start(path, len(GZIP)) == GZIP
    return tarfile.open(path, mode="r|gz" if zipped else "r|", tarinfo=BoundedTarHeader)


def read_chunk(content: BinaryIO, size_bytes: int = CHUNK_BYTES) -> bytes:
    """The next bytes of a member, at most so many, none at its end. Raises BackupError where the archive is damaged."""
    try:
        return content.read(size_bytes)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BackupError(f"the backup is cut off or damaged: {error}", AGAIN) from error


def is_member(name: str) -> bool:
    """Whether a backup has files of that name: only below known directories, and no way out of them."""
    if name in (*PUBLIC, PEERS, INVITATIONS, CONFIG, SEALED, MANIFEST) or is_questions(name):
        return True
    return _NAME.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))


def is_questions(name: str) -> bool:
    """Whether a file of questions may have that name, relative to the data directory."""
    return _QUESTIONS.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))


def decode_manifest(raw: bytes, path: Path) -> BackupManifest:
    """Raises BackupError, OtherVersion."""
    try:
        version = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])["format"]
        if (found := msgspec.json.decode(version, type=int)) != FORMAT:
            raise OtherVersion.of(f"the backup {path}", "format", found, FORMAT)
        return msgspec.json.decode(raw, type=BackupManifest)
    except (*DECODE_ERRORS, KeyError) as error:
        raise BackupError(f"the manifest of {path} cannot be read: {error}", AGAIN) from error
