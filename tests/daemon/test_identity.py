"""The identity at a node's start: never made by accident, and whole before a log begins under its peer id."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from swarmd.config import Config, DhtConfig, SwarmConfig
from swarmd.core.events import Event, EventBase, MemberSeen, NodeStopped, Registered, WorkerExited
from swarmd.daemon.directory import node_identity
from swarmd.dht.identity.identity import create_identity, generate_identity, load_identity, write_private
from swarmd.errors import ExitCode, IdentityError, NotFoundError
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.store import LOG_BYTES_MAX, EventLog
from swarmd.paths import NodeDirectory
from tests.daemon.node import PATIENCE_S
from tests.eventlog.making import NO_COMMANDS

OTHER = generate_identity()


def config(**dht: str) -> Config:
    return Config(swarm=SwarmConfig(id="test"), role="coordinator", dht=DhtConfig(**dht))  # type: ignore[arg-type]


def begin_log(data: NodeDirectory, peer: str) -> None:
    with EventLog.open(data.events, peer, "run", bytes_max=LOG_BYTES_MAX) as log:
        log.append(1.0, [MemberSeen("peer")], NO_COMMANDS)


def test_a_new_directory_gets_an_identity_once(tmp_path: Path) -> None:
    made = node_identity(config(), NodeDirectory(tmp_path))
    assert node_identity(config(), NodeDirectory(tmp_path)).peer_id == made.peer_id
    assert node_identity(config(peer=made.peer_id), NodeDirectory(tmp_path)).peer_id == made.peer_id


def test_a_pinned_identity_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=OTHER.peer_id) as missing:
        node_identity(config(peer=OTHER.peer_id), NodeDirectory(tmp_path))
    assert "swarmd identity restore" in missing.value.fix
    assert list(tmp_path.iterdir()) == []


def test_another_identity_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    made = create_identity(tmp_path / "identity.key")
    with pytest.raises(IdentityError) as wrong:
        node_identity(config(peer=OTHER.peer_id), NodeDirectory(tmp_path))
    assert made.peer_id in wrong.value.message and OTHER.peer_id in wrong.value.message


def test_a_damaged_public_half_is_found_before_a_log_begins(tmp_path: Path) -> None:
    key = tmp_path / "identity.key"
    raw = bytearray(create_identity(key).encode())
    raw[-1] ^= 1
    key.write_bytes(raw)
    with pytest.raises(IdentityError, match="does not belong to its secret"):
        node_identity(config(), NodeDirectory(tmp_path))


def test_a_missing_key_is_not_replaced(tmp_path: Path) -> None:
    data = NodeDirectory(tmp_path / "data")
    data.root.mkdir()
    with pytest.raises(NotFoundError, match="there is no identity"):
        node_identity(config(identity="../elsewhere.key"), data)
    begin_log(data, OTHER.peer_id)
    with pytest.raises(NotFoundError, match="holds the log of a node"):
        node_identity(config(), data)


def test_a_node_with_a_log_loads_no_cryptography(tmp_path: Path) -> None:
    """The idle daemon stays small; the network worker proves the key."""
    begin_log(NodeDirectory(tmp_path), create_identity(tmp_path / "identity.key").peer_id)
    (tmp_path / "config").write_bytes(msgspec.msgpack.encode(config()))
    program = (
        "import sys, pathlib\nfrom swarmd.config import decode\nfrom swarmd.daemon.directory import node_identity\n"
        f"from swarmd.paths import NodeDirectory\nroot = pathlib.Path({str(tmp_path)!r})\n"
        "node_identity(decode((root / 'config').read_bytes()), NodeDirectory(root))\n"
        "print([name for name in ('cryptography', 'hivemind', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PROGRAM = """
import sys
from pathlib import Path
from swarmd.config import load_config
from swarmd.daemon.service import run_node
from swarmd.observe.logs import configure
from swarmd.paths import NodeDirectory
from tests.daemon.run_fake import program
configure("info", "json")
network = (sys.executable, "-m", "swarmd.dht.worker")
config = load_config(Path(sys.argv[1]))
sys.exit(run_node(config, NodeDirectory(Path(sys.argv[2])), {"network": network, "trainer": program("trainer", "ok")}))
"""


SETTINGS = """
role = "{role}"
[swarm]
id = "test"
coordinator = "{coordinator}"
[dht]
listen = ["/ip4/127.0.0.1/tcp/{port}"]
bootstrap = {bootstrap}
poll_s = 0.5
[storage]
free_bytes_min = 0
"""


class Host:
    """A data directory and the daemon that runs on it, with its real network worker and a scripted trainer."""

    def __init__(self, root: Path, key: bytes = b"", boss: Host | None = None) -> None:
        root.mkdir()
        self.data = NodeDirectory(root / "data")
        self.data.root.mkdir()
        write_private(self.data.root / "identity.key", key or generate_identity().encode())
        self.peer = load_identity(self.data.root / "identity.key").peer_id
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        bootstrap = [f"/ip4/127.0.0.1/tcp/{boss.port}/p2p/{boss.peer}"] if boss else []
        role, coordinator = ("follower", boss.peer) if boss else ("coordinator", "")
        text = SETTINGS.format(role=role, coordinator=coordinator, port=self.port, bootstrap=bootstrap)
        (root / "node.toml").write_text(text.replace("'", '"'))
        self._root = root
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", PROGRAM, str(self._root / "node.toml"), str(self.data.root)]
        with (self._root / "daemon.log").open("ab") as output:
            self.process = subprocess.Popen(argv, stdout=output, stderr=output)
        return self.process

    def said(self) -> str:
        return (self._root / "daemon.log").read_text()

    def until(self, kind: type[EventBase], longest_s: float = PATIENCE_S) -> None:
        """Wait for an event in the log."""
        end = time.monotonic() + longest_s
        while not (self.data.events.is_dir() and any(isinstance(event, kind) for event in events_of(self.data.events))):
            assert time.monotonic() < end, self.said()[-3000:]
            time.sleep(0.05)

    def end(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def events_of(directory: Path) -> list[Event]:
    return [event for commit in read_commits(directory) for event in commit.events]


def test_of_two_hosts_with_one_identity_the_second_stops(tmp_path: Path) -> None:
    """Both joined to a third node. The second ends with 79, whenever it is started; the first goes on."""
    boss = Host(tmp_path / "boss")
    first = Host(tmp_path / "first", boss=boss)
    second = Host(tmp_path / "second", (first.data.root / "identity.key").read_bytes(), boss)
    try:
        boss.start()
        first.start()
        first.until(Registered)
        for _ in range(2):
            assert second.start().wait(PATIENCE_S) == ExitCode.IDENTITY_CONFLICT, second.said()[-3000:]
            stopped = events_of(second.data.events)[-1]
            assert isinstance(stopped, NodeStopped) and stopped.code == ExitCode.IDENTITY_CONFLICT
            assert "also runs at" in stopped.reason
        exits = [event for event in events_of(second.data.events) if isinstance(event, WorkerExited)]
        assert [event.permanent for event in exits if event.worker == "network"] == [True, True]
        assert first.process is not None and first.process.poll() is None
        assert not [event for event in events_of(first.data.events) if isinstance(event, WorkerExited)]
        first.process.terminate()
        assert first.process.wait(PATIENCE_S) == 0
    finally:
        for host in (second, first, boss):
            host.end()
