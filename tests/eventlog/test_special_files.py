"""Whoever hands a log over may have put anything in its files' places: nobody who reads waits for ever, or reads on."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from swarmd.errors import BlobError, LogDamaged
from swarmd.eventlog.blobs import BlobStore
from swarmd.eventlog.fold import peer_id_of_log
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.segment import CHECKED_BYTES, FORMAT, MAGIC, PREFIX, LogPosition, first_seq_of, list_segments
from swarmd.eventlog.snapshot import read_snapshot
from swarmd.eventlog.store import EventLog
from swarmd.eventlog.summaries import UnusableBookmark, bookmark_path, read_bookmark
from swarmd.files import READ_BYTES_MAX
from swarmd.results.history import read_history
from swarmd.web.history import read_commits_from

SOURCE = Path(__file__).parent.parent / "golden" / "coordinator" / "events"


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(READ_BYTES_MAX + 1)


PUT: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
}
each_kind = pytest.mark.parametrize("kind", PUT)


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """A reader that waits is a failure, and no test that never ends."""

    def lose(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, lose)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SOURCE, tmp_path / "events"))


def put(kind: str, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    PUT[kind](path)
    return path


@each_kind
def test_in_the_place_of_a_segment_it_is_damage(log: Path, kind: str) -> None:
    node = peer_id_of_log(log)
    path = put(kind, list_segments(log)[-1])
    for read in (
        lambda: list(read_commits(log)),
        lambda: list(read_commits_from(log, LogPosition(0, first_seq_of(path), 0), 0)),
        lambda: EventLog.open(log, node, "run"),
    ):
        with pytest.raises(LogDamaged, match="cannot be read"):
            read()


@each_kind
def test_in_the_place_of_a_snapshot_it_is_damage(log: Path, kind: str) -> None:
    path = put(kind, log / "snapshots" / f"{7:020d}.snap")
    with pytest.raises(LogDamaged, match="cannot be read"):
        read_snapshot(path, "node")


@each_kind
def test_in_the_place_of_a_summary_all_is_read_anew(log: Path, kind: str) -> None:
    expected = read_history(log)
    put(kind, log / "summaries" / "history.sum")
    assert read_history(log) == expected


@each_kind
def test_in_the_place_of_a_bookmark_it_is_not_used(log: Path, kind: str) -> None:
    put(kind, bookmark_path(log, "page"))
    with pytest.raises(UnusableBookmark, match="cannot be read"):
        read_bookmark(log, "page", "1")


@each_kind
def test_in_the_place_of_a_blob_it_is_damage_that_is_mended(tmp_path: Path, kind: str) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    digest = blobs.put(b"body")
    put(kind, tmp_path / "blobs" / digest[:2] / digest)
    with pytest.raises(BlobError, match="cannot be read"):
        blobs.get(digest)
    if kind != "a directory":
        assert blobs.put(b"body") == digest and blobs.get(digest) == b"body"


def test_a_file_that_is_too_large_is_not_read(log: Path) -> None:
    path = bookmark_path(log, "page")
    path.parent.mkdir()
    huge(path)
    with pytest.raises(UnusableBookmark, match=str(READ_BYTES_MAX)):
        read_bookmark(log, "page", "1")


def test_a_header_whose_words_are_none_is_damage(log: Path) -> None:
    payload = b"\xc0"  # nil, under a sum that is right
    checked = PREFIX.pack(MAGIC, FORMAT, len(payload), 0)[:CHECKED_BYTES]
    seed = crc32c(payload, crc32c(checked))
    list_segments(log)[-1].write_bytes(PREFIX.pack(MAGIC, FORMAT, len(payload), seed) + payload)
    with pytest.raises(LogDamaged, match="header"):
        list(read_commits(log))
