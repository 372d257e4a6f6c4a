"""The weights that a node has fetched, given on to others for as long as somebody offers them.

Beside <digest>.safetensors lies <digest of the manifest>.manifest, once all of the file is here and right. There is one
of them at most: what is fetched next takes its place.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from swarmd.errors import NotFoundError, RecordRejected
from swarmd.eventlog.files import write_durably
from swarmd.weights.chunks import read_chunk
from swarmd.weights.manifest import ChunkedFile, WeightsManifest, decode_manifest

MANIFEST = ".manifest"
SUFFIX = ".safetensors"


class OfferCheck(Protocol):
    """Is a manifest offered, see `swarmd.dht.weights.offers.MembersOffers.names`?"""

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
