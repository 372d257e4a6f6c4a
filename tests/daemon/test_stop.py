"""`swarmd stop`: at once, and as soon as that costs no round. The test is the swarm's clock and the trainer's pace."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.cli import run_command, stop
from swarmd.core.events import NodeStarted, ReportPublished, RoundsSkipped, StageTrained
from swarmd.errors import ControlError, ExitCode
from tests.daemon.node import FakeNode, fake_node, is_alive

PEER = "12D3KooWBmAwcd4PJNJvfV89HwE48nwkRmAgo8Vy3uQEyNNHBox2"


@pytest.fixture
def member(tmp_path: Path) -> Iterator[FakeNode]:
    """A follower that is amid the training of round 0."""
    with fake_node(tmp_path) as node:
        text = node.config.read_text().replace('role = "coordinator"', 'role = "follower"')
        text = text.replace('id = "test"', f'id = "test"\ncoordinator = "{PEER}"')
        node.config.write_text(f'{text}[dht]\nbootstrap = ["/ip4/192.0.2.1/tcp/1/p2p/{PEER}"]\n')
        node.paths.root.mkdir()
        set_round(node, 0)
        node.start(network="clock", trainer="gated")
        node.until(lambda: node.status().get("round", {}).get("state") == "round.training")
        yield node


def set_round(node: FakeNode, round: int) -> None:
    new = node.paths.root / "round.new"
    new.write_text(str(round))
    new.rename(node.paths.root / "round")


def go_on(node: FakeNode) -> None:
    """Train whatever comes, and run the node through round 1, which opened while it was away."""
    set_round(node, 1)
    for round in range(2):
        (node.paths.root / f"trained-{round}").touch()
    node.start(network="clock", trainer="gated")
    node.until(lambda: any(report.round == 1 for report in node.events_of(ReportPublished)))


def stop_command(node: FakeNode, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "swarmd", "stop", str(node.paths.root), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    )


def test_a_stop_when_safe_waits_for_the_report_and_loses_no_round(member: FakeNode) -> None:
    moment = member.status()["safe_to_stop"]
    assert not moment["now"] and moment["why"] == "round 0 is being trained, and would be trained again"
    waiting = stop_command(member, "--when-safe", "--within", "60")
    assert waiting.stdout is not None and "round 0 is being trained" in waiting.stdout.readline()
    assert is_alive(member.pid) and not member.events_of(StageTrained)
    (member.paths.root / "trained-0").touch()
    assert "stopped" in waiting.communicate(timeout=60)[0]
    assert waiting.returncode == ExitCode.OK and member.wait() == 0
    assert member.events_of(ReportPublished)
    go_on(member)
    assert [trained.round for trained in member.events_of(StageTrained)] == [0, 1]
    assert member.events_of(RoundsSkipped) == []


def test_a_stop_at_the_worst_moment_loses_the_round(member: FakeNode) -> None:
    assert run_command(["stop", str(member.paths.root)]) == ExitCode.OK
    assert member.wait() == 0
    go_on(member)
    assert [trained.round for trained in member.events_of(StageTrained)] == [1]
    assert [(skipped.first, skipped.cause) for skipped in member.events_of(RoundsSkipped)] == [(0, "stopped")]


def test_a_node_without_a_safe_moment_runs_on(member: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["stop", str(member.paths.root), "--when-safe", "--within", "0"]) == ExitCode.FAILURE
    assert "the node runs on: round 0 is being trained" in capsys.readouterr().err
    (member.paths.root / "trained-0").touch()
    member.until(lambda: member.status()["safe_to_stop"]["now"])
    saving = member.paths.checkpoints / ".saving-1-0-0"
    saving.mkdir(parents=True)
    assert "checkpoint" in member.status()["safe_to_stop"]["why"]
    saving.rmdir()
    moment = member.status()["safe_to_stop"]
    assert moment["why"] == "round 0 is done, and the next stage is not announced yet"
    assert moment["now"] and moment["in_s"] == 0 and 0 <= moment["back_within_s"] < 60
    assert len(member.events_of(NodeStarted)) == 1


def test_what_does_not_run_is_not_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_node(tmp_path) as node:
        node.run_rounds()
        assert node.status()["safe_to_stop"]["now"], "alone, with all rounds run"
        assert node.stop() == 0
        assert run_command(["stop", str(node.paths.root)]) == ExitCode.OK
        assert "does not run" in capsys.readouterr().out
    assert run_command(["stop", str(node.paths.root), "--within", "3"]) == ExitCode.BAD_CONFIG


def test_a_daemon_that_does_not_end_is_named_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "ENDED_S", 0.2)
    with pytest.raises(ControlError, match=f"process {os.getpid()} still runs after 0.2 s"):
        stop.wait_until_ended(os.getpid())
