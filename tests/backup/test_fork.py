"""Forks: a node of another identity from a log's prefix, which replays, goes on, and never signs as the first one."""

import hashlib
from pathlib import Path

import pytest

from swarmd.backup.fork import adapt_config, fork_node
from swarmd.cli import run_command
from swarmd.config import load_config
from swarmd.core.events import NodeForked, NodeStarted, StageTrained
from swarmd.dht.identity.identity import load_identity
from swarmd.errors import ConfigError, ExitCode, LogForeign, NotFoundError, PathUnusable, SwarmdError
from swarmd.eventlog.fold import load_state, peer_id_of_log
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.replay import check_log, verify_log
from swarmd.eventlog.snapshot import encode_state, list_snapshots
from swarmd.eventlog.store import EventLog, compact_event_log
from swarmd.paths import NodeDirectory
from tests.backup.making import SECRET, make_checkpoint, make_node
from tests.daemon.node import fake_node

CONFIG = 'name = "second"\nrole = "coordinator"\n[swarm]\nid = "test"\n[dht]\nidentity = "../first/identity.key"\n'
CHAINED = """
[swarm]
id = "test"
coordinator = "12D3KooWBmAwcd4PJNJvfV89HwE48nwkRmAgo8Vy3uQEyNNHBox2"
[dht]
bootstrap = ["/ip4/192.0.2.1/tcp/1/p2p/12D3KooWBmAwcd4PJNJvfV89HwE48nwkRmAgo8Vy3uQEyNNHBox2"]
[training.reference]
url = "http://127.0.0.1:1"
token = "token.txt"
[chain]
rpc = ["http://127.0.0.1:2"]
chain_id = 5
contract = "0xcccccccccccccccccccccccccccccccccccccccc"
"""


@pytest.fixture
def first(tmp_path: Path) -> NodeDirectory:
    data = make_node(tmp_path / "first")
    data.config.write_text(CONFIG)
    return data


def tree(root: Path) -> dict[str, str]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def trained_at(data: NodeDirectory, round: int) -> int:
    return next(
        commit.end_seq - 1
        for commit in read_commits(data.events)
        if any(isinstance(event, StageTrained) and event.round == round for event in commit.events)
    )


@pytest.mark.parametrize("compacted", [False, True])
def test_a_fork_is_its_parent_up_to_the_event_and_replays(
    tmp_path: Path, first: NodeDirectory, compacted: bool
) -> None:
    if compacted:
        compact_event_log(first.events, 3000)
        assert list_snapshots(first.events)
    before, new = tree(first.root), NodeDirectory(tmp_path / "new")
    options = [] if compacted else ["--round", "2"]
    assert run_command(["fork", str(first.root), str(new.root), *options]) == ExitCode.OK
    assert tree(first.root) == before, "the first node's directory is only read"
    verify_log(new.events)
    commits = list(read_commits(new.events))
    own = commits.pop()
    assert own.events == (NodeForked(peer_id_of_log(first.events), own.events[0].version),)
    assert commits == [commit for commit in read_commits(first.events) if commit.end_seq <= own.seq]
    state, _ = load_state(new.events)
    assert state.done == ((3, 0) if compacted else (2, 0)) and state.floor == state.done[0] + 1
    assert not state.pending and not state.deadlines and state.work is None and state.settings is None
    assert [path.name for path in new.checkpoints.iterdir()] == [f"r{state.done[0]:09d}-s0000"]


def test_a_fork_never_signs_as_the_first_node(tmp_path: Path, first: NodeDirectory) -> None:
    made = fork_node(first, first.config, tmp_path / "new")
    new = NodeDirectory(tmp_path / "new")
    assert load_identity(new.identity).peer_id == made.peer == peer_id_of_log(new.events) != made.parent
    assert load_config(new.config).dht.identity == "identity.key" and "dht.identity" in made.left_out
    contents = [path.read_bytes() for path in new.root.rglob("*") if path.is_file()]
    assert not any(secret in content for content in contents for secret in (SECRET, first.identity.read_bytes()))
    with pytest.raises(LogForeign, match=f"belongs to node {made.peer}, this node is {made.parent}"):
        EventLog.open(new.events, made.parent, "run2")


