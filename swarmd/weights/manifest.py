"""The manifest of offered weights: one file in chunks, and deltas to it from earlier files.

The manifest is msgpack and identified by its SHA-256, which is in a signed record. Nothing in it is trusted until a
chunk, file or model was checked against it. The form of its digests is checked, since they become file names.
"""

import hashlib
import math
import re
from typing import Annotated

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import RecordRejected

FORMAT = 1
MANIFEST_BYTES_MAX = 1024 * 1024
CHUNK_BYTES = 1024 * 1024  # size of chunks that this node makes
CHUNK_BYTES_MIN = 4 * 1024
CHUNK_BYTES_MAX = 4 * 1024 * 1024
CHUNKS_MAX = 8192  # chunks of one file
WEIGHTS_BYTES_MAX = CHUNKS_MAX * CHUNK_BYTES_MAX  # 32 GiB
DELTAS_MAX = 4
DIGEST_BYTES = 32
ROUND_MAX = 2**31 - 1

_DIGEST = re.compile(r"[0-9a-f]{64}")

Round = Annotated[int, msgspec.Meta(ge=0, le=ROUND_MAX)]
Size = Annotated[int, msgspec.Meta(ge=1, le=WEIGHTS_BYTES_MAX)]
ChunkSize = Annotated[int, msgspec.Meta(ge=CHUNK_BYTES_MIN, le=CHUNK_BYTES_MAX)]


class ChunkedFile(msgspec.Struct, frozen=True):
    """A file and the digests of its chunks; all have `chunk_bytes` but the last."""

    size_bytes: Size
    digest: str  # SHA-256 of the whole file, lower-case hex
    chunk_bytes: ChunkSize
    chunks: bytes  # SHA-256 of each chunk, concatenated

    def __len__(self) -> int:
        return -(-self.size_bytes // self.chunk_bytes)

    def chunk_digest(self, index: int) -> str:
        return self.chunks[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES].hex()

    def chunk_size(self, index: int) -> int:
        """Size of a chunk in bytes."""
        return min(self.chunk_bytes, self.size_bytes - index * self.chunk_bytes)


class Delta(msgspec.Struct, frozen=True):
    """A file that turns an earlier file into the current one, see `swarmd.weights.tensors`."""

    base: str  # SHA-256 of the earlier file
    file: ChunkedFile


class WeightsManifest(msgspec.Struct, frozen=True):
    """A checkpoint's weights as offered."""

    format: int
    architecture: str  # digest of configuration, tensor names and shapes
    tokenizer: str  # digest of the tokenizer
    round: Round  # last round they were trained in
    dtype: str  # of floating-point tensors
    whole: ChunkedFile
    deltas: tuple[Delta, ...] = ()

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def delta_from(self, base: str) -> Delta | None:
        """The delta from the file with this digest, if there is one."""
        return next((delta for delta in self.deltas if delta.base == base), None)


def decode_manifest(encoded: bytes, digest: str = "") -> WeightsManifest:
    """Decode an untrusted manifest. `digest`: required SHA-256, lower-case hex; empty: any. Raises RecordRejected:
    "oversized", "wrong-digest" or "malformed"."""
    if len(encoded) > MANIFEST_BYTES_MAX:
        raise RecordRejected("oversized", f"a manifest of {len(encoded)} bytes, the limit is {MANIFEST_BYTES_MAX}")
    if digest and hashlib.sha256(encoded).hexdigest() != digest:
        raise RecordRejected("wrong-digest", "the manifest is not the one that was announced")
    try:
        manifest = msgspec.msgpack.decode(encoded, type=WeightsManifest)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"not a manifest of weights: {error}") from error
    _check(manifest)
    return manifest


def _check(manifest: WeightsManifest) -> None:
    """Check what the field types cannot express. Raises RecordRejected."""
    if manifest.format != FORMAT:
        raise RecordRejected("malformed", f"a manifest of format {manifest.format}, this version reads {FORMAT}")
    if len(manifest.deltas) > DELTAS_MAX:
        raise RecordRejected("oversized", f"{len(manifest.deltas)} deltas, the limit is {DELTAS_MAX}")
    digests = (manifest.architecture, manifest.tokenizer, *(delta.base for delta in manifest.deltas))
    if not all(map(_DIGEST.fullmatch, digests)) or manifest.dtype not in ("BF16", "F16", "F32"):
        raise RecordRejected("malformed", "a digest is not a lower-case sha256, or the dtype is unknown")
    if any(delta.file.size_bytes > manifest.whole.size_bytes for delta in manifest.deltas):
        raise RecordRejected("oversized", "a delta is larger than the file that it makes")
    for file in (manifest.whole, *(delta.file for delta in manifest.deltas)):
        if not _DIGEST.fullmatch(file.digest) or len(file) > CHUNKS_MAX or len(file.chunks) != len(file) * DIGEST_BYTES:
            raise RecordRejected("malformed", f"a file of {file.size_bytes} bytes has other chunks than it states")


OFFER_FORMAT = 1
OFFER_BYTES_MAX = 160


class WeightsOffer(msgspec.Struct, frozen=True, array_like=True):
    """A peer's claims about one checkpoint's weights; the manifest has the rest."""

    format: int
    round: Round  # last round it was trained in
    architecture: bytes  # SHA-256, see `digest_architecture`
    tokenizer: bytes  # SHA-256
    manifest: bytes  # SHA-256 of the encoded manifest
    manifest_bytes: int
    accuracy: float | None = None  # on held-out questions, measured by the owner

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def decode_offer(packed: bytes) -> WeightsOffer:
    """Decode an untrusted offer from a record. Raises RecordRejected: "oversized", "non-finite" or "malformed"."""
    if len(packed) > OFFER_BYTES_MAX:
        raise RecordRejected("oversized", f"an offer of {len(packed)} bytes, the limit is {OFFER_BYTES_MAX}")
    try:
        offer = msgspec.msgpack.decode(packed, type=WeightsOffer)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"not an offer of weights: {error}") from error
    digests = (offer.architecture, offer.tokenizer, offer.manifest)
    if offer.format != OFFER_FORMAT or any(len(digest) != DIGEST_BYTES for digest in digests):
        raise RecordRejected("malformed", f"an offer of format {offer.format}, or with digests of another length")
    if not 0 < offer.manifest_bytes <= MANIFEST_BYTES_MAX:
        raise RecordRejected("oversized", f"a manifest of {offer.manifest_bytes} bytes")
    if offer.accuracy is not None and not math.isfinite(offer.accuracy):
        raise RecordRejected("non-finite", "the accuracy is not a number")
    if offer.accuracy is not None and not 0.0 <= offer.accuracy <= 1.0:
        raise RecordRejected("malformed", f"an accuracy of {offer.accuracy:g}")
    return offer
