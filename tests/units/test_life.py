"""A node's life under a real systemd, with scripted workers: ready, watched, restarted, stopped."""

from __future__ import annotations

import time

from swarmd.core.events import NodeStarted, NodeStopped, StageTrained
from swarmd.eventlog.offline.replay import verify
from swarmd.units.settings import PERMANENT
from tests.units.nodes import Node, node_on
from tests.units.private_systemd import VENV, PrivateSystemd

RESTARTED = {1, 3, 75, 130, 143}  # docs/OPERATING.md; 3 belongs to commands that are no service
ENDS = f"""#!{VENV}/bin/python
import os, signal, socket, sys
endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
endpoint.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "kill" else sys.exit(int(sys.argv[1]))
"""


def test_start_returns_when_the_first_event_is_on_disk(machine: PrivateSystemd) -> None:
    with node_on(machine, "") as node:
        node.lay()
        node.fake(network="deaf", trainer="deaf")  # workers that never get ready do not delay it
        node.systemctl("start")
        assert node.show("ActiveState") == "active"
        assert len(node.events_of(NodeStarted)) == 1
        assert (node.show("Type"), node.show("WatchdogUSec")) == ("notify", "1min")
        assert node.show("MainPID") == str(node.until(node.status)["process"]["pid"])


def test_a_program_that_never_says_ready_is_not_started(machine: PrivateSystemd) -> None:
    with node_on(machine, "mute") as node:
        node.lay()
        node.execute("/bin/sleep 600", "TimeoutStartSec=1", "Restart=no")
        assert machine.call("systemctl", "start", node.unit).returncode != 0
        assert node.show("Result") == "timeout"


def test_systemctl_status_tells_the_state_of_the_node(machine: PrivateSystemd) -> None:
    with node_on(machine, "told") as node:
        node.lay(rounds=3)
        node.fake()
        node.systemctl("start")
        node.until_finished()
        node.until(lambda: "round 3 stage 0, network up" in node.show("StatusText"))
        assert f'Status: "{node.show("StatusText")}' in machine.run("systemctl", "status", "--no-pager", node.unit)


def test_a_stuck_daemon_is_killed_and_started_again(machine: PrivateSystemd) -> None:
    with node_on(machine, "stuck") as node:
        node.lay(rounds=0)
        node.fake("WatchdogSec=4", "TimeoutAbortSec=1")
        node.systemctl("start")
        node.until(lambda: len(node.events_of(StageTrained)) >= 2)
        machine.run("kill", "-STOP", node.show("MainPID"))
        node.until(lambda: len(node.events_of(NodeStarted)) == 2)
        assert int(node.show("NRestarts")) == 1
        assert "Watchdog timeout" in node.journal()
        trained = len(node.events_of(StageTrained))
        node.until(lambda: len(node.events_of(StageTrained)) > trained)


def test_a_trainer_that_hangs_does_not_trouble_the_watchdog(machine: PrivateSystemd) -> None:
    with node_on(machine, "patient") as node:
        node.lay()
        node.fake("WatchdogSec=2", trainer="deaf")
        node.systemctl("start")
        before_s = time.monotonic()
        node.until(lambda: time.monotonic() - before_s > 5)  # more than twice the limit
        assert (node.show("NRestarts"), node.show("ActiveState")) == ("0", "active")


