"""What was fetched is given on whole and right, while somebody offers it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.errors import NotFoundError
from swarmd.weights.chunks import FetchedWeights
from swarmd.weights.manifest import WeightsManifest
from swarmd.weights.offered import OfferedWeights
from tests.weights.making import bfloat16
from tests.weights.test_offered import COUNT, manifest_of, offer


def taken(directory: Path) -> tuple[FetchedWeights, WeightsManifest, str, set[str]]:
    """Fetched weights, their manifest and its digest, and the digests that are offered."""
    shelf = OfferedWeights(directory / "owner")
    made = offer(shelf, bfloat16(COUNT, 0), 1)
    manifest, wanted = manifest_of(shelf, made), {made.manifest.hex()}
    fetched = FetchedWeights(directory / "peers", wanted.__contains__)
    fetched.directory.mkdir()
    name = f"{manifest.whole.digest}.safetensors"
    (fetched.directory / name).write_bytes((directory / "owner" / name).read_bytes())
    return fetched, manifest, made.manifest.hex(), wanted


def test_a_manifest_and_all_chunks_are_given_on_in_the_next_life_too(tmp_path: Path) -> None:
    fetched, manifest, digest, wanted = taken(tmp_path)
    assert not fetched.has(digest)
    assert fetched.keep(manifest, digest) == {f"{manifest.whole.digest}.safetensors", f"{digest}.manifest"}
    for source in (fetched, FetchedWeights(fetched.directory, wanted.__contains__)):
        assert source.has(digest) and source.get(digest) == manifest.encode()
        chunks = [manifest.whole.chunk_digest(index) for index in range(len(manifest.whole))]
        assert all(source.has(chunk) and source.part_of(chunk) == digest for chunk in chunks)
        assert sum(len(source.get(chunk)) for chunk in chunks) == manifest.whole.size_bytes
        assert source.part_of("0" * 64) == "0" * 64 and not source.has("0" * 64)


def test_what_is_damaged_or_gone_is_not_given_on(tmp_path: Path) -> None:
    fetched, manifest, digest, _ = taken(tmp_path)
    fetched.keep(manifest, digest)
    path = fetched.directory / f"{manifest.whole.digest}.safetensors"
    with path.open("r+b") as damaged:
        damaged.write(b"damaged!")
    first, second = (manifest.whole.chunk_digest(index) for index in range(2))
    assert fetched.has(first)
    with pytest.raises(NotFoundError):
        fetched.get(first)
    assert fetched.get(second)
    path.unlink()
    with pytest.raises(OSError):
        fetched.get(second)
    (fetched.directory / f"{digest}.manifest").write_bytes(b"damaged")
    assert not FetchedWeights(fetched.directory, lambda manifest: True).has(digest)


def test_what_nobody_offers_is_not_given_on(tmp_path: Path) -> None:
    fetched, manifest, digest, wanted = taken(tmp_path)
    fetched.keep(manifest, digest)
    wanted.clear()
    assert not fetched.has(digest) and not fetched.has(manifest.whole.chunk_digest(0))
    wanted.add(digest)
    assert fetched.has(digest)
