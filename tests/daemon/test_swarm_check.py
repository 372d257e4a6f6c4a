"""One directory, one node, one swarm: another swarm is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.config import load_config, parse_config
from swarmd.core.events import ChainUp, NodeStarted, WorkerStarted
from swarmd.core.state import State
from swarmd.core.values import BlockRef, Settings
from swarmd.daemon.directory import SwarmName, refuse_other_swarm, swarm_of_config, swarm_of_log
from swarmd.errors import ExitCode, OtherSwarm
from swarmd.eventlog.frame import digest_commands
from swarmd.eventlog.store import LOCK_NAME, EventLog
from swarmd.paths import NodeDirectory
from swarmd.shell.loop import plan
from tests.core.story import settings
from tests.daemon.node import fake_node

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
            for event in (
                NodeStarted(life, "run"),
                *((WorkerStarted("chain", 1, 1), up()) if life.chain is not None else ()),
            ):
                planned = plan(state, log.next_seq, 1.0, [event])
                log.append(1.0, planned.events, digest_commands(planned.commands))
                state = planned.state
    return data


def up() -> ChainUp:
    return ChainUp(31337, CONTRACT, HASH, BlockRef(6, HASH), 1, 3, 0, 0.0)


def test_the_log_keeps_what_the_configuration_names(tmp_path: Path) -> None:
    config = parse_config(CHAIN, "test")
    assert swarm_of_config(config) == SwarmName("test", "gsm8k", f"31337:{CONTRACT.lower()}")
    data = logged(tmp_path, settings(kind="gsm8k", contract=f"31337:{CONTRACT.lower()}"))
    assert swarm_of_log(data) == swarm_of_config(config)
    refuse_other_swarm(data, swarm_of_config(config))


@pytest.mark.parametrize(
    "asked",
    [SwarmName("other"), SwarmName("test", "gsm8k", ""), SwarmName("test", "digits", "31337:0x1")],
    ids=["id", "kind", "contract"],
)
def test_another_swarm_is_refused_with_both_names_and_the_way_out(tmp_path: Path, asked: SwarmName) -> None:
    data = logged(tmp_path, settings(kind="digits"))
    with pytest.raises(OtherSwarm) as caught:
        refuse_other_swarm(data, asked)
    assert "test (kind digits, no chain)" in caught.value.message and str(asked) in caught.value.message
    assert f"swarmd join MANIFEST --dir NEW --identity {tmp_path / 'identity.key'}" in caught.value.fix


def test_a_directory_without_a_log_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    refuse_other_swarm(NodeDirectory(tmp_path), SwarmName("any"))
    assert swarm_of_log(NodeDirectory(tmp_path)) is None


def test_a_node_does_not_start_on_another_swarms_log(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.start()
        node.until_finished()
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
