"""Weights on a node's disk: its own, which it offers, and peers', which it fetches in chunks and forwards.

The trainer writes offered weights, and the network worker serves them:

    <digest>.safetensors    the newest weights, and the previous ones, which peers may still be fetching
    <base>.delta            from the previous to the newest, if that is smaller
    <digest>.manifest       describes these files
    offer                   written last: the files that it names are complete
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from swarmd.errors import NotFoundError, RecordRejected
from swarmd.files import (
    hash_file,
    make_directory,
    make_write_error,
    open_descriptor,
    sync_directory,
    sync_file,
    write_all,
    write_durably,
)
from swarmd.logger import get_logger
from swarmd.weights.manifest import (
    CHUNK_BYTES,
    CHUNKS_MAX,
    FORMAT,
    OFFER_FORMAT,
    WEIGHTS_BYTES_MAX,
    ChunkedFile,
    Delta,
    WeightsManifest,
    WeightsOffer,
    decode_manifest,
    decode_offer,
)

PARTIAL = ".part"  # suffix of a file with missing chunks
log = get_logger(__name__)


def chunk_file(path: Path, chunk_bytes: int = CHUNK_BYTES) -> ChunkedFile:
    """Hash a file in chunks; a large file gets larger chunks, so that their number stays bounded. Raises OSError."""
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
    """Read a chunk; None if it does not match its digest. Raises OSError."""
    with path.open("rb") as weights:
        weights.seek(index * file.chunk_bytes)
        chunk = weights.read(file.chunk_size(index))
    return chunk if hashlib.sha256(chunk).hexdigest() == file.chunk_digest(index) else None


def is_intact(path: Path) -> bool:
    """Whether a file has the SHA-256 that it is named after; False if it cannot be read."""
    try:
        return hash_file(path) == path.stem
    except OSError:
        return False


class PartialFile:
    """A file assembled from chunks, under a temporary name until complete.

    Valid chunks left by an earlier process are reused. Raises NoSpaceLeft, LogWriteFailed if there is no room for the
    whole file, or it cannot be written.
    """

    def __init__(self, path: Path, file: ChunkedFile) -> None:
        self.path = path
        self.file = file
        self.partial = path.with_name(path.name + PARTIAL)
        make_directory(path.parent)
        self.missing = self._allocate_file()

    def _allocate_file(self) -> set[int]:
        """Allocate the whole file. Returns the indices of missing chunks."""
        old = self.partial.exists()
        try:
            with open_descriptor(self.partial, os.O_RDWR | os.O_CREAT) as descriptor:
                os.posix_fallocate(descriptor, 0, self.file.size_bytes)
                os.ftruncate(descriptor, self.file.size_bytes)
            every = set(range(len(self.file)))
            return {each for each in every if read_chunk(self.partial, self.file, each) is None} if old else every
        except OSError as error:
            raise make_write_error(error, self.partial, "reservation") from error

    def put(self, index: int, chunk: bytes) -> None:
        """Write a peer's chunk. Raises RecordRejected, with nothing written: "oversized" or "wrong-digest";
        NoSpaceLeft, LogWriteFailed."""
        if len(chunk) != self.file.chunk_size(index):
            raise RecordRejected("oversized", f"a chunk of {len(chunk)} bytes instead of {self.file.chunk_size(index)}")
        if hashlib.sha256(chunk).hexdigest() != self.file.chunk_digest(index):
            raise RecordRejected("wrong-digest", "the chunk is not the one that the manifest names")
        try:
            with open_descriptor(self.partial, os.O_WRONLY) as descriptor:
                write_all(descriptor, chunk, index * self.file.chunk_bytes)
        except OSError as error:
            raise make_write_error(error, self.partial, "writing") from error
        self.missing.discard(index)

    def finish(self) -> Path:
        """Verify the complete file and rename it durably. Raises RecordRejected: "wrong-digest": the chunks do not add
        up to the manifest's file, which is removed; NoSpaceLeft, LogWriteFailed."""
        assert not self.missing, "chunks are missing"
        try:
            found = hash_file(self.partial)
            sync_file(self.partial)
            if found != self.file.digest:
                self.drop()
                raise RecordRejected("wrong-digest", "the chunks make another file than the manifest says")
            self.partial.replace(self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise make_write_error(error, self.path, "renaming") from error
        return self.path

    def drop(self) -> None:
        """Remove the unfinished file."""
        self.partial.unlink(missing_ok=True)


MANIFEST = ".manifest"
SUFFIX = ".safetensors"
DELTA = ".delta"


class ChunkLocation(NamedTuple):
    """The file and chunk, or the manifest, that a digest refers to."""

    manifest: str  # digest of the manifest that names the chunk, or of the manifest itself
    path: Path
    file: ChunkedFile | None = None  # None: the manifest itself
    number: int = 0  # index of the chunk in its file


class ChunkDirectory:
    """A directory of weights and manifests, from which chunks are served by SHA-256."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._places: dict[str, ChunkLocation] = {}  # replaced as a whole, since threads read it

    def get(self, digest: str) -> bytes:
        """Read and check a chunk or manifest. Raises NotFoundError, OSError."""
        place, content = self._places.get(digest), None
        if place is not None:
            path, file = place.path, place.file
            content = path.read_bytes() if file is None else read_chunk(path, file, place.number)
        if content is None or hashlib.sha256(content).hexdigest() != digest:
            raise NotFoundError(f"no chunk {digest[:80]!r} is given out of {self.directory}")
        return content

    def file_digest_of(self, digest: str) -> str:
        """Digest of the manifest to which a chunk belongs, or else the digest itself."""
        place = self._places.get(digest)
        return digest if place is None else place.manifest

    def _index_manifests(self, digests: Iterable[str]) -> None:
        """Serve these manifests, and the chunks of their files that exist here."""
        places: dict[str, ChunkLocation] = {}
        for digest in digests:
            manifest = self._read_manifest(digest)
            if manifest is not None:
                places[digest] = ChunkLocation(digest, self._file_path(digest, MANIFEST))
                files = [(self._file_path(manifest.whole.digest, SUFFIX), manifest.whole)]
                files += [(self._file_path(delta.base, DELTA), delta.file) for delta in manifest.deltas]
                for path, file in files:
                    if path.is_file():
                        places |= {file.chunk_digest(n): ChunkLocation(digest, path, file, n) for n in range(len(file))}
        self._places = places

    def _read_manifest(self, digest: str) -> WeightsManifest | None:
        """The manifest with this digest, if it exists here and is intact."""
        try:
            return decode_manifest(self._file_path(digest, MANIFEST).read_bytes(), digest)
        except (OSError, RecordRejected):
            return None

    def _file_path(self, digest: str, suffix: str) -> Path:
        return self.directory / f"{digest}{suffix}"


OfferCheck = Callable[[str], bool]  # whether any member currently offers the manifest with this digest


class FetchedWeights(ChunkDirectory):
    """Weights fetched from peers, forwarded as long as any member offers them. `directory`: listed once, not for each
    request."""

    def __init__(self, directory: Path, is_offered: OfferCheck) -> None:
        super().__init__(directory)
        self._is_offered = is_offered
        self._manifests = tuple(path.stem for path in directory.glob(f"*{MANIFEST}"))  # digests of the manifests here
        self._served = list[str]()  # digests of manifests whose files are forwarded now

    def forward_file(self, manifest: WeightsManifest, digest: str, beside: bool = False) -> set[str]:
        """Start to forward a manifest's complete file. Returns the names of all its files. `beside`: keep forwarding
        earlier ones. Raises NoSpaceLeft, LogWriteFailed if the manifest cannot be written."""
        whole, encoded = f"{manifest.whole.digest}{SUFFIX}", manifest.encode()
        before = self._manifests if beside else ()
        if hashlib.sha256(encoded).hexdigest() != digest:  # encoded by other software; such a manifest is not forwarded
            self._manifests = before
            return {whole}
        write_durably(self._file_path(digest, MANIFEST), encoded)
        self._manifests = (*before, digest)
        return {whole, f"{digest}{MANIFEST}"}

    def has(self, digest: str) -> bool:
        """Whether a chunk or manifest with this digest can be forwarded."""
        found = [manifest for manifest in self._manifests if self._is_offered(manifest)]
        if found != self._served:
            self._index_manifests(found)
            self._served = found if self._places else []
        return digest in self._places


OFFER = "offer"
ANNOUNCED = "announced.tmp"  # where a trainer writes the next weights
SERVED_BYTES_PER_S = 2 << 20  # from an owner to one peer; four times that to all together
DELTA_SHARE_MAX = 0.5  # size relative to the whole file; larger deltas are not offered


class OfferedWeights(ChunkDirectory):
    """This node's offered weights. `directory`: created by `offer`; without it nothing is offered."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._read_for = b""  # content of `offer` when the index was built

    @property
    def announced_path(self) -> Path:
        """Where to write the file before calling `offer`."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.directory / ANNOUNCED

    def current(self) -> WeightsOffer | None:
        try:
            return decode_offer((self.directory / OFFER).read_bytes())
        except (OSError, RecordRejected):
            return None

    def offer(self, architecture: str, tokenizer: str, round: int, dtype: str, accuracy: float | None) -> WeightsOffer:
        """Offer the file at `announced_path`, and remove weights older than the previous offer.

        Args:
            architecture, tokenizer: digests, lower-case hex.

        Raises:
            RecordRejected: "oversized": the file is too large for peers to accept.
            OSError, LogWriteFailed: it cannot be written; the previous offer stays, and nothing else is left.
        """
        size_bytes = self.announced_path.stat().st_size
        if size_bytes > WEIGHTS_BYTES_MAX:
            raise RecordRejected("oversized", f"weights of {size_bytes} bytes, the limit is {WEIGHTS_BYTES_MAX}")
        with _remove_files_on_failure(self.directory):
            current = self.current()
            before = None if current is None else self._read_manifest(current.manifest.hex())
            whole = chunk_file(self.announced_path)
            sync_file(self.announced_path)
            self.announced_path.replace(self._file_path(whole.digest, SUFFIX))
            deltas = self._make_delta(before, whole) if before is not None else ()
            manifest = WeightsManifest(FORMAT, architecture, tokenizer, round, dtype, whole, deltas)
            encoded = manifest.encode()
            digest = hashlib.sha256(encoded)
            write_durably(self._file_path(digest.hexdigest(), MANIFEST), encoded)
            digests = (bytes.fromhex(architecture), bytes.fromhex(tokenizer), digest.digest())
            offered = WeightsOffer(OFFER_FORMAT, round, *digests, len(encoded), accuracy)
            write_durably(self.directory / OFFER, offered.encode())
        self._remove_old_files(manifest, before, digest.hexdigest())
        return offered

    def withdraw(self) -> None:
        """Withdraw the offer and remove its files. Raises OSError."""
        (self.directory / OFFER).unlink(missing_ok=True)
        for path in self.directory.glob("*"):
            path.unlink(missing_ok=True)

    def _make_delta(self, before: WeightsManifest, whole: ChunkedFile) -> tuple[Delta, ...]:
        """The delta from the previous offer, if it is small enough."""
        old, base = self._file_path(before.whole.digest, SUFFIX), before.whole.digest
        if base == whole.digest or before.whole.size_bytes != whole.size_bytes or not old.is_file():
            return ()
        if not is_intact(old):  # from a damaged base, the delta would not work for peers' intact copy
            log.warning("no delta of weights is offered: %s is damaged", old)
            return ()
        from swarmd.weights.tensors import (
            write_delta,
        )  # numpy starts threads, which would keep the network worker from confining itself

        path = self._file_path(base, DELTA)
        write_delta(old, self._file_path(whole.digest, SUFFIX), path)
        if path.stat().st_size > DELTA_SHARE_MAX * whole.size_bytes:
            path.unlink()
            return ()
        sync_file(path)
        return (Delta(base, chunk_file(path)),)

    def _remove_old_files(self, manifest: WeightsManifest, before: WeightsManifest | None, digest: str) -> None:
        """Remove files that belong neither to the newest manifest nor the previous one."""
        kept = {OFFER, f"{digest}{MANIFEST}", f"{manifest.whole.digest}{SUFFIX}"}
        kept |= {f"{delta.base}{DELTA}" for delta in manifest.deltas}
        if before is not None:
            encoded = hashlib.sha256(before.encode()).hexdigest()
            kept |= {f"{encoded}{MANIFEST}", f"{before.whole.digest}{SUFFIX}"}
        for path in self.directory.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def has(self, digest: str) -> bool:
        """Whether a chunk or manifest with this digest is offered now."""
        self._refresh_index()
        return digest in self._places

    def get(self, digest: str) -> bytes:
        """Read and check a chunk or manifest. Raises NotFoundError, OSError."""
        self._refresh_index()
        return super().get(digest)

    def _refresh_index(self) -> None:
        state = _read_or_empty(self.directory / OFFER)
        if state != self._read_for:
            self._index_manifests(sorted(path.stem for path in self.directory.glob(f"*{MANIFEST}")))
            self._read_for = state


@contextmanager
def _remove_files_on_failure(directory: Path) -> Iterator[None]:
    """Remove the block's files if it fails before its offer is in place; otherwise each failure would leave a file."""
    there, offered = set(directory.iterdir()), _read_or_empty(directory / OFFER)
    try:
        yield
    except Exception:
        if _read_or_empty(directory / OFFER) == offered:
            for path in set(directory.iterdir()) - there:
                path.unlink(missing_ok=True)
        raise


def _read_or_empty(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
