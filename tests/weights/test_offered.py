"""Weights that are offered, fetched in chunks, and forwarded."""

import errno
import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from swarmd.errors import NoSpaceLeft, NotFoundError, RecordRejected
from swarmd.weights import offered as subject
from swarmd.weights.manifest import CHUNK_BYTES_MIN, ChunkedFile, WeightsManifest, WeightsOffer, decode_manifest
from swarmd.weights.offered import FetchedWeights, OfferedWeights, PartialFile, chunk_file, read_chunk
from swarmd.weights.tensors import apply_delta
from tests.durability import recording
from tests.weights.making import bfloat16, write_safetensors
from tests.weights.test_tensors import moved

SIZE = 3 * CHUNK_BYTES_MIN + 17


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def file(source: Path) -> ChunkedFile:
    return chunk_file(source, CHUNK_BYTES_MIN)


def chunk(source: Path, file: ChunkedFile, index: int) -> bytes:
    found = read_chunk(source, file, index)
    assert found is not None
    return found


def test_chunks_in_any_order_make_the_file(tmp_path: Path, source: Path, file: ChunkedFile) -> None:
    partial = PartialFile(tmp_path / "there" / "copy", file)
    for index in (3, 0, 2, 1):
        partial.put(index, chunk(source, file, index))
    assert partial.finish().read_bytes() == source.read_bytes()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["copy"]


def test_the_next_life_goes_on_with_the_chunks_that_are_right(tmp_path: Path, source: Path, file: ChunkedFile) -> None:
    first = PartialFile(tmp_path / "copy", file)
    for index in (0, 1, 3):
        first.put(index, chunk(source, file, index))
    with (tmp_path / f"copy{subject.PARTIAL}").open("r+b") as torn:
        torn.seek(CHUNK_BYTES_MIN + 5)
        torn.write(b"torn by a power cut")
    assert PartialFile(tmp_path / "copy", file).missing == {1, 2}


@pytest.mark.parametrize(
    ("index", "content", "reason"),
    [
        (0, bytes(CHUNK_BYTES_MIN), "wrong-digest"),
        (0, b"truncated", "oversized"),
        (3, bytes(CHUNK_BYTES_MIN), "oversized"),
    ],
)
def test_a_wrong_chunk_is_not_kept(tmp_path: Path, file: ChunkedFile, index: int, content: bytes, reason: str) -> None:
    partial = PartialFile(tmp_path / "copy", file)
    with pytest.raises(RecordRejected) as refused:
        partial.put(index, content)
    assert refused.value.reason == reason and index in partial.missing
    assert not any((tmp_path / f"copy{subject.PARTIAL}").read_bytes())


