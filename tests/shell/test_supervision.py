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
    EmitEventAction,
    ExecuteAction,
    KillAction,
    SendAction,
    TerminateAction,
    WorkerSupervision,
    worker_for_command,
)
from swarmd.worker.messages import FaultMessage, ObservedMessage, PerformMessage, PingMessage, PongMessage, StopMessage

LIMITS = WorkersConfig(silent_s=10.0, stop_s=10.0)
START = StartWorker("start/1", "trainer", 1)
KILL = KillWorker("kill/1", "trainer", "not ready within 5 s")
STOP = StopWorkers("stop", "the operator", 0)


def supervise() -> WorkerSupervision:
    return WorkerSupervision(("network", "trainer"), LIMITS)


def running() -> WorkerSupervision:
    supervision = supervise()
    assert supervision.handle_command(START, 0.0) == [ExecuteAction("trainer", 1)]
    assert supervision.on_started("trainer", 77) == [EmitEventAction(WorkerStarted("trainer", 77, 1))]
    return supervision


def test_a_second_start_while_a_process_runs_or_is_to_run_changes_nothing() -> None:
    supervision = supervise()
    supervision.handle_command(START, 0.0)
    assert supervision.handle_command(START, 0.0) == []
    assert running().handle_command(START, 0.0) == []


def test_a_kill_before_the_process_exists_ends_it_as_soon_as_it_does() -> None:
    supervision = supervise()
    supervision.handle_command(START, 0.0)
    assert supervision.handle_command(KILL, 1.0) == []
    assert supervision.on_started("trainer", 77) == [
        KillAction("trainer"),
        EmitEventAction(WorkerStarted("trainer", 77, 1)),
    ]
    (told,) = supervision.on_exit("trainer", -signal.SIGKILL)
    assert told == EmitEventAction(WorkerExited("trainer", "not ready within 5 s, killed", signal=signal.SIGKILL))


def test_a_program_that_cannot_be_executed_leaves_room_for_another_try() -> None:
    supervision = supervise()
    supervision.handle_command(START, 0.0)
    assert supervision.on_start_failed("trainer", "no such file", False) == [
        EmitEventAction(WorkerStartFailed("trainer", "no such file", 1))
    ]
    assert supervision.handle_command(KILL, 1.0) == []
    assert supervision.handle_command(START, 2.0) == [ExecuteAction("trainer", 1)]


def test_a_command_goes_to_a_process_or_nowhere() -> None:
    command = Register("register")
    assert supervise().send_command("network", command) == []
    assert running().send_command("trainer", command) == [SendAction("trainer", PerformMessage(command))]


def test_a_command_is_for_the_worker_that_can_carry_it_out() -> None:
    commands = (Register("r"), ReadClock("c"), Train("t", 0, 0), Submit("x", "r", "reward"))
    assert [worker_for_command(each) for each in commands] == ["network", "network", "trainer", "chain"]


def test_a_worker_is_asked_then_terminated_then_killed_and_then_no_longer_waited_for() -> None:
    supervision = running()
    assert supervision.next_tick_at == math.inf
    assert supervision.handle_command(STOP, 100.0) == [SendAction("trainer", StopMessage(grace_s=7.0))]
    assert supervision.handle_command(STOP, 101.0) == [] and supervision.handle_command(START, 101.0) == []
    assert supervision.next_tick_at == 107.0 and supervision.tick(106.9) == []
    assert supervision.tick(107.0) == [TerminateAction("trainer")]
    assert supervision.tick(supervision.next_tick_at) == [KillAction("trainer")]
    assert supervision.tick(supervision.next_tick_at - 0.1) == []
    assert supervision.next_tick_at == 109.0 + DRAIN_S
    assert supervision.tick(supervision.next_tick_at) == [EmitEventAction(NodeStopped("the operator", 0))]
    assert supervision.next_tick_at == math.inf and supervision.on_exit("trainer", 0) == []


def test_a_daemon_that_stood_still_gives_a_worker_its_time_after_sigterm() -> None:
    supervision = running()
    supervision.handle_command(STOP, 100.0)
    assert supervision.tick(500.0) == [TerminateAction("trainer")]
    assert supervision.next_tick_at == 502.0