def test_each_exit_code_is_restarted_or_left_alone_as_the_manual_says(machine: PrivateSystemd) -> None:
    machine.put("/opt/ends", ENDS, 0o755)
    ends = ["0", "kill", *(str(code) for code in sorted({*PERMANENT, *RESTARTED}))]
    nodes = {end: Node(machine, f"ends-{end}") for end in ends}
    nodes["0"].lay()
    for end, node in nodes.items():
        machine.put(node.config, "")
        machine.put(f"/etc/systemd/system/{node.unit}.d/90.conf", f"[Service]\nExecStart=\nExecStart=/opt/ends {end}\n")
    machine.put("/etc/systemd/system/swarmd@.service.d/10.conf", "[Service]\nRestartSec=200ms\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "--no-block", *(node.unit for node in nodes.values()))
    restarted = {end for end in ends if end != "0" and end not in map(str, PERMANENT)}
    for end in restarted:
        nodes[end].until(lambda end=end: int(nodes[end].show("NRestarts")) >= 1)
    states = {end: (node.show("NRestarts"), node.show("ActiveState")) for end, node in nodes.items()}
    files = "/etc/systemd/system/swarmd@.service.d /etc/systemd/system/swarmd@ends-*"
    machine.run("sh", "-c", f"systemctl stop 'swarmd@ends-*'; rm -r {files}; systemctl reset-failed 'swarmd@ends-*'")
    assert {end for end, (restarts, _) in states.items() if restarts != "0"} == restarted
    assert all(states[str(code)] == ("0", "failed") for code in PERMANENT)
    assert states["0"] == ("0", "inactive")


def test_the_start_limit_ends_a_crash_loop_and_that_is_told(machine: PrivateSystemd) -> None:
    with node_on(machine, "loop") as node:
        node.lay()
        telling = "[Service]\nExecStart=\nExecStart=/bin/sh -c 'echo told of $MONITOR_UNIT'\n"
        machine.put("/etc/systemd/system/swarmd-failure@loop.service.d/90.conf", telling)
        node.execute("/bin/false", "RestartSec=20ms")
        machine.call("systemctl", "start", node.unit)
        node.until(lambda: "Start request repeated too quickly" in node.journal())
        assert node.show("ActiveState") == "failed"
        assert node.journal().count("Main process exited") == 10
        assert node.journal().count("Triggering OnFailure=") == 1
        failure = ("journalctl", "--unit=swarmd-failure@loop.service", "--output=cat")
        node.until(lambda: f"told of {node.unit}" in machine.run(*failure))
        machine.run("rm", "-r", "/etc/systemd/system/swarmd-failure@loop.service.d")


def test_a_wrong_configuration_fails_the_start_once_with_its_reason(machine: PrivateSystemd) -> None:
    with node_on(machine, "wrong") as node:
        node.lay()
        machine.put(node.config, "[swarm]\nid = 'x'\nno_such_key = 1\n")
        assert machine.call("systemctl", "start", node.unit).returncode != 0
        assert (node.show("ExecMainStatus"), node.show("NRestarts")) == ("78", "0")
        assert "no_such_key" in node.journal()


def test_a_stop_leaves_no_process_and_no_socket(machine: PrivateSystemd) -> None:
    with node_on(machine, "clean") as node:
        node.lay()
        node.fake(network="spawn", trainer="hang")  # one with a child of its own, one that has to be killed
        node.systemctl("start")
        node.until(lambda: (node.paths.root / "grandchild").exists())
        group = node.show("ControlGroup")
        assert len(node.processes()) >= 4
        begun_s = time.monotonic()
        node.systemctl("enable")  # so that systemd still knows how it ended
        node.systemctl("stop")
        assert time.monotonic() - begun_s < 25
        assert (node.show("Result"), node.show("ExecMainStatus")) == ("success", "0")
        assert node.events()[-1] == NodeStopped("signal SIGTERM")
        assert not machine.path(f"/sys/fs/cgroup{group}").exists()
        assert not node.paths.control.exists()
        verify(node.paths.events)


def test_a_daemon_that_cannot_stop_is_killed_at_the_deadline(machine: PrivateSystemd) -> None:
    with node_on(machine, "deadline") as node:
        node.lay()
        node.fake("TimeoutStopSec=1", network="spawn")
        node.systemctl("start")
        node.until(lambda: (node.paths.root / "grandchild").exists())
        group = node.show("ControlGroup")
        machine.run("kill", "-STOP", node.show("MainPID"))
        node.systemctl("stop")
        assert not machine.path(f"/sys/fs/cgroup{group}").exists()
        verify(node.paths.events)


def test_restarts_and_kills_in_the_middle_of_rounds_train_none_twice(machine: PrivateSystemd) -> None:
    with node_on(machine, "rounds") as node:
        node.lay(rounds=0)
        node.fake()
        node.systemctl("start")
        lives = 1
        for interrupt in ("restart", "kill", "restart"):
            trained = len(node.events_of(StageTrained))
            node.until(lambda trained=trained: len(node.events_of(StageTrained)) >= trained + 2)
            node.systemctl(interrupt, *(["--signal=KILL"] if interrupt == "kill" else []))
            lives += 1
            node.until(lambda lives=lives: len(node.events_of(NodeStarted)) == lives)
        trained = len(node.events_of(StageTrained))
        node.until(lambda: len(node.events_of(StageTrained)) > trained)
        node.systemctl("stop")
        rounds = [event.round for event in node.events_of(StageTrained)]
        assert rounds == list(range(len(rounds))), "a round was trained twice, or skipped"
        verify(node.paths.events)
