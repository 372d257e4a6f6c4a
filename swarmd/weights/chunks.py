"""Files in chunks: cut here, and put together again from peers' chunks, in any order and over several lives."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Protocol

from swarmd.errors import NotFoundError, RecordRejected
from swarmd.files import make_directory, sync_directory, write_all, write_durably, write_failure
from swarmd.weights.manifest import CHUNK_BYTES, CHUNKS_MAX, ChunkedFile, WeightsManifest, decode_manifest

PARTIAL = ".part"  # suffix of a file of which chunks are missing


def cut(path: Path, chunk_bytes: int = CHUNK_BYTES) -> ChunkedFile:
    """The chunks of a file; chunks of a large one are larger, so that there are not too many. Raises OSError."""
    size_bytes = path.stat().st_size
    while size_bytes > CHUNKS_MAX * chunk_bytes:
        chunk_bytes *= 2
    whole, chunks = hashlib.sha256(), bytearray()
    with path.open("rb") as file:
        while chunk := file.read(chunk_bytes):
            whole.update(chunk)
            chunks += hashlib.sha256(chunk).digest()
    return ChunkedFile(size_bytes, whole.hexdigest(), chunk_bytes, bytes(chunks))


def read_chunk(path: Path, file: ChunkedFile, index: int) -> bytes | None:
    """A chunk, if it is there as the manifest says. Raises OSError."""
    with path.open("rb") as opened:
        opened.seek(index * file.chunk_bytes)
        chunk = opened.read(file.chunk_size(index))
    return chunk if hashlib.sha256(chunk).hexdigest() == file.chunk_digest(index) else None


def is_intact(path: Path) -> bool:
    """Whether a file is what its name says, the SHA-256 of what was written; what cannot be read is not."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == path.stem
    except OSError:
        return False


class PartialFile:
    """A file that is being put together; its bytes are under a temporary name until all of them are right.

    What an earlier life has left there is looked through once, and counts chunk by chunk.

    Args:
        path: where the file is to be.
        file: what it is to be.

    Raises:
        NoSpaceLeft, LogWriteFailed: there is no room for all of it, or it cannot be written.
    """

    def __init__(self, path: Path, file: ChunkedFile) -> None:
        self.path = path
        self.file = file
        self.partial = path.with_name(path.name + PARTIAL)
        make_directory(path.parent)
        self.missing = self._reserve()

    def _reserve(self) -> set[int]:
        """Take the room that all of it needs. Returns the chunks that are not there."""
        old = self.partial.exists()
        try:
            descriptor = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self.file.size_bytes)
                os.ftruncate(descriptor, self.file.size_bytes)
            finally:
                os.close(descriptor)
            every = set(range(len(self.file)))
            return {index for index in every if not self._holds(index)} if old else every
        except OSError as error:
            raise write_failure(error, self.partial, "reservation") from error

    def _holds(self, index: int) -> bool:
        return read_chunk(self.partial, self.file, index) is not None

    def put(self, index: int, chunk: bytes) -> None:
        """Keep a chunk that a peer has sent.

        Raises:
            RecordRejected: "oversized" or "wrong-digest"; nothing is kept of it.
            NoSpaceLeft, LogWriteFailed: it could not be written.
        """
        if len(chunk) != self.file.chunk_size(index):
            raise RecordRejected("oversized", f"a chunk of {len(chunk)} bytes instead of {self.file.chunk_size(index)}")
        if hashlib.sha256(chunk).hexdigest() != self.file.chunk_digest(index):
            raise RecordRejected("wrong-digest", "the chunk is not the one that the manifest names")
        try:
            descriptor = os.open(self.partial, os.O_WRONLY)
            try:
                write_all(descriptor, chunk, index * self.file.chunk_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise write_failure(error, self.partial, "writing") from error
        self.missing.discard(index)

    def finish(self) -> Path:
        """Give the file its name, durably; all its chunks must be there.

        Raises:
            RecordRejected: "wrong-digest" when the chunks make another file than the manifest says; it is removed.
            NoSpaceLeft, LogWriteFailed: it could not be synced or renamed.
        """
        assert not self.missing, "chunks are missing"
        try:
            with self.partial.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            if found != self.file.digest:
                self.drop()
                raise RecordRejected("wrong-digest", "the chunks make another file than the manifest says")
            self.partial.replace(self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise write_failure(error, self.path, "renaming") from error
        return self.path

    def drop(self) -> None:
        """Remove what has come of it."""
        self.partial.unlink(missing_ok=True)


MANIFEST = ".manifest"
SUFFIX = ".safetensors"


class OfferCheck(Protocol):
    """Is a manifest offered, see `swarmd.dht.swarm_view.MembersOffers.names`?"""

    def __call__(self, manifest: str, /) -> bool:
        """Whether a member's offer names the manifest of this digest now. Raises nothing."""


class FetchedWeights:
    """A directory of fetched weights.

    Args:
        directory: where they lie; read once, and not for each request.
        is_offered: what nobody offers is not given on.
    """

    def __init__(self, directory: Path, is_offered: OfferCheck) -> None:
        self.directory = directory
        self._is_offered = is_offered
        self._manifests = tuple(path.stem for path in directory.glob(f"*{MANIFEST}"))  # digests of those that are here
        self._read = ""  # digest of the manifest that was read last
        self._file: ChunkedFile | None = None
        self._places: dict[str, int] = {}  # chunk's digest → its number

    def keep(self, manifest: WeightsManifest, digest: str) -> set[str]:
        """Give on what a manifest names, whose file is here, whole. Returns the names of all files that belong to it.

        Raises:
            NoSpaceLeft, LogWriteFailed: its manifest cannot be written.
        """
        whole, encoded = f"{manifest.whole.digest}{SUFFIX}", manifest.encode()
        if hashlib.sha256(encoded).hexdigest() != digest:  # somebody else's msgpack has more in it, or other lengths
            self._manifests = ()
            return {whole}
        write_durably(self.directory / f"{digest}{MANIFEST}", encoded)
        self._manifests = (digest,)
        return {whole, f"{digest}{MANIFEST}"}

    def has(self, digest: str) -> bool:
        """Whether there is a chunk or manifest of this digest, to be given on."""
        self._look()
        return self._file is not None and (digest == self._read or digest in self._places)

    def get(self, digest: str) -> bytes:
        """A chunk or manifest, checked. Raises NotFoundError, OSError."""
        file, index = self._file, self._places.get(digest)
        if digest == self._read and digest:
            content: bytes | None = (self.directory / f"{digest}{MANIFEST}").read_bytes()
        elif file is None or index is None:
            content = None
        else:
            content = read_chunk(self.directory / f"{file.digest}{SUFFIX}", file, index)
        if content is None or hashlib.sha256(content).hexdigest() != digest:
            raise NotFoundError(f"no chunk {digest[:80]!r} was fetched to {self.directory}")
        return content

    def part_of(self, digest: str) -> str:
        """The manifest that a chunk belongs to, else the digest itself."""
        return self._read if digest in self._places else digest

    def _look(self) -> None:
        found = next((manifest for manifest in self._manifests if self._is_offered(manifest)), "")
        if found != self._read:
            file = self._file = self._read_file(found)
            self._read = found if file is not None else ""
            self._places = {file.chunk_digest(index): index for index in range(len(file))} if file is not None else {}

    def _read_file(self, digest: str) -> ChunkedFile | None:
        if not digest:
            return None
        try:
            return decode_manifest((self.directory / f"{digest}{MANIFEST}").read_bytes(), digest).whole
        except (OSError, RecordRejected):
            return None
