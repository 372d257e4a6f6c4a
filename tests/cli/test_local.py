"""`swarmd local` as a newcomer uses it: it trains, tells, continues, and leaves nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from swarmd.cli.local_swarm import LocalSwarm, local_node_directories, read_history
from swarmd.config import load_config
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.replay import verify_log

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PATIENCE_S = 400.0
ENDED_S = 25.0  # twice workers.stop_s, and the daemon's slack
SMALL = ("--nodes", "1", "--steps", "2", "--set", "training.held_out_questions=4", "--set", "training.questions=5")


def start_local(directory: Path, arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "swarmd", "local", "--dir", str(directory), *SMALL, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_local(directory: Path, *arguments: str) -> str:
    """What it printed; it must end with 0."""
    process = start_local(directory, arguments)
    try:
        shown, told = process.communicate(timeout=PATIENCE_S)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    assert process.returncode == 0, shown + told
    return shown


def nothing_is_left(directory: Path) -> None:
    """No process, socket or port of the swarm."""
    swarm = LocalSwarm(directory, nodes=1)
    assert swarm.find_leftover_pids() == []
    for place in swarm.places:
        assert [path for path in place.root.rglob("*") if path.is_socket()] == []
    port = int(load_config(swarm.places[0].config).dht.listen[0].rpartition("/")[2])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_it_trains_tells_and_continues(tmp_path: Path) -> None:
    first = run_local(tmp_path, "--rounds", "2")
    nothing_is_left(tmp_path)
    (place,) = local_node_directories(tmp_path, 1)
    assert [row.round for row in read_history(place.events)] == [0, 1]
    assert "reward by round" in first
    assert "held-out accuracy" in first
    assert "learning:" not in first, "only what was wrong with it is told"
    replay = re.search(r"replay one: +(.*)", first)
    assert replay is not None
    assert replay[1].endswith(f"replay {tmp_path}/node-1")

    second = run_local(tmp_path, "--rounds", "1")
    nothing_is_left(tmp_path)
    assert [row.round for row in read_history(place.events)] == [0, 1, 2]
    assert re.search(r"^│ +2 │ +0\.\d{3} │", second, re.MULTILINE)
    assert verify_log(place.events).events > 0
    state, _ = load_state(place.events)
    assert (state.chart, state.exit_code, state.rounds_skipped) == ("stopped", 0, 0)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_ends_all_of_it_within_seconds(tmp_path: Path, number: signal.Signals) -> None:
    process = start_local(tmp_path, ["--rounds", "0", "--set", "training.steps=500"])
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "round.training" in line:
                break
        os.kill(process.pid, number)
        shown, told = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, shown + told
    ended = re.search(r"all nodes ended in ([\d.]+) s", shown)
    assert ended is not None
    assert float(ended[1]) < ENDED_S
    nothing_is_left(tmp_path)
