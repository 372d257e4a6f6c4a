"""Where things lie in a node's data directory."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

import swarmd


class DataPaths(msgspec.Struct, frozen=True):
    """One node's data directory."""

    root: Path

    @property
    def events(self) -> Path:
        """Segments of the event log."""
        return self.root / "events"

    @property
    def blobs(self) -> Path:
        """Rollout bodies, one file per digest."""
        return self.root / "blobs"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def weights(self) -> Path:
        """The weights that this node offers to peers: the trainer writes them, the network worker gives them out."""
        return self.root / "weights"

    @property
    def peer_weights(self) -> Path:
        """Weights fetched from peers: the network worker puts them together, the trainer reads them."""
        return self.network / "weights"

    @property
    def results(self) -> Path:
        """Event files and runs of the trackers, and what is on its way to the Hub."""
        return self.root / "results"

    @property
    def network(self) -> Path:
        """What the network worker alone writes, but for `invitations`."""
        return self.root / "network"

    @property
    def peers(self) -> Path:
        """Addresses of peers seen before, for a start without bootstrap peers."""
        return self.network / "peers.json"

    @property
    def records(self) -> Path:
        """The node's own records in the DHT, to be published again after a restart."""
        return self.network / "records.bin"

    @property
    def standings(self) -> Path:
        """The newest leaderboard that a follower has read."""
        return self.network / "standings.bin"

    @property
    def work(self) -> Path:
        """The number that this identity has worked for, where the swarm asks for more than every node does."""
        return self.network / "work"

    @property
    def invitations(self) -> Path:
        """The invitations that were made here, and which of them were withdrawn: `swarmd swarm invite` writes it."""
        return self.network / "invitations.json"

    @property
    def withdrawn(self) -> Path:
        """Withdrawn invitations of which this node has heard."""
        return self.network / "withdrawn.bin"

    @property
    def layout(self) -> Path:
        """Which layout the directory has, see `swarmd.daemon.upgrade`."""
        return self.root / "layout.json"

    @property
    def before_upgrade(self) -> Path:
        """What there was before the last upgrade."""
        return self.root / "before-upgrade"

    @property
    def after_upgrade(self) -> Path:
        """What an upgrade that was undone had left."""
        return self.root / "after-upgrade"

    @property
    def restored(self) -> Path:
        """A note that the directory was restored from a backup, until the node has read it."""
        return self.root / "restored.json"

    @property
    def restoring(self) -> Path:
        """What a restore has unpacked, until it is whole."""
        return self.root / ".restoring"

    @property
    def moved(self) -> Path:
        """A note that the node lives elsewhere."""
        return self.root / "moved.json"

    @property
    def sockets(self) -> Path:
        """p2pd's control sockets."""
        return self.root / "run"

    @property
    def control(self) -> Path:
        """The daemon's own socket, for `swarmd status`."""
        return self.root / "run" / "control.sock"


def quoted(path: Path | str) -> str:
    """A path as one word of a shell, for a command that people are told to run."""
    return shlex.quote(str(path))


def configs_directory() -> Path:
    """The configurations that are shipped: in a checkout, or inside an installed wheel."""
    package = Path(swarmd.__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"