def test_the_node_has_stopped_once_when_the_last_process_is_gone() -> None:
    supervision = running()
    supervision.handle_command(StartWorker("start/2", "network", 1), 0.0)
    supervision.on_started("network", 78)
    supervision.handle_command(STOP, 1.0)
    (first,) = supervision.on_exit("network", 0)
    assert first == EmitEventAction(WorkerExited("network", "stopped (ended with status 0)", code=0))
    exited, stopped = supervision.on_exit("trainer", -signal.SIGTERM)
    assert isinstance(exited, EmitEventAction) and isinstance(exited.event, WorkerExited) and not exited.event.outside
    assert stopped == EmitEventAction(NodeStopped("the operator", 0))
    assert supervise().handle_command(STOP, 1.0) == [stopped], "where no process is, nothing is waited for"


def test_what_is_killed_because_the_daemon_ends_says_nothing_of_a_stop() -> None:
    supervision = running()
    supervision.handle_command(STOP, 1.0)
    assert supervision.kill_all() == [KillAction("trainer")]
    assert [type(action) for action in supervision.on_exit("trainer", -signal.SIGKILL)] == [EmitEventAction]


def test_pings_count_from_the_first_frame_until_the_next_and_not_while_the_inbox_is_full() -> None:
    supervision = running()
    for number in range(1, 10):
        assert supervision.ping_worker("trainer") == [SendAction("trainer", PingMessage(number))], (
            "it may take long to import all"
        )
    supervision.on_message("trainer", PongMessage(9))
    assert supervision.is_answering("trainer")
    supervision.set_waiting_for_inbox("trainer", True)
    for number in range(10, 20):
        assert supervision.ping_worker("trainer") == [SendAction("trainer", PingMessage(number))]
    supervision.set_waiting_for_inbox("trainer", False)
    for number in range(20, 20 + PINGS_MISSED):
        assert supervision.ping_worker("trainer") == [SendAction("trainer", PingMessage(number))]
    supervision.on_message("trainer", PongMessage(19 + PINGS_MISSED))
    for number in range(20 + PINGS_MISSED, 20 + 2 * PINGS_MISSED):
        assert supervision.ping_worker("trainer") == [SendAction("trainer", PingMessage(number))]
    assert supervision.ping_worker("trainer") == [KillAction("trainer")]
    assert supervision.ping_worker("trainer") == [] and not supervision.is_answering("trainer")


@pytest.mark.parametrize(
    "claim", [NodeStopped("mischief"), SpaceLow(0, 1), SpaceFreed(1), ClockSet(3600.0), RoundsSkipped(0, 9, "slow")]
)
def test_a_worker_that_claims_a_fact_of_the_daemons_is_killed_and_no_longer_listened_to(claim: Event) -> None:
    supervision = running()
    assert supervision.on_message("trainer", ObservedMessage(TrainerReady("cpu", "m", 1))) == [
        EmitEventAction(TrainerReady("cpu", "m", 1))
    ]
    assert supervision.on_message("trainer", ObservedMessage(claim)) == [KillAction("trainer")]
    assert (
        not supervision.is_listened_to("trainer")
        and supervision.on_message("trainer", ObservedMessage(LinkUp(1))) == []
    )


def test_a_worker_that_reads_nothing_is_killed_for_that() -> None:
    supervision = running()
    assert supervision.on_messages_unread("trainer") == [KillAction("trainer")]
    (told,) = supervision.on_exit("trainer", -signal.SIGKILL, "the last line")
    assert isinstance(told, EmitEventAction) and isinstance(told.event, WorkerExited)
    assert told.event.reason == "took none of 256 waiting messages, killed; last output:\nthe last line"


def test_an_end_that_a_worker_announced_is_planned_unless_it_was_killed() -> None:
    for killed in (False, True):
        supervision = running()
        supervision.on_message("trainer", FaultMessage("recycled", planned=True))
        if killed:
            supervision.handle_command(KILL, 1.0)
        (told,) = supervision.on_exit("trainer", 0)
        assert isinstance(told, EmitEventAction) and isinstance(told.event, WorkerExited)
        assert told.event.planned is not killed


def test_what_a_worker_says_of_its_end_is_kept_up_to_a_bound() -> None:
    """It stays in the state, in each snapshot and in each answer about the node."""
    supervision = running()
    supervision.on_message("trainer", FaultMessage("ValueError: " + "x" * 4_000_000))
    (told,) = supervision.on_exit("trainer", 1)
    assert isinstance(told, EmitEventAction) and isinstance(told.event, WorkerExited)
    assert told.event.reason == ("ValueError: " + "x" * 4_000_000)[:REASON_CHARACTERS_MAX]
