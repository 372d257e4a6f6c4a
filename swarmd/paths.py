"""The files of a node's directory, and how the directory is created."""

import shlex
from pathlib import Path

import swarmd
from swarmd.errors import PathUnusable
from swarmd.files import advise_on_path_error

CONFIG, IDENTITY = "config.toml", "identity.key"


class NodeDirectory:
    """The directory of one node: its data, its keys and its configuration.

    A service's configuration lies elsewhere, and a configuration may name other paths for the data (`data`) and the key
    (`dht.identity`).
    """

    def __init__(self, root: Path) -> None:
        self.root = root

        # Written once, when the node is created.
        self.config = root / CONFIG
        self.manifest = root / "swarm.toml"
        self.identity = root / IDENTITY
        self.keystore = root / "account.json"
        self.passphrase = root / "account.pass"
        self.endpoints = root / "rpc.urls"
        self.deployment = root / "deploy.json"  # pending transactions of the operator

        # Written by the running node.
        self.events = root / "events"  # segments of the event log
        self.blobs = root / "blobs"  # rollout bodies, one file per digest
        self.checkpoints = root / "checkpoints"
        self.weights = root / "weights"  # offered to peers: written by the trainer, served by the network worker
        self.vllm = root / "vllm"  # weights in transfer to a vLLM server
        self.results = root / "results"  # files of the trackers, and what waits for upload to the Hub
        self.model = root / "model.json"  # the model that `auto` chose
        self.output = root / "daemon.log"  # the daemon's output, in a local swarm

        # Written only by the network worker, except `invitations`.
        self.network = root / "network"
        self.peers = self.network / "peers.json"  # addresses of known peers, for a start without bootstrap peers
        self.records = self.network / "records.bin"  # the node's own records, published again after a restart
        self.standings = self.network / "standings.bin"  # the newest leaderboard that this follower has read
        self.work = self.network / "work"  # this identity's proof of work, if the swarm asks for a harder one
        self.invitations = self.network / "invitations.json"  # issued by this node, withdrawn ones included
        self.withdrawn = self.network / "withdrawn.bin"  # withdrawn invitations that this node has heard of
        self.peer_weights = self.network / "weights"  # fetched from peers, read by the trainer

        # About the directory itself.
        self.layout = root / "layout.json"  # see `swarmd.daemon.directory`
        self.restored = root / "restored.json"  # note of a restore from a backup, until the next start has read it
        self.restoring = root / ".restoring"  # files of a restore in progress
        self.moved = root / "moved.json"  # present if the node was moved elsewhere

        # Exists while the node runs.
        self.sockets = root / "run"  # p2pd's control sockets, the notifier's memory
        self.control = self.sockets / "control.sock"  # the daemon's own socket, for `swarmd status`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeDirectory) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def create(self) -> None:
        """Make the directory if it is missing, with mode 0700. Raises PathUnusable."""
        try:
            str(self.root.resolve()).encode()  # the form in which workers get it
        except UnicodeEncodeError as error:
            raise PathUnusable(f"the path of the directory {self.root} is not UTF-8", "Give it another name") from error
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            other = "name another one with --dir, --data, or `data` in the configuration"
            known = advise_on_path_error(error, self.root)
            fix = f"{known}, or {other}" if known else f"{other[0].upper()}{other[1:]}"
            raise PathUnusable(f"the directory {self.root} cannot be made: {error.strerror}", fix) from error


def quote_for_shell(path: Path | str) -> str:
    """Quote a path as one word of a shell command, for messages."""
    return shlex.quote(str(path))


def configs_directory() -> Path:
    """The directory of shipped configurations, in a checkout or an installed wheel."""
    package = Path(swarmd.__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"