def test_a_fork_goes_on_and_can_be_forked(tmp_path: Path, first: NodeDirectory) -> None:
    made = fork_node(first, first.config, tmp_path / "second", at=trained_at(first, 1))
    second = NodeDirectory(tmp_path / "second")
    with EventLog.open(second.events, made.peer, "run2") as log:
        log.write_snapshot(load_state(second.events)[0])
    again = fork_node(second, second.config, tmp_path / "third")
    third = NodeDirectory(tmp_path / "third")
    assert again.parent == made.peer and check_log(third.events).node == again.peer
    assert load_state(third.events)[0].forked_from == made.peer
    verify_log(third.events)


def test_what_is_gone_is_not_forked(tmp_path: Path, first: NodeDirectory) -> None:
    new = tmp_path / "new"

    def refusal(kind: type[SwarmdError], **where: int) -> str:
        with pytest.raises(kind) as raised:
            fork_node(first, first.config, (where.pop("inside", False) and first.root / "new") or new, **where)
        assert not new.exists()
        return f"{raised.value.message}; {raised.value.fix}"

    assert "Name one up to" in refusal(NotFoundError, at=10_000)
    assert "did not train round 77" in refusal(NotFoundError, round=77)
    assert "is only read" in refusal(PathUnusable, inside=True)
    for number in (0, 1):
        first.checkpoints.joinpath(f"r{number:09d}-s0000").rename(tmp_path / f"gone-{number}")
    said = refusal(NotFoundError, round=1)
    assert "kept of rounds: 3, 2" in said and "`--round 3`" in said
    compact_event_log(first.events)
    assert "was removed from the log" in refusal(NotFoundError, at=0)


def test_before_anything_was_trained_no_checkpoint_is_needed(tmp_path: Path, first: NodeDirectory) -> None:
    assert fork_node(first, first.config, tmp_path / "new", at=trained_at(first, 0) - 2).checkpoint == ""
    assert not NodeDirectory(tmp_path / "new").checkpoints.exists()
    verify_log(tmp_path / "new" / "events")


def test_of_the_settings_all_that_is_the_first_nodes_own_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CHAINED)
    _, config, left_out = adapt_config(file)
    assert left_out == ("chain", "training.reference.token", "swarm.coordinator", "dht.bootstrap")
    assert config.role == "coordinator" and config.chain is None and config.training.reference.url
    file.write_text('[swarm]\nid = "test"\n')
    with pytest.raises(ConfigError, match="a follower needs") as raised:
        adapt_config(file)
    assert "--config FILE" in raised.value.fix


def test_a_forked_daemon_takes_part_from_the_next_round_on(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.run_rounds()
        make_checkpoint(node.paths, 1)
        arguments = [str(node.paths.root), str(tmp_path / "new" / "data"), "--config", str(node.config)]
        assert run_command(["fork", *arguments]) == ExitCode.OK, "while it runs"
        assert node.stop() == 0
    (tmp_path / "new" / "home").mkdir()
    with fake_node(tmp_path / "new" / "home", data=tmp_path / "new" / "data", rounds=4) as second:
        second.run_rounds()
        assert second.status()["forked_from"] == node.events_of(NodeStarted)[0].settings.peer
        assert second.stop() == 0
        assert [trained.round for trained in second.events_of(StageTrained)] == [0, 1, 2, 3]
        verify_log(second.paths.events)
        peers = [started.settings.peer for started in second.events_of(NodeStarted)]
        assert len(peers) == len(set(peers)) == 2


def test_a_fork_has_the_state_of_its_parent(tmp_path: Path, first: NodeDirectory) -> None:
    """Snapshots of the parent are those of the fork: `verify` compares them with the fold."""
    with EventLog.open(first.events, peer_id_of_log(first.events), "run2", segment_bytes=1500) as log:
        log.write_snapshot(load_state(first.events)[0])
    fork_node(first, first.config, tmp_path / "new")
    new = NodeDirectory(tmp_path / "new")
    assert [path.name for path in list_snapshots(new.events)] == [path.name for path in list_snapshots(first.events)]
    verify_log(new.events)
    assert encode_state(load_state(new.events)[0]) != encode_state(load_state(first.events)[0])
