"""The node's identity at start: made once, in a data directory that is new, and never by accident."""

from __future__ import annotations

from pathlib import Path

from swarmd.config import Config
from swarmd.dht.identity.identity import Identity, create_identity, load_identity, read_identity
from swarmd.errors import IdentityDamaged, NotFoundError
from swarmd.eventlog.segment import list_segments
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory, quoted

log = get_logger("swarmd.daemon")


def node_identity(config: Config, data: NodeDirectory) -> Identity:
    """Read the key, or make one when this data directory is new and the configuration pins no peer id.

    Before a log begins under its peer id, the key is proved whole; later the network worker does so.

    Raises:
        NotFoundError: the key is missing though the directory has a log, or though the configuration names a place
            outside it or pins a peer id.
        IdentityError: it has the wrong mode, owner or content, or another peer id than the one pinned.
    """
    path = data.root / config.dht.identity
    begun = data.events.is_dir() and bool(list_segments(data.events))
    if path.exists() or path.is_symlink():
        identity = read_identity(path) if begun else load_identity(path)
        _check_pin(config.dht.peer, identity, path)
        return identity
    _refuse_to_make(config.dht.peer, path, data, begun)
    identity = create_identity(path)
    log.warning("a new identity was made; keep a copy of the file", peer=identity.peer_id, file=str(path))
    return identity


def _check_pin(pin: str, identity: Identity, path: Path) -> None:
    if pin and identity.peer_id != pin:
        raise IdentityDamaged(
            f"the identity {path} is that of {identity.peer_id}, but dht.peer pins {pin}",
            f"Put the key of {pin} there (`swarmd identity restore`), or change dht.peer if the other is meant",
        )


def _refuse_to_make(pin: str, path: Path, data: NodeDirectory, begun: bool) -> None:
    """Raise NotFoundError where a new key would be a mistake."""
    if pin:
        raise NotFoundError(
            f"the identity {path} of {pin}, which dht.peer pins, is missing",
            f"Bring it back with `swarmd identity restore BACKUP {quoted(path)}`; none is made in its place",
        )
    if begun:
        raise NotFoundError(
            f"the identity {path} is missing, but {data.events} holds the log of a node",
            "Restore the key file from a backup; a new key would be another node",
        )
    if not path.resolve().is_relative_to(data.root.resolve()):
        raise NotFoundError(
            f"there is no identity {path}",
            f"Bring it back with `swarmd identity restore BACKUP {quoted(path)}`; a new node's is made with "
            f"`swarmd identity new {quoted(path)}`",
        )
