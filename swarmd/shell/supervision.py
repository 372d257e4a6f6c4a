"""Decides what to do with worker processes, without starting, reading or killing any.

A driver reports what happened and carries out the returned actions: the daemon with real processes, the simulator with
simulated ones. A worker has at most one process at a time, and the core gets every exit exactly once.
"""

import contextlib
import math
import signal
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from swarmd.config import WorkersConfig
from swarmd.core import commands, events
from swarmd.core.values import Worker
from swarmd.errors import EXIT_FOR_ROOM
from swarmd.worker.messages import (
    FaultMessage,
    FromWorker,
    ObservedMessage,
    PerformMessage,
    PingMessage,
    StopMessage,
    ToWorker,
)

MESSAGES_QUEUED_MAX = 256  # a worker with this many unread messages is killed
DRAIN_S = 2.0  # for reading an ended worker's pipes
PINGS_MISSED = 12  # in a row, within `silent_s`; after one more the worker is killed
STOP_MESSAGE_SHARE = 0.7  # of stop_s: time for a worker to end by itself, then SIGTERM
STOP_TERMINATE_SHARE = 0.9  # of stop_s: then SIGKILL
REASON_CHARACTERS_MAX = 4096  # of an exit's reason, which is kept in the state; a worker may write any amount
PINGS_UNANSWERED = 2  # a worker with at most this many unanswered pings counts as answering

# Signals sent by the kernel for lack of memory, or by other processes.
OUTSIDE_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

# Facts about the daemon and its machine; a worker that sends one is broken.
DAEMON_EVENTS = (
    events.NodeStarted,
    events.StopRequested,
    events.NodeStopped,
    events.TimerFired,
    events.WorkerStarted,
    events.WorkerExited,
    events.WorkerStartFailed,
    events.RoundsSkipped,
    events.ClockSet,
    events.SpaceLow,
    events.SpaceFreed,
)


class ExecuteAction(NamedTuple):
    """Execute the worker's program; the driver then calls `on_started` or `on_start_failed`."""

    worker: Worker
    attempt: int


class SendAction(NamedTuple):
    """Queue a message for the worker; the driver calls `on_messages_unread` if `MESSAGES_QUEUED_MAX` wait."""

    worker: Worker
    message: ToWorker


class TerminateAction(NamedTuple):
    """Send SIGTERM to the worker's process group."""

    worker: Worker


class KillAction(NamedTuple):
    """Send SIGKILL to the worker's process group."""

    worker: Worker


class EmitEventAction(NamedTuple):
    """Give an event to the node's loop."""

    event: events.Event


Action = ExecuteAction | SendAction | TerminateAction | KillAction | EmitEventAction


def worker_for_command(command: commands.NetworkCommand | commands.TrainerCommand | commands.ChainCommand) -> Worker:
    if isinstance(command, commands.NetworkCommand):
        return "network"
    return "trainer" if isinstance(command, commands.TrainerCommand) else "chain"


