"""Workers come, go, and come again within a budget."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from swarmd.core.commands import StopWorkers
from swarmd.core.events import (
    LinkDegraded,
    LinkUp,
    NodeStopped,
    TrainerReady,
    WorkerExited,
    WorkerStarted,
    WorkerStartFailed,
)
from swarmd.core.workers import LEAVING
from swarmd.errors import ExitCode
from tests.core.story import Story, announced, ids, settings


@pytest.fixture
def node() -> Story:
    return Story(settings(restarts_max=3))


def test_both_workers_are_started_at_once(node: Story) -> None:
    assert ids(node.start()) == ["start/network/run1/1", "start/trainer/run1/1"]


@pytest.mark.parametrize(("outside", "times"), [(False, 3), (True, 12)])
def test_restarts_wait_longer_each_time_and_ends_from_outside_cost_no_budget(
    node: Story, outside: bool, times: int
) -> None:
    node.join()
    waits = []
    for attempt in range(2, 2 + times):
        node.tell(WorkerExited("network", "killed", signal=9, outside=outside))
        waits.append(next(d.due_at for d in node.state.deadlines if d.name == "restart/network") - node.at)
        assert ids(node.wait("restart/network")) == [f"start/network/run1/{attempt}"]
        node.tell(WorkerStarted("network", 20 + attempt, attempt))
    assert waits[:4] == [pytest.approx(wait_s) for wait_s in (0.2, 0.4, 0.8, 1.6)[:times]]
    assert all(later >= wait_s - 1e-6 for wait_s, later in pairwise(waits)), waits
    assert len(node.state.network.exits) == (0 if outside else times) and len(node.state.network.outside) <= 4


def test_a_spent_budget_stops_the_node(node: Story) -> None:
    node.join()
    for _ in range(3):
        node.tell(WorkerExited("trainer", "out of memory", signal=9))
        node.wait("restart/trainer")
    (stop,) = node.tell(WorkerExited("trainer", "out of memory", signal=9))
    assert isinstance(stop, StopWorkers)
    assert stop.code == ExitCode.UNAVAILABLE
    assert "4 times in 300 s" in stop.reason
    node.tell(NodeStopped(stop.reason, stop.code))
    assert node.state.chart == "failed"


def test_ends_from_outside_leave_the_budget_of_own_ones_as_it_was(node: Story) -> None:
    node.join()
    for _ in range(3):
        node.tell(WorkerExited("trainer", "a bug", code=1), WorkerExited("trainer", "killed", signal=9, outside=True))
        node.wait("restart/trainer")
    assert isinstance(node.tell(WorkerExited("trainer", "a bug", code=1))[0], StopWorkers)


def test_a_machine_without_room_for_a_process_does_not_stop_the_node(node: Story) -> None:
    node.start()
    for attempt in range(1, 9):
        node.tell(WorkerStartFailed("trainer", "python: Cannot allocate memory", attempt, outside=True))
        assert ids(node.wait("restart/trainer")) == [f"start/trainer/run1/{attempt + 1}"]


def test_a_planned_exit_is_no_failure_and_costs_nothing_of_the_budget(node: Story) -> None:
    node.join()
    node.tell(announced(0))
    for attempt in range(2, 12):
        node.tell(WorkerExited("trainer", "recycled after 1 rounds", code=0, planned=True))
        assert ids(node.wait("restart/trainer")) == [f"start/trainer/run1/{attempt}"]
        node.tell(WorkerStarted("trainer", 20 + attempt, attempt), TrainerReady("cpu", "tiny", 1))
    assert node.state.training.exits == ()
    assert not node.state.faulted, "rounds missed now were not missed for a fault"
    node.tell(WorkerExited("trainer", "killed", signal=9))
    assert node.state.faulted and len(node.state.training.exits) == 1


@pytest.mark.parametrize("begin", [Story.start, Story.start_workers], ids=["nothing is heard", "it is never ready"])
def test_a_worker_that_never_gets_ready_is_killed_and_started_again_when_its_end_is_told(
    node: Story, begin: Callable[[Story], object]
) -> None:
    begin(node)
    assert ids(node.wait("ready/trainer")) == ["kill/trainer/run1/1"]
    node.tell(WorkerExited("trainer", "not ready within 180 s, and no process was there"))
    assert ids(node.wait("restart/trainer")) == ["start/trainer/run1/2"]
    assert "ready/trainer" in node.waits


def test_a_network_worker_that_makes_room_again_and_again_never_ends_the_node(node: Story) -> None:
    node.join()
    for attempt in range(2, 40):
        node.tell(WorkerExited("network", "makes room for a fresh process", code=5, planned=True))
        assert ids(node.wait("restart/network")) == [f"start/network/run1/{attempt}"]
    assert node.state.network.exits == () and node.state.chart not in LEAVING


def test_exits_long_ago_do_not_count(node: Story) -> None:
    node.join()
    for _ in range(8):
        node.tell(WorkerExited("trainer", "out of memory", signal=9))
        node.wait("restart/trainer")
        node.at += 200
    assert node.state.chart == "syncing"


def test_a_permanent_failure_stops_the_node_at_once(node: Story) -> None:
    node.join()
    (stop,) = node.tell(WorkerExited("trainer", "no such model", code=66, permanent=True, exit_code=66))
    assert isinstance(stop, StopWorkers)
    assert stop.code == 66
    assert stop.reason == "trainer worker: no such model"


def test_a_worker_that_cannot_be_executed_is_tried_again(node: Story) -> None:
    node.start()
    node.tell(WorkerStartFailed("network", "too many processes", 1))
    assert ids(node.wait("restart/network")) == ["start/network/run1/2"]


def test_an_isolated_network_is_ready_and_keeps_trying(node: Story) -> None:
    node.start_workers()
    node.tell(LinkDegraded("no bootstrap peer answers"))
    assert node.state.link.chart == "degraded"
    assert node.state.chart == "joining"
    assert "ready/network" not in node.waits
    assert ids(node.tell(LinkUp(2))) == ["register"]


def test_more_peers_are_noted_without_registering_again(node: Story) -> None:
    node.join(peers=1)
    assert node.tell(LinkUp(5, ("/ip4/127.0.0.1/tcp/1",))) == ()
    assert node.state.link.peers == 5
