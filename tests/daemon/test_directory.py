"""A node's data directory: its layout, whose it is, and the identity that a start makes or refuses to make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from swarmd.config import Config, DhtConfig, SwarmConfig, load_config, parse_config
from swarmd.core.events import (
    ChainUp,
    MemberSeen,
    NodeStarted,
    WorkerStarted,
)
from swarmd.core.state import State
from swarmd.core.values import BlockRef, Settings
from swarmd.daemon.directory import (
    LAYOUT,
    SwarmIdentity,
    read_layout,
    read_or_make_identity,
    refuse_other_swarm,
    swarm_of_config,
    swarm_of_log,
    write_layout_if_absent,
)
from swarmd.dht.identity.identity import create_identity, generate_identity
from swarmd.errors import ExitCode, IdentityError, LogDamaged, NotFoundError, OtherVersion, SwarmMismatch
from swarmd.eventlog.store import LOCK_NAME, LOG_BYTES_MAX, EventLog
from swarmd.paths import NodeDirectory
from tests.core.story import settings
from tests.daemon.node import fake_node
from tests.eventlog.making import NO_COMMANDS, flip, write_planned


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        (f'{{"layout": {LAYOUT - 1}}}', OtherVersion, f"has layout {LAYOUT - 1}, this swarmd has layout {LAYOUT}"),
        (f'{{"layout": {LAYOUT + 1}}}', OtherVersion, f"has layout {LAYOUT + 1}, this swarmd has layout {LAYOUT}"),
        ("{", LogDamaged, "layout"),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, text: str, error: type[Exception], told: str) -> None:
    data = NodeDirectory(tmp_path)
    data.layout.write_text(text)
    with pytest.raises(error, match=told):
        write_layout_if_absent(data)


def test_a_new_directory_is_given_the_present_layout(tmp_path: Path) -> None:
    data = NodeDirectory(tmp_path)
    write_layout_if_absent(data)
    assert data.layout.exists() and read_layout(data) == LAYOUT


CONTRACT = "0x" + "Ab" * 20
HASH = "0x" + "ab" * 32
CHAIN = f"""
role = "coordinator"
[swarm]
id = "test"
kind = "gsm8k"
stages = 3
[chain]
rpc = ["http://127.0.0.1:1"]
chain_id = 31337
contract = "{CONTRACT}"
"""


def logged(root: Path, *lives: Settings) -> NodeDirectory:
    """A data directory in which a node was started so often."""
    data, state = NodeDirectory(root), State()
    with EventLog.open(data.events, "me", "run") as log:
        for life in lives:
            chain = (WorkerStarted("chain", 1, 1), up()) if life.chain is not None else ()
            state = write_planned(log, (NodeStarted(life, "run"), *chain), state)
    return data


def up() -> ChainUp:
    return ChainUp(31337, CONTRACT, HASH, BlockRef(6, HASH), 1, 3, 0, 0.0)


def test_the_log_keeps_what_the_configuration_names(tmp_path: Path) -> None:
    config = parse_config(CHAIN, "test")
    assert swarm_of_config(config) == SwarmIdentity("test", "gsm8k", f"31337:{CONTRACT.lower()}")
    data = logged(tmp_path, settings(kind="gsm8k", contract=f"31337:{CONTRACT.lower()}"))
    assert swarm_of_log(data) == swarm_of_config(config)
    refuse_other_swarm(data, swarm_of_config(config))


@pytest.mark.parametrize(
    "asked",
    [SwarmIdentity("other"), SwarmIdentity("test", "gsm8k", ""), SwarmIdentity("test", "digits", "31337:0x1")],
    ids=["id", "kind", "contract"],
)
def test_another_swarm_is_refused_with_both_names_and_the_way_out(tmp_path: Path, asked: SwarmIdentity) -> None:
    data = logged(tmp_path, settings(kind="digits"))
    with pytest.raises(SwarmMismatch) as caught:
        refuse_other_swarm(data, asked)
    assert "test (kind digits, no chain)" in caught.value.message and str(asked) in caught.value.message
    assert f"swarmd join MANIFEST --dir NEW --identity {tmp_path / 'identity.key'}" in caught.value.fix


def test_a_directory_without_a_log_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    refuse_other_swarm(NodeDirectory(tmp_path), SwarmIdentity("any"))
    assert swarm_of_log(NodeDirectory(tmp_path)) is None


def test_a_node_does_not_start_on_another_swarms_log(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.run_rounds()
        assert node.stop() == 0
        assert swarm_of_log(node.paths) == swarm_of_config(load_config(node.config))
        before = contents(node.paths.root)
        node.config.write_text(node.config.read_text().replace('id = "test"', 'id = "other"'))
        node.start()
        assert node.wait() == ExitCode.BAD_CONFIG
        assert "swarm test (kind digits, no chain)" in str(node.lines()[-1]) and "--identity" in node.lines()[-1]["fix"]
        assert contents(node.paths.root) == before


def contents(root: Path) -> dict[str, bytes]:
    """All files, but for the lock, which says who held it last."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != LOCK_NAME)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


