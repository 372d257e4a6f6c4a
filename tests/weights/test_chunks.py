"""A file comes together from chunks in any order, over several lives, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from swarmd.errors import NoSpaceLeft, RecordRejected
from swarmd.weights import offered as subject
from swarmd.weights.manifest import CHUNK_BYTES_MIN, ChunkedFile
from swarmd.weights.offered import PartialFile, cut, read_chunk
from tests.durability import recording

SIZE = 3 * CHUNK_BYTES_MIN + 17


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def file(source: Path) -> ChunkedFile:
    return cut(source, CHUNK_BYTES_MIN)


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