def test_right_chunks_of_a_file_with_another_digest_leave_nothing(
    tmp_path: Path, source: Path, file: ChunkedFile
) -> None:
    lying = msgspec.structs.replace(file, digest=hashlib.sha256(b"another").hexdigest())
    partial = PartialFile(tmp_path / "copy", lying)
    for index in range(4):
        partial.put(index, chunk(source, file, index))
    with pytest.raises(RecordRejected) as refused:
        partial.finish()
    assert refused.value.reason == "wrong-digest" and [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_full_disk_is_found_before_a_chunk_is_fetched(
    tmp_path: Path, file: ChunkedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSpaceLeft):
        PartialFile(tmp_path / "copy", file)


def test_a_power_cut_takes_nothing_of_a_finished_file(tmp_path: Path, source: Path, file: ChunkedFile) -> None:
    partial = PartialFile(tmp_path / "copy", file)
    for index in range(4):
        partial.put(index, chunk(source, file, index))
    with recording() as disk:
        partial.finish()
    assert disk.hazards == [] and tmp_path in disk.synced


def test_a_chunk_that_has_changed_on_the_disk_is_not_given(source: Path, file: ChunkedFile) -> None:
    with source.open("r+b") as damaged:
        damaged.write(b"x" * 8)
    assert read_chunk(source, file, 0) is None and read_chunk(source, file, 1) is not None


COUNT = 700_000


def offer(shelf: OfferedWeights, values: bytes, round: int) -> WeightsOffer:
    write_safetensors(shelf.announced_path, {"w": ("BF16", (len(values) // 2,), values)})
    return shelf.offer("a" * 64, "b" * 64, round, "BF16", 0.5)


def manifest_of(shelf: OfferedWeights, offered: WeightsOffer) -> WeightsManifest:
    return decode_manifest(shelf.get(offered.manifest.hex()), offered.manifest.hex())


def test_another_process_finds_all_chunks_of_what_is_offered(tmp_path: Path) -> None:
    reader = OfferedWeights(tmp_path / "w")
    assert reader.current() is None and not reader.has("a" * 64)
    offered = offer(OfferedWeights(tmp_path / "w"), bfloat16(COUNT, 0), 3)
    assert reader.current() == offered and offered.round == 3
    whole = manifest_of(reader, offered).whole
    content = b"".join(reader.get(whole.chunk_digest(index)) for index in range(len(whole)))
    assert content == (tmp_path / "w" / f"{whole.digest}.safetensors").read_bytes() and len(whole) == 2


def test_the_next_comes_with_a_delta_and_the_one_before_stays(tmp_path: Path) -> None:
    shelf, values = OfferedWeights(tmp_path), bfloat16(COUNT, 0)
    first = manifest_of(shelf, offer(shelf, values, 1))
    second = manifest_of(shelf, offer(shelf, moved(values, 0.01), 2))
    delta = second.delta_from(first.whole.digest)
    assert delta is not None and delta.file.size_bytes < 0.05 * second.whole.size_bytes
    assert shelf.has(first.whole.chunk_digest(0)) and shelf.has(delta.file.chunk_digest(0))
    apply_delta(tmp_path / f"{first.whole.digest}.safetensors", tmp_path / f"{delta.base}.delta", tmp_path / "made")
    assert (tmp_path / "made").read_bytes() == (tmp_path / f"{second.whole.digest}.safetensors").read_bytes()


def test_no_delta_begins_at_a_file_that_is_damaged(tmp_path: Path) -> None:
    shelf, values = OfferedWeights(tmp_path), bfloat16(COUNT, 0)
    first = manifest_of(shelf, offer(shelf, values, 1))
    with (tmp_path / f"{first.whole.digest}.safetensors").open("r+b") as damaged:
        damaged.seek(-100, 2)
        damaged.write(b"damaged!")
    assert manifest_of(shelf, offer(shelf, moved(values, 0.01), 2)).deltas == ()


def test_what_is_older_goes(tmp_path: Path) -> None:
    shelf, values = OfferedWeights(tmp_path), bfloat16(COUNT, 0)
    first = manifest_of(shelf, offer(shelf, values, 1))
    for round in (2, 3):
        offer(shelf, moved(values, 0.01, seed=round), round)
    assert not shelf.has(first.whole.chunk_digest(0))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [
        "", ".delta", ".manifest", ".manifest", ".safetensors", ".safetensors",
    ]  # fmt: skip


def test_what_cannot_be_offered_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, values = OfferedWeights(tmp_path), bfloat16(COUNT, 0)
    first, left = offer(shelf, values, 1), set(tmp_path.iterdir())

    def full(path: Path, *parts: bytes) -> None:
        raise NoSpaceLeft(f"no space left for {path}", "Free space")

    monkeypatch.setattr(subject, "write_durably", full)
    for round in (2, 3):
        with pytest.raises(NoSpaceLeft):
            offer(shelf, moved(values, 0.01, seed=round), round)
    assert set(tmp_path.iterdir()) == left and shelf.current() == first
    monkeypatch.setattr(subject, "WEIGHTS_BYTES_MAX", COUNT)
    with pytest.raises(RecordRejected, match="the limit is"):
        offer(shelf, moved(values, 0.01), 4)
    assert shelf.current() == first


@pytest.mark.parametrize("name", ["offer", "../../../etc/passwd", "0" * 64, ""])
def test_nothing_else_is_given(tmp_path: Path, name: str) -> None:
    shelf = OfferedWeights(tmp_path)
    offer(shelf, bfloat16(10, 0), 1)
    assert not shelf.has(name)
    with pytest.raises(NotFoundError):
        shelf.get(name)


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
    assert fetched.forward_file(manifest, digest) == {f"{manifest.whole.digest}.safetensors", f"{digest}.manifest"}
    for source in (fetched, FetchedWeights(fetched.directory, wanted.__contains__)):
        assert source.has(digest) and source.get(digest) == manifest.encode()
        chunks = [manifest.whole.chunk_digest(index) for index in range(len(manifest.whole))]
        assert all(source.has(chunk) and source.file_digest_of(chunk) == digest for chunk in chunks)
        assert sum(len(source.get(chunk)) for chunk in chunks) == manifest.whole.size_bytes
        assert source.file_digest_of("0" * 64) == "0" * 64 and not source.has("0" * 64)


def test_what_is_damaged_or_gone_is_not_given_on(tmp_path: Path) -> None:
    fetched, manifest, digest, _ = taken(tmp_path)
    fetched.forward_file(manifest, digest)
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
    fetched.forward_file(manifest, digest)
    wanted.clear()
    assert not fetched.has(digest) and not fetched.has(manifest.whole.chunk_digest(0))
    wanted.add(digest)
    assert fetched.has(digest)