OTHER = generate_identity()


def config(**dht: str) -> Config:
    return Config(swarm=SwarmConfig(id="test"), role="coordinator", dht=DhtConfig(**dht))  # type: ignore[arg-type]


def begin_log(data: NodeDirectory, peer: str) -> None:
    with EventLog.open(data.events, peer, "run", bytes_max=LOG_BYTES_MAX) as log:
        log.append(1.0, [MemberSeen("peer")], NO_COMMANDS)


def test_a_new_directory_gets_an_identity_once(tmp_path: Path) -> None:
    made = read_or_make_identity(config(), NodeDirectory(tmp_path))
    assert read_or_make_identity(config(), NodeDirectory(tmp_path)).peer_id == made.peer_id
    assert read_or_make_identity(config(peer=made.peer_id), NodeDirectory(tmp_path)).peer_id == made.peer_id


def test_a_pinned_identity_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=OTHER.peer_id) as missing:
        read_or_make_identity(config(peer=OTHER.peer_id), NodeDirectory(tmp_path))
    assert "swarmd identity restore" in missing.value.fix
    assert list(tmp_path.iterdir()) == []


def test_another_identity_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    made = create_identity(tmp_path / "identity.key")
    with pytest.raises(IdentityError) as wrong:
        read_or_make_identity(config(peer=OTHER.peer_id), NodeDirectory(tmp_path))
    assert made.peer_id in wrong.value.message and OTHER.peer_id in wrong.value.message


def test_a_damaged_public_half_is_found_before_a_log_begins(tmp_path: Path) -> None:
    key = tmp_path / "identity.key"
    create_identity(key)
    flip(key, -1)
    with pytest.raises(IdentityError, match="does not belong to its secret"):
        read_or_make_identity(config(), NodeDirectory(tmp_path))


def test_a_missing_key_is_not_replaced(tmp_path: Path) -> None:
    data = NodeDirectory(tmp_path / "data")
    data.root.mkdir()
    with pytest.raises(NotFoundError, match="there is no identity"):
        read_or_make_identity(config(identity="../elsewhere.key"), data)
    begin_log(data, OTHER.peer_id)
    with pytest.raises(NotFoundError, match="holds the log of a node"):
        read_or_make_identity(config(), data)


def test_a_node_with_a_log_loads_no_cryptography(tmp_path: Path) -> None:
    """The idle daemon stays small; the network worker proves the key."""
    begin_log(NodeDirectory(tmp_path), create_identity(tmp_path / "identity.key").peer_id)
    (tmp_path / "config").write_bytes(msgspec.msgpack.encode(config()))
    program = (
        "import sys, pathlib\nfrom swarmd.config import decode\n"
        "from swarmd.daemon.directory import read_or_make_identity\n"
        f"from swarmd.paths import NodeDirectory\nroot = pathlib.Path({str(tmp_path)!r})\n"
        "read_or_make_identity(decode((root / 'config').read_bytes()), NodeDirectory(root))\n"
        "print([name for name in ('cryptography', 'hivemind', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
