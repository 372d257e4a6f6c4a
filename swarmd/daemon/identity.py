"""The node's identity at start: made once, in a data directory that is new, and never by accident."""

from __future__ import annotations

from pathlib import Path

import structlog

from swarmd.config import Config
from swarmd.dht.identity import Identity, create_identity, read_identity
from swarmd.errors import NotFoundError
from swarmd.eventlog.segment import list_segments
from swarmd.paths import DataPaths

log = structlog.get_logger("swarmd.daemon")


def identity_path(config: Config, data: DataPaths) -> Path:
    """Where the key lies: `dht.identity`, relative to the data directory."""
    return data.root / config.dht.identity


def node_identity(config: Config, data: DataPaths) -> Identity:
    """Read the key, or make one when this data directory is new.

    Raises:
        NotFoundError: the key is missing though the directory has a log, or though the configuration names a place
            outside it.
        IdentityError: it has the wrong mode, owner or content.
    """
    path = identity_path(config, data)
    if path.exists() or path.is_symlink():
        return read_identity(path)
    if data.events.is_dir() and list_segments(data.events):
        raise NotFoundError(
            f"the identity {path} is missing, but {data.events} holds the log of a node",
            "Restore the key file from a backup; a new key would be another node",
        )
    if not path.resolve().is_relative_to(data.root.resolve()):
        raise NotFoundError(f"there is no identity {path}", f"Make one with `swarmd identity new {path}`")
    identity = create_identity(path)
    log.warning("a new identity was made; keep a copy of the file", peer=identity.peer_id, file=str(path))
    return identity
