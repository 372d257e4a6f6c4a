"""What is decided about processes in the cases that hardly ever come together; the rest is the simulator's to find."""

import math
import signal

import pytest

from swarmd.config import WorkersConfig
from swarmd.core.commands import KillWorker, ReadClock, Register, StartWorker, StopWorkers, Submit, Train
from swarmd.core.events import (
    ClockSet,
    Event,
    LinkUp,
    NodeStopped,
    RoundsSkipped,
    SpaceFreed,
    SpaceLow,
    TrainerReady,
    WorkerExited,
    WorkerStarted,
    WorkerStartFailed,
)
from swarmd.shell.supervision import (
    DRAIN_S,
    PINGS_MISSED,
    REASON_CHARACTERS_MAX,
    Execute,
    Kill,
    Send,
    Supervision,
    Tell,
    Terminate,
    worker_of,
)
from swarmd.worker.messages import Fault, Observed, Perform, Ping, Pong, Stop

LIMITS = WorkersConfig(silent_s=10.0, stop_s=10.0)
START = StartWorker("start/1", "trainer", 1)
KILL = KillWorker("kill/1", "trainer", "not ready within 5 s")
STOP = StopWorkers("stop", "the operator", 0)


def supervise() -> Supervision:
    return Supervision(("network", "trainer"), LIMITS)


def running() -> Supervision:
    supervision = supervise()
    assert supervision.perform(START, 0.0) == [Execute("trainer", 1)]
    assert supervision.started("trainer", 77) == [Tell(WorkerStarted("trainer", 77, 1))]
    return supervision


def test_a_second_start_while_a_process_runs_or_is_to_run_changes_nothing() -> None:
    supervision = supervise()
    supervision.perform(START, 0.0)
    assert supervision.perform(START, 0.0) == []
    assert running().perform(START, 0.0) == []


def test_a_kill_before_the_process_exists_ends_it_as_soon_as_it_does() -> None:
    supervision = supervise()
    supervision.perform(START, 0.0)
    assert supervision.perform(KILL, 1.0) == []
    assert supervision.started("trainer", 77) == [Kill("trainer"), Tell(WorkerStarted("trainer", 77, 1))]
    (told,) = supervision.ended("trainer", -signal.SIGKILL)
    assert told == Tell(WorkerExited("trainer", "not ready within 5 s, killed", signal=signal.SIGKILL))


def test_a_program_that_cannot_be_executed_leaves_room_for_another_try() -> None:
    supervision = supervise()
    supervision.perform(START, 0.0)
    assert supervision.start_failed("trainer", "no such file", False) == [
        Tell(WorkerStartFailed("trainer", "no such file", 1))
    ]
    assert supervision.perform(KILL, 1.0) == []
    assert supervision.perform(START, 2.0) == [Execute("trainer", 1)]


def test_a_command_goes_to_a_process_or_nowhere() -> None:
    command = Register("register")
    assert supervise().hand("network", command) == []
    assert running().hand("trainer", command) == [Send("trainer", Perform(command))]


def test_a_command_is_for_the_worker_that_can_carry_it_out() -> None:
    commands = (Register("r"), ReadClock("c"), Train("t", 0, 0), Submit("x", "r", "reward"))
    assert [worker_of(each) for each in commands] == ["network", "network", "trainer", "chain"]


def test_a_worker_is_asked_then_terminated_then_killed_and_then_no_longer_waited_for() -> None:
    supervision = running()
    assert supervision.due_at == math.inf
    assert supervision.perform(STOP, 100.0) == [Send("trainer", Stop(grace_s=7.0))]
    assert supervision.perform(STOP, 101.0) == [] and supervision.perform(START, 101.0) == []
    assert supervision.due_at == 107.0 and supervision.tick(106.9) == []
    assert supervision.tick(107.0) == [Terminate("trainer")]
    assert supervision.tick(supervision.due_at) == [Kill("trainer")]
    assert supervision.tick(supervision.due_at - 0.1) == []
    assert supervision.due_at == 109.0 + DRAIN_S
    assert supervision.tick(supervision.due_at) == [Tell(NodeStopped("the operator", 0))]
    assert supervision.due_at == math.inf and supervision.ended("trainer", 0) == []


def test_a_daemon_that_stood_still_gives_a_worker_its_time_after_sigterm() -> None:
    supervision = running()
    supervision.perform(STOP, 100.0)
    assert supervision.tick(500.0) == [Terminate("trainer")]
    assert supervision.due_at == 502.0


