"""Bodies under their digests: whole or not there, whoever writes them."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.errors import BlobError, LogWriteFailed, NotFoundError
from swarmd.eventlog import blobs as module
from swarmd.eventlog.blobs import TEMPORARY_AGE_S, BlobStore

WRITER = """
import random, sys
from pathlib import Path
from swarmd.eventlog.blobs import BlobStore

blobs, seed = BlobStore(Path(sys.argv[1])), int(sys.argv[2])
numbers = random.Random(seed)
for _ in range(200):
    number = numbers.randrange(30)
    body = bytes([number]) * (1000 * number + 1)
    assert blobs.get(blobs.put(body)) == body
    if seed == 0:
        blobs.prune((), 10_000_000)
"""


def age(blobs: BlobStore, digest: str, seconds: float) -> None:
    path = blobs.directory / digest[:2] / digest
    past = path.stat().st_mtime - seconds
    os.utime(path, (past, past))


def test_what_was_put_is_got_by_its_sha256(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    digest = blobs.put(b"body")
    assert digest == hashlib.sha256(b"body").hexdigest()
    assert blobs.has(digest) and blobs.get(digest) == b"body"
    assert blobs.put(b"body") == digest
    assert not blobs.has("0" * 64)
    with pytest.raises(NotFoundError, match="no blob 0000"):
        blobs.get("0" * 64)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n", "/" * 64])
def test_a_digest_from_a_peer_leads_nowhere_else(tmp_path: Path, digest: str) -> None:
    blobs = BlobStore(tmp_path)
    for attempt in (blobs.get, blobs.has):
        with pytest.raises(NotFoundError, match="not the digest of a blob"):
            attempt(digest)


def test_a_damaged_blob_is_refused_and_mended_by_putting_it_again(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    digest = blobs.put(b"body")
    path = tmp_path / digest[:2] / digest
    for content in (b"bodx", b"bod", b""):
        path.write_bytes(content)
        with pytest.raises(BlobError, match="is damaged"):
            blobs.get(digest)
        blobs.put(b"body")
        assert blobs.get(digest) == b"body"


def test_a_blob_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOB_BYTES_MAX", 10)
    with pytest.raises(BlobError, match="limit of 10"):
        BlobStore(tmp_path).put(b"x" * 11)
    assert list(tmp_path.iterdir()) == []


def test_pruning_takes_the_oldest_first_and_spares_what_is_to_be_kept(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    digests = [blobs.put(bytes([number]) * 100) for number in range(6)]
    for number, digest in enumerate(digests):
        age(blobs, digest, 100 - number)
    found = blobs.prune(keep={digests[0]}, bytes_max=300)
    assert (found.blobs, found.size_bytes, found.left_bytes) == (3, 300, 300)
    assert [blobs.has(digest) for digest in digests] == [True, False, False, False, True, True]
    assert blobs.prune(keep=digests, bytes_max=0).blobs == 0
    assert blobs.prune(keep=(), bytes_max=300).blobs == 0


def test_a_blob_that_cannot_be_removed_is_named_when_the_others_are_gone(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    stays, goes = tmp_path / "aa" / ("a" * 64), blobs.put(b"old")
    stays.mkdir(parents=True)
    os.utime(stays, (0, 0))
    with pytest.raises(LogWriteFailed, match=f"removal of {stays} failed"):
        blobs.prune((), 0)
    assert stays.exists() and not blobs.has(goes)


def test_pruning_clears_what_a_crash_left(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    digest = blobs.put(b"body")
    left = tmp_path / digest[:2] / f"{digest}.1.1.tmp"
    left.write_bytes(b"half")
    blobs.prune((), 1000)
    assert left.exists(), "it may still be being written"
    past = left.stat().st_mtime - TEMPORARY_AGE_S - 1
    os.utime(left, (past, past))
    blobs.prune((), 1000)
    assert not left.exists() and blobs.has(digest)


def test_several_processes_share_a_store(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(seed)]) for seed in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    files = [path for path in tmp_path.glob("*/*") if path.is_file()]
    assert len(files) == 30
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in files)
