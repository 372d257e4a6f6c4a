"""What was found out about the models on this machine, so that a start does not find it out again.

- It is the digest of a model's weights, as read and as files, and that a model was tried out with success. A failure is
  not kept: its cause may go.
- Each finding is kept by all that it depends on: path, size, inode and time of change of every file of the model,
  versions of the libraries, and what else the caller names. The files are looked at before they are read: what changes
  meanwhile counts as changed.
- The findings lie in one small file beside the cache of models, the newest of them only. A file that cannot be read is
  as if it were not there; where none can be written, the next start takes longer.
"""

from __future__ import annotations

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
KEPT = 128  # findings; a model has two for each of its settings
BYTES_MAX = 256 * KEPT  # of the file
LIBRARIES = ("swarmd", "torch", "transformers", "peft", "bitsandbytes", "flash-attn")

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
log = get_logger(__name__)


class Remembered:
    """What is known of one model under one set of conditions. To be made before the model is read.

    Args:
        place: the directory of the model, or its file; None where it has none yet, of which nothing is kept.
        conditions: what a finding depends on beside the files; anything that msgspec encodes.
    """

    def __init__(self, place: Path | None, *conditions: object) -> None:
        self._known_by: tuple[object, ...] = ()
        if place is not None:
            paths = sorted(place.iterdir()) if place.is_dir() else [place]
            stats = [(path.name, path.stat()) for path in paths if path.is_file()]
            files = [(name, each.st_size, each.st_ino, each.st_mtime_ns) for name, each in stats]
            self._known_by = (str(place.absolute()), files, _list_versions(), conditions)

    def find(self, what: str, compute: Callable[[], str]) -> str:
        """A SHA-256 as it was computed before, or computed now and kept."""
        digest = self.recall(what)
        if not digest:
            digest = compute()
            self.keep(what, digest)
        return digest

    def recall(self, what: str) -> str:
        """The SHA-256 that was kept under this name; empty if none was."""
        return _read().get(self._key(what), "") if self._known_by else ""

    def keep(self, what: str, digest: str) -> None:
        """Keep a SHA-256 for later starts, of this node or another."""
        if not self._known_by:
            return
        newest = {self._key(what): digest} | _read()
        try:
            path = _locate()
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


def _locate() -> Path:
    return model_cache().with_name(FILE)


def _read() -> dict[str, str]:
    """All that is kept, by key, newest first."""
    try:
        return dict(msgspec.json.decode(read_regular(_locate(), BYTES_MAX), type=dict[str, Digest]))
    except (OSError, RuntimeError, *DECODE_ERRORS):
        return {}