class SupervisedProcess:
    """One process, from the command to start it until it is reaped."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.exists = False
        self.planned = False  # the node asked it to end
        self.killed_for = ""
        self.broken = False  # its messages are ignored
        self.fault: FaultMessage | None = None
        self.heard = False  # it has sent a frame
        self.pings = 0
        self.missed = 0  # pings sent since the last frame
        self.handing_over = False  # its fact waits for room in the inbox, so it is not to blame for its silence
        self.terminate_at = self.kill_at = self.give_up_at = math.inf  # times in an orderly stop


class WorkerSupervision:
    """The worker processes of one run of a daemon. `limits`: ping and stop times."""

    def __init__(self, workers: Sequence[Worker], limits: WorkersConfig) -> None:
        self._limits = limits
        self._processes: dict[Worker, SupervisedProcess | None] = dict.fromkeys(workers)
        self._end_told: dict[Worker, bool] = dict.fromkeys(
            workers, False
        )  # whether the exit or failed start of the last process was reported
        self._stop: commands.StopWorkers | None = None
        self._ending = False  # the daemon is about to exit: nothing is started or reported
        self._stop_told = False

    # --- commands ---

    def handle_command(self, command: commands.SupervisorCommand, now: float) -> list[Action]:
        """Actions that a command asks for. `now`: seconds of a monotonic clock."""
        match command:
            case commands.StartWorker():
                return self._start_worker(command.worker, command.attempt)
            case commands.KillWorker():
                return self.kill_worker(command.worker, command.reason)
            case commands.StopWorkers():
                return self._stop_workers(command, now)
            case _:
                assert_never(command)

    def send_command(self, worker: Worker, command: commands.Command) -> list[Action]:
        """Send a command to the worker's process; without one it is dropped."""
        return [] if self._processes[worker] is None else [SendAction(worker, PerformMessage(command))]

    def _start_worker(self, worker: Worker, attempt: int) -> list[Action]:
        """Start a process, unless one exists or the node is stopping."""
        if self.is_stopping or self._processes[worker] is not None:
            return []
        self._processes[worker] = SupervisedProcess(attempt)
        self._end_told[worker] = False
        return [ExecuteAction(worker, attempt)]

    def kill_worker(self, worker: Worker, reason: str) -> list[Action]:
        """Kill the worker's process; its exit is reported with this reason.

        If there is no process, and no exit was reported, one is reported: after a kill the core waits for an exit, and
        would otherwise wait for ever.
        """
        process = self._processes[worker]
        if process is not None:
            process.killed_for = process.killed_for or reason
            return [KillAction(worker)] if process.exists else []
        if self._end_told[worker] or self.is_stopping:
            return []
        self._end_told[worker] = True
        return [EmitEventAction(events.WorkerExited(worker, f"{reason}, and no process was there"))]

    def _stop_workers(self, command: commands.StopWorkers, now: float) -> list[Action]:
        """Ask all processes to end within `stop_s`, and start no more."""
        if self._stop is not None:
            return []
        self._stop = command
        stop_s = self._limits.stop_s
        actions: list[Action] = []
        for worker, process in self._processes.items():
            if process is not None:
                process.planned = True
                process.terminate_at = now + stop_s * STOP_MESSAGE_SHARE
                actions.append(SendAction(worker, StopMessage(grace_s=stop_s * STOP_MESSAGE_SHARE)))
        return actions + self._report_if_stopped()

    def _report_if_stopped(self) -> list[Action]:
        """Report that the node has stopped, once no process is left."""
        if self._stop is None or self._stop_told or self._ending or any(self._processes.values()):
            return []
        self._stop_told = True
        return [EmitEventAction(events.NodeStopped(self._stop.reason, self._stop.code))]

    def kill_all(self) -> list[Action]:
        """Kill everything without waiting, because the daemon is about to exit."""
        self._ending = True
        present = [worker for worker, process in self._processes.items() if process is not None]
        return [action for worker in present for action in self.kill_worker(worker, "killed at once")]

    @property
    def is_stopping(self) -> bool:
        """Whether no process is started any more."""
        return self._stop is not None or self._ending

    # --- time ---

    @property
    def next_tick_at(self) -> float:
        """When to call `tick` next; infinite for never."""
        return min(
            (
                min(process.terminate_at, process.kill_at, process.give_up_at)
                for process in self._processes.values()
                if process is not None
            ),
            default=math.inf,
        )

    def tick(self, now: float) -> list[Action]:
        """Escalate for processes that were asked to end: SIGTERM, then SIGKILL, then stop waiting for them."""
        actions: list[Action] = []
        for worker, process in self._processes.items():
            if process is None:
                continue
            if process.terminate_at <= now:
                process.terminate_at = math.inf
                process.kill_at = now + self._limits.stop_s * (STOP_TERMINATE_SHARE - STOP_MESSAGE_SHARE)
                actions.append(TerminateAction(worker))
            elif process.kill_at <= now:
                process.kill_at, process.give_up_at = math.inf, now + DRAIN_S
                actions += self.kill_worker(worker, "did not end in time")
            elif process.give_up_at <= now:
                self._processes[worker] = None
        return actions + self._report_if_stopped()

    def ping_worker(self, worker: Worker) -> list[Action]:
        """Ping, every `silent_s / PINGS_MISSED`, and kill a worker that has answered none for `silent_s`.

        Counts pings instead of measuring time, so that a suspended daemon does not kill its workers when it resumes.
        Before the first frame only the core's `ready_s` deadline applies, because imports take long on a busy machine.
        """
        process, limits = self._processes[worker], self._limits
        if process is None or process.killed_for:
            return []
        if process.heard and not process.handing_over:
            process.missed += 1
        if process.missed > PINGS_MISSED:
            return self.kill_worker(worker, f"answered no ping for {limits.silent_s:g} s")
        process.pings += 1
        return [SendAction(worker, PingMessage(process.pings))]

    # --- what happened to a process ---

    def on_started(self, worker: Worker, pid: int) -> list[Action]:
        """The program was executed."""
        process = self._processes[worker]
        assert process is not None, f"a {worker} worker was executed that nobody asked for"
        process.exists = True
        kill: list[Action] = [KillAction(worker)] if process.killed_for else []
        return [*kill, EmitEventAction(events.WorkerStarted(worker, pid, process.attempt))]

    def on_start_failed(self, worker: Worker, reason: str, wanting: bool) -> list[Action]:
        """Handle a failed start. `wanting`: the machine lacks resources for another process."""
        process = self._processes[worker]
        assert process is not None, f"a {worker} worker was to be executed that nobody asked for"
        self._processes[worker], self._end_told[worker] = None, True
        return [
            EmitEventAction(events.WorkerStartFailed(worker, reason, process.attempt, wanting)),
            *self._report_if_stopped(),
        ]

    def on_message(self, worker: Worker, message: FromWorker) -> list[Action]:
        """Handle a frame: the worker is alive, and its observation becomes a fact."""
        process = self._processes[worker]
        if process is None or process.broken:
            return []
        process.heard, process.missed = True, 0
        if isinstance(message, FaultMessage):
            process.fault = message
        elif isinstance(message, ObservedMessage):
            if isinstance(message.event, DAEMON_EVENTS):
                return self.on_broken_output(worker, f"a worker cannot observe {type(message.event).__name__}")
            return [EmitEventAction(message.event)]
        return []

    def set_waiting_for_inbox(self, worker: Worker, waits: bool) -> None:
        """Set whether a fact of this worker is waiting for room in the inbox."""
        process = self._processes[worker]
        if process is not None:
            process.handing_over = waits

    def on_broken_output(self, worker: Worker, reason: str) -> list[Action]:
        """Kill a worker whose messages cannot be decoded."""
        process = self._processes[worker]
        if process is not None:
            process.broken = True
        return self.kill_worker(worker, f"broken output: {reason}")

    def on_messages_unread(self, worker: Worker) -> list[Action]:
        """Kill a worker that has left `MESSAGES_QUEUED_MAX` messages unread."""
        return self.kill_worker(worker, f"took none of {MESSAGES_QUEUED_MAX} waiting messages")

    def is_answering(self, worker: Worker) -> bool:
        """Whether the worker has sent a frame, and has at most `PINGS_UNANSWERED` unanswered pings."""
        process = self._processes[worker]
        return process is not None and process.heard and process.missed <= PINGS_UNANSWERED

    def is_listened_to(self, worker: Worker) -> bool:
        """Whether the worker's messages are still processed."""
        process = self._processes[worker]
        return process is not None and not process.broken

    def on_exit(self, worker: Worker, status: int | None, tail: str = "") -> list[Action]:
        """Handle the end of a reaped process; `tail`: the last lines of its output.

        `status`: minus the signal's number if a signal ended it; None if it cannot be killed.
        """
        process = self._processes[worker]
        if process is None:
            return []
        self._processes[worker], self._end_told[worker] = None, True
        return [EmitEventAction(make_exit_event(worker, process, status, tail)), *self._report_if_stopped()]


