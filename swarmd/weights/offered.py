"""The weights that a node offers, on its disk: the trainer writes them, the network worker gives them out.

<digest>.safetensors    weights as announced, the newest and the one before, of which some peers may have a part
<base>.delta            what leads from the one before to the newest, where that is smaller
<digest>.manifest       what these are made of
offer                   written last; what it names is whole
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swarmd.errors import NotFoundError, RecordRejected
from swarmd.files import sync_file, write_durably
from swarmd.logger import get_logger
from swarmd.weights.chunks import cut, is_intact, read_chunk
from swarmd.weights.manifest import (
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

OFFER = "offer"
ANNOUNCED = "announced.tmp"  # where a trainer writes the next
GIVEN_BYTES_PER_S = 2 << 20  # to one peer by an owner, which gives all of them together four times as much
DELTA_SHARE_MAX = 0.5  # of the whole; a larger delta is not worth a base

log = get_logger(__name__)


class OfferedWeights:
    """A directory of offered weights.

    Args:
        directory: made by `offer`; nothing is offered where there is none.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_for = b""
        self._places: dict[str, tuple[Path, ChunkedFile, int]] = {}  # chunk's digest → where it lies
        self._parts: dict[str, str] = {}  # chunk's digest → a manifest that names it

    @property
    def announced(self) -> Path:
        """Where the file is to be written that `offer` takes."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._directory / ANNOUNCED

    def current(self) -> WeightsOffer | None:
        """What is offered now."""
        try:
            return decode_offer((self._directory / OFFER).read_bytes())
        except (OSError, RecordRejected):
            return None

    def offer(self, architecture: str, tokenizer: str, round: int, dtype: str, accuracy: float | None) -> WeightsOffer:
        """Offer the file that was written to `announced`, and drop what is older than the one before.

        Args:
            architecture, tokenizer: digests, lower-case hex.

        Raises:
            RecordRejected: "oversized": no peer would take a file as large as that.
            OSError, LogWriteFailed: it cannot be written; what was offered before still is, and nothing else is left.
        """
        size_bytes = self.announced.stat().st_size
        if size_bytes > WEIGHTS_BYTES_MAX:
            raise RecordRejected("oversized", f"weights of {size_bytes} bytes, the limit is {WEIGHTS_BYTES_MAX}")
        with _leaving_nothing(self._directory):
            before = self._manifest(self.current())
            whole = cut(self.announced)
            path = _file(self._directory, whole.digest)
            sync_file(self.announced)
            self.announced.replace(path)
            deltas = self._delta(before, whole) if before is not None else ()
            manifest = WeightsManifest(FORMAT, architecture, tokenizer, round, dtype, whole, deltas)
            encoded = manifest.encode()
            digest = hashlib.sha256(encoded)
            write_durably(self._directory / f"{digest.hexdigest()}.manifest", encoded)
            digests = (bytes.fromhex(architecture), bytes.fromhex(tokenizer), digest.digest())
            offered = WeightsOffer(OFFER_FORMAT, round, *digests, len(encoded), accuracy)
            write_durably(self._directory / OFFER, offered.encode())
        self._prune(manifest, before, digest.hexdigest())
        return offered

    def withdraw(self) -> None:
        """Offer nothing any more, and take no room for it. Raises OSError."""
        (self._directory / OFFER).unlink(missing_ok=True)
        for path in self._directory.glob("*"):
            path.unlink(missing_ok=True)

    def _delta(self, before: WeightsManifest, whole: ChunkedFile) -> tuple[Delta, ...]:
        """The delta from what was offered before, where it is worth its bytes."""
        old, base = _file(self._directory, before.whole.digest), before.whole.digest
        if base == whole.digest or before.whole.size_bytes != whole.size_bytes or not old.is_file():
            return ()
        if not is_intact(old):  # peers have the file as it was, and the delta would make another of theirs
            log.warning("no delta of weights is offered: %s is damaged", old)
            return ()
        from swarmd.weights.delta import write_delta  # with it numpy, whose threads would not be confined

        path = self._directory / f"{base}.delta"
        write_delta(old, _file(self._directory, whole.digest), path)
        if path.stat().st_size > DELTA_SHARE_MAX * whole.size_bytes:
            path.unlink()
            return ()
        sync_file(path)
        return (Delta(base, cut(path)),)

    def _prune(self, manifest: WeightsManifest, before: WeightsManifest | None, digest: str) -> None:
        """Remove all that neither the newest manifest nor the one before names."""
        kept = {OFFER, f"{digest}.manifest", f"{manifest.whole.digest}.safetensors"}
        kept |= {f"{delta.base}.delta" for delta in manifest.deltas}
        if before is not None:
            encoded = hashlib.sha256(before.encode()).hexdigest()
            kept |= {f"{encoded}.manifest", f"{before.whole.digest}.safetensors"}
        for path in self._directory.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _manifest(self, offer: WeightsOffer | None) -> WeightsManifest | None:
        if offer is None:
            return None
        try:
            encoded = (self._directory / f"{offer.manifest.hex()}.manifest").read_bytes()
            return decode_manifest(encoded, offer.manifest.hex())
        except (OSError, RecordRejected):
            return None

    def has(self, digest: str) -> bool:
        """Whether there is a chunk or manifest of this digest; what was offered since the last call counts."""
        self._refresh()
        return digest in self._places or _is_manifest(self._directory, digest)

    def get(self, digest: str) -> bytes:
        """A chunk or manifest, checked. Raises NotFoundError, OSError."""
        self._refresh()
        place = self._places.get(digest)
        content: bytes | None
        if _is_manifest(self._directory, digest):
            content = (self._directory / f"{digest}.manifest").read_bytes()
            content = content if hashlib.sha256(content).hexdigest() == digest else None
        else:
            content = read_chunk(*place) if place is not None else None
        if content is None:
            raise NotFoundError(f"no chunk {digest[:80]!r} is offered in {self._directory}")
        return content

    def part_of(self, digest: str) -> str:
        """The manifest that a chunk belongs to, else the digest itself."""
        return self._parts.get(digest, digest)

    def _refresh(self) -> None:
        state = _read(self._directory / OFFER)
        if state != self._read_for:  # threads ask meanwhile: each sees what was here or what is, and no part of it
            places: dict[str, tuple[Path, ChunkedFile, int]] = {}
            parts: dict[str, str] = {}
            for path in sorted(self._directory.glob("*.manifest")):
                _index(path, places, parts)
            self._places, self._parts, self._read_for = places, parts, state


@contextmanager
def _leaving_nothing(directory: Path) -> Iterator[None]:
    """Where the block fails before its offer is in place, what it has put there goes: else each leaves a whole file."""
    there, offered = set(directory.iterdir()), _read(directory / OFFER)
    try:
        yield
    except Exception:
        if _read(directory / OFFER) == offered:
            for path in set(directory.iterdir()) - there:
                path.unlink(missing_ok=True)
        raise


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _index(path: Path, places: dict[str, tuple[Path, ChunkedFile, int]], parts: dict[str, str]) -> None:
    """Take note of the chunks that a manifest names and that are here."""
    try:
        manifest = decode_manifest(path.read_bytes())
    except (OSError, RecordRejected):
        return
    files = [(_file(path.parent, manifest.whole.digest), manifest.whole)]
    files += [(path.with_name(f"{delta.base}.delta"), delta.file) for delta in manifest.deltas]
    for place, file in files:
        if place.is_file():
            places |= {file.chunk_digest(index): (place, file, index) for index in range(len(file))}
            parts |= {file.chunk_digest(index): path.stem for index in range(len(file))}


def _file(directory: Path, digest: str) -> Path:
    return directory / f"{digest}.safetensors"


def _is_manifest(directory: Path, digest: str) -> bool:
    return digest.isalnum() and (directory / f"{digest}.manifest").is_file()
