"""What was found out about the models on this machine, so that the next start does not have to find it out again.

- Findings are the digest of a model's weights, as read and as files, and that a model was tried out with success. A
  failure is not kept, since its cause may go away.
- A finding is kept under all that it depends on: path, size, inode and modification time of every file of the model,
  versions of the libraries, and whatever else the caller names. Files are examined before they are read, so that
  changes meanwhile count as changes.
- Only the newest findings are kept, in one small file beside the cache of models. A file that cannot be read is
  ignored; if none can be written, the next start takes longer.
"""

import contextlib
import hashlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.files import read_regular, replace_durably
from swarmd.logger import get_logger
from swarmd.training.models.known import model_cache

FILE = "remembered.json"
KEPT = 128  # findings; a model has two for each combination of settings
BYTES_MAX = 256 * KEPT  # of the file
LIBRARIES = ("swarmd", "torch", "transformers", "peft", "bitsandbytes", "flash-attn")

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
log = get_logger(__name__)


class DigestCache:
    """Findings about one model under certain conditions. Create it before the model is read. `place`: the directory of
    the model, or its file; None if it has none yet, then nothing is kept. `conditions`: what a finding depends on
    besides the files; anything that msgspec encodes."""

    def __init__(self, place: Path | None, *conditions: object) -> None:
        self._known_by: tuple[object, ...] = ()
        if place is not None:
            paths = sorted(place.iterdir()) if place.is_dir() else [place]
            stats = [(path.name, path.stat()) for path in paths if path.is_file()]
            files = [(name, each.st_size, each.st_ino, each.st_mtime_ns) for name, each in stats]
            self._known_by = (str(place.absolute()), files, _list_versions(), conditions)

    def get_or_compute(self, what: str, compute: Callable[[], str]) -> str:
        """A SHA-256 that was computed before, or is computed now and kept."""
        digest = self.get(what)
        if not digest:
            digest = compute()
            self.put(what, digest)
        return digest

    def get(self, what: str) -> str:
        """The SHA-256 that was kept under this name; empty if none was."""
        return _read_cache().get(self._key(what), "") if self._known_by else ""

    def put(self, what: str, digest: str) -> None:
        """Keep a SHA-256 for later starts, of this node or another."""
        if not self._known_by:
            return
        newest = {self._key(what): digest} | _read_cache()
        try:
            path = _cache_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_durably(path, msgspec.json.encode(dict(list(newest.items())[:KEPT])))
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home directory
            log.info("what was found out about the model cannot be kept", reason=str(error))

    def _key(self, what: str) -> str:
        return hashlib.sha256(msgspec.json.encode((what, *self._known_by))).hexdigest()


def _list_versions() -> list[str]:
    versions = []
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return versions


def _cache_path() -> Path:
    return model_cache().with_name(FILE)


def _read_cache() -> dict[str, str]:
    """All findings by key, newest first."""
    try:
        return dict(msgspec.json.decode(read_regular(_cache_path(), BYTES_MAX), type=dict[str, Digest]))
    except (OSError, RuntimeError, *DECODE_ERRORS):
        return {}
