"""`swarmd timeline`: from the command line."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from swarmd.backup.backup import BackupPlan, make_backup
from swarmd.backup.bundle import write_bundle
from swarmd.core import events
from swarmd.errors import ExitCode
from swarmd.paths import NodeDirectory
from tests.cli.owning import Shell
from tests.golden.play import play, write_log
from tests.observe.scripted import ScriptedSwarm, peer_of

SKEWS = (0.0, 300.0, -300.0)


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    """Three nodes of five rounds; node 2 was down for the last but one."""
    swarm = ScriptedSwarm(tmp_path / "swarm", SKEWS)
    for round_ in range(3):
        swarm.play(round_)
    swarm.play(3, without=[2], gathered={0: [1], 1: [0]})
    swarm.start(2)
    swarm.log(2, events.RoundsSkipped(3, 3, "fault"), after_s=0.5)
    swarm.play(4, gathered={0: [1], 1: [0], 2: [0, 1]})
    return swarm.write()


def test_the_last_round_is_told_line_by_line(shell: Shell, places: list[Path]) -> None:
    lines = shell.well("timeline", *places).splitlines()
    assert lines[0] == "round 4 of 3 nodes; times are by node-0's clock"
    assert lines[1].startswith("node-1's clock is 300.0 s (± 0.1 s) ahead of node-0's")
    assert lines[3] == "2027-01-15"
    assert lines[4] == "08:02:00.000  node-0  opened round 4 stage 0, for up to 30 s"
    assert lines[5].strip() == "→ heard by node-1 after 0.1 s, node-2 after 0.1 s"
    gathered = "node-2  gathered for round 4 stage 0: 12 groups of node-0, 12 groups of node-1"
    assert any(line.endswith(gathered) for line in lines)
    trained = next(index for index, line in enumerate(lines) if "node-1  trained round 4" in line)
    assert lines[trained + 1].strip() == "→ report seen by node-0 after 0.1 s"
    assert lines[trained + 2].strip() == "not fetched yet"
    assert not any("heard that" in line for line in lines)


def test_a_nodes_own_lane_tells_what_it_heard(shell: Shell, places: list[Path]) -> None:
    lines = shell.well("timeline", places[0].parent, "--node", "node-2", "--round", "1-2").splitlines()
    assert lines[0].startswith("rounds 1 to 2 of 3 nodes")
    told = [line for line in lines if line[2:3] == ":"]
    assert all("  node-2  " in line for line in told) and "heard that round 1 stage 0 is open" in told[0]


def test_what_became_of_rollouts_is_answered(shell: Shell, places: list[Path]) -> None:
    for name in ("node-1", "n1", peer_of(1), peer_of(1)[-6:]):
        text = shell.well("timeline", *places, "--of", name, "--round", 2)
        assert text.startswith("node-1 trained round 2 stage 0 and had 12 groups, digest ")
        assert "  node-0: It fetched 12 groups after" in text and "used 3 of them" in text
        assert "  node-2: It skipped round 3, cause: fault. Its process ended without an orderly stop" in text


def test_without_a_round_rollouts_are_followed_that_the_swarm_has_gone_on_from(
    shell: Shell, places: list[Path]
) -> None:
    assert "trained round 3 stage 0" in shell.well("timeline", *places, "--of", "node-0")


def test_json_has_a_line_for_each_node_and_event(shell: Shell, places: list[Path]) -> None:
    rows = [json.loads(line) for line in shell.well("timeline", *places, "--round", "all", "--json").splitlines()]
    nodes, told = rows[:3], rows[3:]
    assert [row["type"] for row in nodes] == ["node"] * 3 and round(nodes[1]["clock_correction_s"]) == -300
    assert {row["type"] for row in told} == {"event"}
    assert [row["time"] for row in told] == sorted(row["time"] for row in told)
    arrows = [each for row in told if row["event"] == "stage_trained" for each in row["arrows"]]
    assert {"used", "down", "not-yet"} <= {each["verdict"] for each in arrows}
    (answer,) = shell.well("timeline", *places, "--of", "node-1", "--round", 2, "--json").splitlines()
    verdicts = {each["receiver"]: each["verdict"] for each in json.loads(answer)["deliveries"]}
    assert verdicts == {"node-0": "used", "node-2": "down"}


def test_backups_and_bundles_stand_in_for_directories(shell: Shell, tmp_path: Path) -> None:
    world = play(3, nodes=3, hours=0.05, calm_s=30.0, faults=0.0, chain=False, hostile="none", stages=1)
    for node in world.nodes:
        write_log(tmp_path / node.peer / "events", node)
    first, second, third = (tmp_path / node.peer for node in world.nodes)
    expected = shell.well("timeline", first, second, third)
    make_backup(NodeDirectory(second), tmp_path / "b.tar.gz", BackupPlan(None, checkpoint=False))
    write_bundle(third / "events", tmp_path / "c.tar.gz", {"status.json": b"{}"}, (), 1 << 30)
    for place in (second, third):
        shutil.rmtree(place)
    assert shell.well("timeline", first, tmp_path / "b.tar.gz", tmp_path / "c.tar.gz") == expected


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--round", "x"), ExitCode.BAD_CONFIG, "--round 'x' is not a round"),
        (("--round", "7-3"), ExitCode.BAD_CONFIG, "Write --round 3-7"),
        (("--round", "99"), ExitCode.BAD_CONFIG, "they go up to round 4"),
        (("--page", "--round", "3"), ExitCode.BAD_CONFIG, "--page shows all nodes and the newest rounds"),
        (("--open",), ExitCode.BAD_CONFIG, "Give --page with them"),
        (("--page", "--listen", "0.0.0.0:0"), ExitCode.BAD_CONFIG, "token"),
        (("--of", "nobody"), ExitCode.BAD_CONFIG, "They are node-0, node-1, node-2"),
    ],
)
def test_bad_arguments_are_one_clear_error(
    args: tuple[str, ...], code: int, said: str, shell: Shell, places: list[Path]
) -> None:
    assert said in shell.fails(code, "timeline", *places, *args)


def test_places_that_are_no_logs_of_one_swarm_are_one_clear_error(
    shell: Shell, places: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(places[1], tmp_path / "copy")
    assert "are logs of one node" in shell.fails(ExitCode.BAD_CONFIG, "timeline", *places, tmp_path / "copy")
    (tmp_path / "text").write_text("hello")
    assert "neither a node's directory nor a backup" in shell.fails(
        ExitCode.BAD_CONFIG, "timeline", places[0], tmp_path / "text"
    )
    (tmp_path / "broken.tar.gz").write_bytes(b"\x1f\x8b" + bytes(100))
    assert "cannot be read" in shell.fails(ExitCode.BAD_DATA, "timeline", places[0], tmp_path / "broken.tar.gz")
    assert "nowhere" in shell.fails(ExitCode.NO_INPUT, "timeline", places[0], "nowhere")


def test_the_page_is_served_until_it_is_stopped(places: list[Path]) -> None:
    command = [sys.executable, "-m", "swarmd", "timeline", str(places[0].parent), "--page", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split("/  (")[0]
        view = httpx.get(f"{url}/api/v1/timeline", trust_env=False, timeout=20.0).json()
        assert [each["node"] for each in view["nodes"]] == ["node-0", "node-1", "node-2"] and view["last"] == 4
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20.0) in (ExitCode.OK, ExitCode.INTERRUPTED)
        process.stdout.close()