def test_the_node_has_stopped_once_when_the_last_process_is_gone() -> None:
    supervision = running()
    supervision.perform(StartWorker("start/2", "network", 1), 0.0)
    supervision.started("network", 78)
    supervision.perform(STOP, 1.0)
    (first,) = supervision.ended("network", 0)
    assert first == Tell(WorkerExited("network", "stopped (ended with status 0)", code=0))
    exited, stopped = supervision.ended("trainer", -signal.SIGTERM)
    assert isinstance(exited, Tell) and isinstance(exited.event, WorkerExited) and not exited.event.outside
    assert stopped == Tell(NodeStopped("the operator", 0))
    assert supervise().perform(STOP, 1.0) == [stopped], "where no process is, nothing is waited for"


def test_what_is_killed_because_the_daemon_ends_says_nothing_of_a_stop() -> None:
    supervision = running()
    supervision.perform(STOP, 1.0)
    assert supervision.kill_all() == [Kill("trainer")]
    assert [type(action) for action in supervision.ended("trainer", -signal.SIGKILL)] == [Tell]


def test_pings_count_from_the_first_frame_until_the_next_and_not_while_the_inbox_is_full() -> None:
    supervision = running()
    for number in range(1, 10):
        assert supervision.ping("trainer") == [Send("trainer", Ping(number))], "it may take long to import all"
    supervision.heard("trainer", Pong(9))
    assert supervision.is_answering("trainer")
    supervision.hands_over("trainer", True)
    for number in range(10, 20):
        assert supervision.ping("trainer") == [Send("trainer", Ping(number))]
    supervision.hands_over("trainer", False)
    for number in range(20, 20 + PINGS_MISSED):
        assert supervision.ping("trainer") == [Send("trainer", Ping(number))]
    supervision.heard("trainer", Pong(19 + PINGS_MISSED))
    for number in range(20 + PINGS_MISSED, 20 + 2 * PINGS_MISSED):
        assert supervision.ping("trainer") == [Send("trainer", Ping(number))]
    assert supervision.ping("trainer") == [Kill("trainer")]
    assert supervision.ping("trainer") == [] and not supervision.is_answering("trainer")


@pytest.mark.parametrize(
    "claim", [NodeStopped("mischief"), SpaceLow(0, 1), SpaceFreed(1), ClockSet(3600.0), RoundsSkipped(0, 9, "slow")]
)
def test_a_worker_that_claims_a_fact_of_the_daemons_is_killed_and_no_longer_listened_to(claim: Event) -> None:
    supervision = running()
    assert supervision.heard("trainer", Observed(TrainerReady("cpu", "m", 1))) == [Tell(TrainerReady("cpu", "m", 1))]
    assert supervision.heard("trainer", Observed(claim)) == [Kill("trainer")]
    assert not supervision.listens("trainer") and supervision.heard("trainer", Observed(LinkUp(1))) == []


def test_a_worker_that_reads_nothing_is_killed_for_that() -> None:
    supervision = running()
    assert supervision.unread("trainer") == [Kill("trainer")]
    (told,) = supervision.ended("trainer", -signal.SIGKILL, "the last line")
    assert isinstance(told, Tell) and isinstance(told.event, WorkerExited)
    assert told.event.reason == "took none of 256 waiting messages, killed; last output:\nthe last line"


def test_an_end_that_a_worker_announced_is_planned_unless_it_was_killed() -> None:
    for killed in (False, True):
        supervision = running()
        supervision.heard("trainer", Fault("recycled", planned=True))
        if killed:
            supervision.perform(KILL, 1.0)
        (told,) = supervision.ended("trainer", 0)
        assert isinstance(told, Tell) and isinstance(told.event, WorkerExited)
        assert told.event.planned is not killed


def test_what_a_worker_says_of_its_end_is_kept_up_to_a_bound() -> None:
    """It stays in the state, in each snapshot and in each answer about the node."""
    supervision = running()
    supervision.heard("trainer", Fault("ValueError: " + "x" * 4_000_000))
    (told,) = supervision.ended("trainer", 1)
    assert isinstance(told, Tell) and isinstance(told.event, WorkerExited)
    assert told.event.reason == ("ValueError: " + "x" * 4_000_000)[:REASON_CHARACTERS_MAX]