def make_exit_event(worker: Worker, process: SupervisedProcess, status: int | None, tail: str) -> events.WorkerExited:
    fault = process.fault
    return events.WorkerExited(
        worker=worker,
        reason=_exit_reason(process, status, tail)[:REASON_CHARACTERS_MAX],
        code=status if status is not None and status >= 0 else None,
        signal=-status if status is not None and status < 0 else None,
        permanent=fault.permanent if fault else False,
        exit_code=fault.exit_code if fault else 0,
        planned=fault is not None and fault.planned and not process.killed_for,
        outside=not process.killed_for and not process.planned and is_ended_from_outside(status),
    )


def _exit_reason(process: SupervisedProcess, status: int | None, tail: str) -> str:
    how = describe_exit_status(status)
    if process.killed_for:
        headline = f"{process.killed_for}, {'killed' if status is not None else how}"
    elif process.fault:
        headline = process.fault.reason
    elif process.planned:
        return f"stopped ({how})"
    elif status == -signal.SIGKILL:
        headline = f"{how}, not by this daemon; out of memory?"
    else:
        headline = how
    return f"{headline}; last output:\n{tail}" if tail and not process.fault else headline


def is_ended_from_outside(status: int | None) -> bool:
    """Whether something else ended a process: a signal, or lack of memory."""
    return status is not None and (status == EXIT_FOR_ROOM or -status in OUTSIDE_SIGNALS)


def describe_exit_status(status: int | None) -> str:
    if status is None:
        return "does not go away though killed"
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-status).name}"
    return f"ended by signal {-status}"
