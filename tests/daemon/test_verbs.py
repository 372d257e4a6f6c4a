"""`swarmd run` and `swarmd status` as a person calls them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.cli.status import read_status
from swarmd.paths import NodeDirectory
from tests.daemon.node import fake_node


def swarmd(*args: str) -> tuple[int, str]:
    called = subprocess.run(
        [sys.executable, "-m", "swarmd", *args],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "100"},
    )
    return called.returncode, called.stdout + called.stderr


def test_status_of_a_running_a_stuck_and_a_dead_node(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.run_rounds()
        node.worker_pid("network")
        code, text = swarmd("status", str(node.paths.root))
        assert code == 0 and "running" in text and "the swarm has run its rounds" in text
        code, text = swarmd("status", "--config", str(node.config), "--json")
        assert code == 0 and json.loads(text)["source"] == "daemon"

        node.signal(signal.SIGSTOP)
        try:
            code, text = swarmd("status", str(node.paths.root), "--json")
        finally:
            node.signal(signal.SIGCONT)
        status = json.loads(text)
        assert code == 1 and status["process"]["state"] == "mute"
        assert "does not answer" in status["process"]["reason"] and len(status["rewards"]) == 2

        node.signal(signal.SIGKILL)
        node.wait()
        code, text = swarmd("status", str(node.paths.root))
        assert code == 1 and "no daemon answers" in text
        code, text = swarmd("status", str(node.paths.root), "--json")
        assert json.loads(text)["process"]["state"] == "dead"


def test_status_of_a_node_that_stopped_tells_its_exit_code(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.start(trainer="fault")
        assert node.wait() == 66
        code, text = swarmd("status", str(node.paths.root), "--json")
        process = json.loads(text)["process"]
        assert (code, process["state"], process["exit_code"]) == (1, "stopped", 66)
        assert "there is no model in /nowhere" in process["reason"]


def test_an_answer_of_another_version_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events").mkdir()
    monkeypatch.setattr("swarmd.observe.control.send_request", lambda path, verb, within_s: b'{"at": null}')
    status = read_status(NodeDirectory(tmp_path))
    assert status.process.state == "mute" and "another version" in status.process.reason
