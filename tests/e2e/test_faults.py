"""What breaks is restarted alone, and the same round goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from swarmd.core.events import LinkDown, RoundAnnounced, RoundsSkipped, WorkerExited
from swarmd.observe.status import Status
from tests.e2e.audit import events_of
from tests.e2e.conftest import Swarm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def status(swarm: Swarm, number: int) -> Status:
    answer = swarm.status(number)
    assert answer is not None, f"node {number} does not answer"
    return answer


def is_degraded(swarm: Swarm, number: int) -> bool:
    answer = swarm.status(number)
    return answer is not None and answer.network.state == "degraded"


def p2pd_of(network_pid: int) -> int:
    """The p2pd that a network worker runs."""
    children = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(network_pid)], capture_output=True, text=True)
    found = [int(line.split()[0]) for line in children.stdout.splitlines() if "p2pd" in line]
    assert found, children.stdout
    return found[0]


def skips_of(swarm: Swarm, number: int) -> list[RoundsSkipped]:
    events = events_of(swarm.places[number - 1].paths.events)
    return [event for event in events if isinstance(event, RoundsSkipped)]


def count(swarm: Swarm, number: int, kind: type) -> int:
    return sum(isinstance(event, kind) for event in events_of(swarm.places[number - 1].paths.events))


def test_each_process_killed_in_turn_finishes_its_round(swarm: Swarm) -> None:
    """kill -9 of trainer, network worker, p2pd and daemon, each in the middle of training: no round is lost."""
    swarm.run(rounds=6, training__steps=12)
    for round, victim in enumerate(("trainer", "network", "p2pd", "daemon")):
        swarm.wait_round(2, round)
        swarm.wait_state(2, "round.training")
        kill(swarm, victim)
    swarm.wait_over(180)
    swarm.stop()
    assert [trained.round for trained in swarm.histories()["node-2"]] == [0, 1, 2, 3, 4, 5]
    assert skips_of(swarm, 2) == []
    assert count(swarm, 2, WorkerExited) >= 2
    assert count(swarm, 2, LinkDown) >= 1


def kill(swarm: Swarm, victim: str) -> None:
    """kill -9 one process of node 2; a killed daemon is started again, as systemd would."""
    known = status(swarm, 2)
    if victim == "daemon":
        swarm.daemons[1].send(signal.SIGKILL)
        assert swarm.daemons[1].wait(5)
        swarm.daemons[1].start()
        return
    pids = {
        "trainer": lambda: known.training.worker.pid,
        "network": lambda: known.network.worker.pid,
        "p2pd": lambda: p2pd_of(known.network.worker.pid),
    }
    os.kill(pids[victim](), signal.SIGKILL)


def test_a_late_joiner_skips_what_is_over(swarm: Swarm) -> None:
    swarm.prepare(rounds=5, coordinator__min_peers=2)
    for daemon in swarm.daemons[:2]:
        daemon.start()
    swarm.wait_round(1, 2)
    swarm.daemons[2].start()
    swarm.wait_over()
    (skip,) = skips_of(swarm, 3)
    assert (skip.first, skip.cause) == (0, "late")
    joined = [trained.round for trained in swarm.histories()["node-3"]]
    assert joined == list(range(skip.last + 1, 5))


def test_a_stopped_node_skips_and_says_so(swarm: Swarm) -> None:
    """SIGSTOP of a whole node: the others go on at the stage's deadline, and the node joins them again."""
    swarm.run(rounds=0, coordinator__stage_s=5.0)
    swarm.wait_round(3, 1)
    frozen = [swarm.daemons[2].pid, *swarm.processes_of(3)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        reached = swarm.working_round(1)
        swarm.wait_until(lambda: swarm.working_round(1) >= reached + 3, 90, "the others to go on")
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    swarm.wait_round(3, swarm.working_round(1))
    skips = skips_of(swarm, 3)
    assert skips
    assert {skip.cause for skip in skips} <= {"slow", "fault"}
    shown = status(swarm, 3).round
    assert shown.skipped == sum(skip.last - skip.first + 1 for skip in skips)


def test_a_killed_coordinator_goes_on_where_it_was(swarm: Swarm) -> None:
    swarm.run(rounds=4)
    swarm.wait_round(1, 1)
    swarm.wait_state(1, "round.training")
    swarm.daemons[0].send(signal.SIGKILL)
    assert swarm.daemons[0].wait(5)
    swarm.daemons[0].start()
    swarm.wait_over()
    swarm.stop()
    for name, history in swarm.histories().items():
        assert [trained.round for trained in history] == [0, 1, 2, 3], name


def test_bootstrap_peers_that_come_late_are_waited_for(swarm: Swarm) -> None:
    swarm.prepare(rounds=2)
    for daemon in swarm.daemons[1:]:
        daemon.start()
    swarm.wait_until(lambda: all(is_degraded(swarm, number) for number in (2, 3)), 60, "nodes that find nobody")
    time.sleep(3)  # a few more attempts
    for number in (2, 3):
        shown = status(swarm, number)
        assert is_degraded(swarm, number)
        assert shown.network.reason
        assert shown.round.state == "joining"
    swarm.daemons[0].start()
    swarm.wait_over()
    assert count(swarm, 2, RoundAnnounced) >= 2
