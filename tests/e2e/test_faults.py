"""What breaks is restarted alone, and the same round goes on.

The node of which every process is killed in turn has a real trainer; the others' are scripted, for what is looked at is
how nodes find each other, wait, and skip.
"""

import os
import signal
import subprocess

import pytest

from swarmd.core.events import LinkDown, RoundsSkipped, WorkerExited
from tests.e2e.audit import events_of
from tests.e2e.conftest import PATIENCE_S, Swarm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def p2pd_of(network_pid: int) -> int:
    """The p2pd that a network worker runs."""
    children = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(network_pid)], capture_output=True, text=True)
    found = [int(line.split()[0]) for line in children.stdout.splitlines() if "p2pd" in line]
    assert found, children.stdout
    return found[0]


def skips_of(swarm: Swarm, number: int) -> list[RoundsSkipped]:
    events = events_of(swarm.places[number - 1].events)
    return [event for event in events if isinstance(event, RoundsSkipped)]


def count(swarm: Swarm, number: int, kind: type) -> int:
    return sum(isinstance(event, kind) for event in events_of(swarm.places[number - 1].events))


@pytest.mark.nodes(2, trained=(2,))
def test_each_process_killed_in_turn_finishes_its_round(swarm: Swarm) -> None:
    """kill -9 of trainer, network worker, p2pd and both daemons, each in the middle of training: no round is lost."""
    swarm.run(rounds=6, training__steps=12)
    for round, victim in enumerate(("trainer", "network", "p2pd", "daemon", "coordinator")):
        number = 1 if victim == "coordinator" else 2
        swarm.wait_round(number, round)
        swarm.wait_state(number, "round.training")
        kill(swarm, victim)
    swarm.wait_over()
    swarm.stop()
    for name, history in swarm.histories().items():
        assert [trained.round for trained in history] == [0, 1, 2, 3, 4, 5], name
    assert skips_of(swarm, 2) == []
    assert count(swarm, 2, WorkerExited) >= 2
    assert count(swarm, 2, LinkDown) >= 1


def kill(swarm: Swarm, victim: str) -> None:
    """kill -9 one process of node 2, or the coordinator itself; a daemon is started again, as systemd would."""
    if victim in ("daemon", "coordinator"):
        daemon = swarm.daemons[1 if victim == "daemon" else 0]
        daemon.send_signal(signal.SIGKILL)
        assert daemon.wait_for_exit(PATIENCE_S)
        daemon.start()
        return
    known = swarm.told(2)
    pids = {
        "trainer": lambda: known.training.worker.pid,
        "network": lambda: known.network.worker.pid,
        "p2pd": lambda: p2pd_of(known.network.worker.pid),
    }
    os.kill(pids[victim](), signal.SIGKILL)


@pytest.mark.nodes(2)
def test_a_late_joiner_skips_what_is_over(swarm: Swarm) -> None:
    swarm.prepare(rounds=0, coordinator__min_peers=1)
    swarm.daemons[0].start()
    swarm.wait_round(1, 2)
    swarm.daemons[1].start()
    swarm.wait_until(lambda: len(swarm.histories()["node-2"]) >= 3, PATIENCE_S, "three rounds of the late joiner")
    swarm.stop()
    skip, *later = skips_of(swarm, 2)
    assert (skip.first, skip.cause) == (0, "late") and skip.last >= 1
    assert not [each for each in later if each.cause == "late"]
    first = swarm.histories()["node-2"][0].round  # a round that it joins may close before a busy machine has trained it
    skipped = [round for each in (skip, *later) for round in range(each.first, each.last + 1)]
    assert skipped[:first] == list(range(first)), "each round before the first that it trained"


@pytest.mark.soak
@pytest.mark.nodes(2)
def test_a_stopped_node_skips_and_says_so(swarm: Swarm) -> None:
    """SIGSTOP of a whole node: the other goes on at the stage's deadline, and the node joins it again."""
    swarm.run(rounds=0, coordinator__stage_s=5.0, coordinator__when_alone="go-on")
    swarm.wait_round(2, 1)
    known = len(skips_of(swarm, 2))
    frozen = [swarm.daemons[1].pid, *swarm.processes_of(2)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        reached = swarm.working_round(1)
        swarm.wait_until(lambda: swarm.working_round(1) >= reached + 3, PATIENCE_S, "the other to go on")
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    swarm.wait_round(2, swarm.working_round(1))
    skips = skips_of(swarm, 2)
    assert skips[known:]
    assert {skip.cause for skip in skips[known:]} <= {"slow", "fault"}
    shown = swarm.told(2).round
    assert shown.skipped == sum(skip.last - skip.first + 1 for skip in skips)
