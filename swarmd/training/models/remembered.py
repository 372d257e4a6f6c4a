"""A cache of findings about the models on this machine, so that later starts are faster.

- Findings are the digests of a model's weights, as loaded and as files, and that a trial of a model succeeded. A
  failure is not kept, since its cause may go away.
- A finding's key includes all that it depends on: path, size, inode and modification time of every file of the model,
  versions of the libraries, and what the caller adds. Files are examined before they are read, so that changes
  meanwhile count as changes.
- Only the newest findings are kept, in one small file beside the cache of models. If it cannot be read it is ignored;
  if it cannot be written, the next start takes longer.
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
    """Findings about one model under certain conditions. Create it before the model is read. `place`: the model's
    directory or file; None if it has none yet, which disables the cache. `conditions`: what a finding depends on
    besides the files; anything that msgspec encodes."""

    def __init__(self, place: Path | None, *conditions: object) -> None:
        self._known_by: tuple[object, ...] = ()
        if place is not None:
            paths = sorted(place.iterdir()) if place.is_dir() else [place]
            stats = [(path.name, path.stat()) for path in paths if path.is_file()]
            files = [(name, each.st_size, each.st_ino, each.st_mtime_ns) for name, each in stats]
            self._known_by = (str(place.absolute()), files, _list_versions(), conditions)

    def get_or_compute(self, what: str, compute: Callable[[], str]) -> str:
        """Return the cached SHA-256, or compute and cache it."""
        digest = self.get(what)
        if not digest:
            digest = compute()
            self.put(what, digest)
        return digest

    def get(self, what: str) -> str:
        """The cached SHA-256 of this name; empty if there is none."""
        return _read_cache().get(self._key(what), "") if self._known_by else ""

    def put(self, what: str, digest: str) -> None:
        """Cache a SHA-256 for later starts, of this node or another."""
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
