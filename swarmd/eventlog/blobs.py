"""Bodies too large for the log, each under the SHA-256 of its content; shared by the daemon and its workers."""

import hashlib
import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from swarmd.errors import BlobError, LogWriteFailed, NotFoundError
from swarmd.files import TEMPORARY, make_directory, make_write_error, read_regular, remove_leftover, write_durably

BLOB_BYTES_MAX = 64 * 1024 * 1024  # a larger blob is refused
TEMPORARY_AGE_S = 3600.0  # an older unfinished file was left by a crash

_DIGEST = re.compile(r"[0-9a-f]{64}")


class PruneResult(msgspec.Struct, frozen=True):
    blobs: int
    size_bytes: int
    left_bytes: int


class BlobStore:
    """A directory of blobs, `<first two digits>/<digest>`. Safe to use from several processes at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, content: bytes) -> str:
        """Store `content` durably. Returns its digest: SHA-256, lower-case hex.

        Storing it again resets its age for `prune` and repairs a damaged copy. Raises BlobError if it is larger than
        `BLOB_BYTES_MAX`; NoSpaceLeft, LogWriteFailed if it could not be written.
        """
        if len(content) > BLOB_BYTES_MAX:
            raise BlobError(f"a blob of {len(content)} bytes is over the limit of {BLOB_BYTES_MAX}")
        digest = hashlib.sha256(content).hexdigest()
        path = self._path(digest)
        if not self._touch_if_same(path, content):
            if not path.parent.is_dir():
                make_directory(path.parent)
            write_durably(path, content)
        return digest

    def get(self, digest: str) -> bytes:
        """Read the content under a digest, and verify it. Raises NotFoundError; BlobError if the file is damaged (`put`
        of the right content repairs it)."""
        path = self._path(digest)
        try:
            content = read_regular(path, BLOB_BYTES_MAX)
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no blob {digest} in {self.directory}") from error
        except OSError as error:
            raise BlobError(f"the blob {path} cannot be read: {error.strerror}", "Check the disk") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise BlobError(f"the blob {path} is damaged: its content has another digest", "Fetch or make it again")
        return content

    def has(self, digest: str) -> bool:
        """Whether a blob of that digest exists; its content is not read."""
        return self._path(digest).is_file()

    def prune(self, keep: Collection[str], bytes_max: int) -> PruneResult:
        """Remove the oldest blobs until the rest takes at most `bytes_max`, but never those in `keep`. Raises
        LogWriteFailed, after trying all, naming the first that could not be removed."""
        found = sorted(self._iter_blobs(), key=lambda blob: (blob[1].st_mtime_ns, blob[0].name))
        left_bytes = sum(status.st_size for _, status in found)
        removed = removed_bytes = 0
        failure: LogWriteFailed | None = None
        for path, status in found:
            if left_bytes <= bytes_max:
                break
            if path.name in keep:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                failure = failure or make_write_error(error, path, "removal")
                continue
            left_bytes -= status.st_size
            removed_bytes += status.st_size
            removed += 1
        if failure is not None:
            raise failure
        return PruneResult(removed, removed_bytes, left_bytes)

    def _path(self, digest: str) -> Path:
        """The path of a blob. It checks the digest, which may come from a peer and must not lead elsewhere."""
        if not _DIGEST.fullmatch(digest):
            raise NotFoundError(f"{digest[:80]!r} is not the digest of a blob", "A digest has 64 lower-case hex digits")
        return self.directory / digest[:2] / digest

    def _touch_if_same(self, path: Path, content: bytes) -> bool:
        """If the file already has this content, reset its age and return True."""
        try:
            if path.stat().st_size != len(content) or read_regular(path, BLOB_BYTES_MAX) != content:
                return False
            os.utime(path)
        except OSError:
            return False
        return True

    def _iter_blobs(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield blobs with their status, and remove files that a crash left unfinished."""
        stale_before = time.time() - TEMPORARY_AGE_S
        for path in self.directory.glob("??/*"):
            try:
                status = path.stat()
            except OSError:  # removed meanwhile, or unreadable
                continue
            if _DIGEST.fullmatch(path.name):
                yield path, status
            elif path.name.endswith(TEMPORARY) and status.st_mtime < stale_before:
                remove_leftover(path)
