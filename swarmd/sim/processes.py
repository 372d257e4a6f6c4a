"""The worker processes of a simulated node, made up, under the shipped supervision."""

import math
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, assert_never, get_args

from swarmd.config import WorkersConfig
from swarmd.core import commands
from swarmd.core.events import Event, WorkerExited
from swarmd.core.values import Worker
from swarmd.shell import supervision
from swarmd.sim.machine import SimMachine
from swarmd.worker import messages

EXEC_S = 0.02
REAP_S = 0.01  # from a process's end to its being reaped
STOP_S = (0.1, 3.0)  # in which a worker ends that was asked to
IGNORES_STOP_CHANCE = 0.05  # that it does not, and has to be killed
LIMITS = WorkersConfig()
PING_S = LIMITS.silent_s / supervision.PINGS_MISSED

Port = Literal["network", "trainer", "chain", "supervisor"]

PORTS: dict[type, Port] = {
    **dict.fromkeys(get_args(commands.NetworkCommand), "network"),
    **dict.fromkeys(get_args(commands.TrainerCommand), "trainer"),
    **dict.fromkeys(get_args(commands.ChainCommand), "chain"),
    **dict.fromkeys(get_args(commands.SupervisorCommand), "supervisor"),
}


class SimWorker(ABC):
    """A child process of one daemon life.

    Attributes:
        status: that it ended with, negative the number of a signal.
        outside: others ended it.
        fault: that it reported before it ended.
        watched: its pings are counted.
        ignores_stop: neither the wish that it end nor SIGTERM has it end.
        backlog: commands that came while it was frozen.
    """

    kind: Worker

    def __init__(self, supervisor: "SimSupervisor", pid: int) -> None:
        self.supervisor = supervisor
        self.node = supervisor.node
        self.world = supervisor.world
        self.random = supervisor.world.random
        self.pid = pid
        self.alive = True
        self.status: int | None = None
        self.outside = False
        self.fault: messages.FaultMessage | None = None
        self.watched = False
        self.ignores_stop = False
        self.frozen_until = 0.0
        self.backlog: deque[commands.Command] = deque()

    @abstractmethod
    def start(self) -> None:
        """Come up after the process was started."""

    def receive_command(self, command: commands.Command) -> None:
        """Read a command from the pipe, in their order."""
        if self.backlog or self.frozen_until > self.world.now:
            self.backlog.append(command)
            self.call_later(0.0, lambda: self.perform(self.backlog.popleft()))
        else:
            self.perform(command)

    @abstractmethod
    def perform(self, command: commands.Command) -> None:
        """Do what the daemon wants; facts follow later, never from within."""

    def send_event(self, event: Event) -> None:
        """Report a fact to the daemon."""
        if self.alive:
            self.supervisor.on_message(self, messages.ObservedMessage(event))

    def call_later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Go on with `act` after a while, unless the process is dead by then; a frozen one does it when it thaws."""
        self.world.call_in(delay_s, self._call_when_thawed, act, args)

    def _call_when_thawed(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.frozen_until > self.world.now:
            self.world.call_at(self.frozen_until, self._call_when_thawed, act, args)
        else:
            act(*args)

    def freeze(self, until: float) -> None:
        """Stand still, as after SIGSTOP."""
        self.frozen_until = max(self.frozen_until, until)
        self.supervisor.start_pinging(self)

    def handle_stop(self) -> None:
        """End as it was asked to, if it heeds that."""
        if not self.ignores_stop:
            self.supervisor.end_process(self, 0)

    def on_daemon_gone(self) -> None:
        self.terminate()

    def terminate(self) -> None:
        """Be gone, whatever was being done."""
        self.alive = False


WorkerMaker = Callable[["SimSupervisor", Worker, int], SimWorker]


class SimSupervisor:
    """The worker processes of one daemon life. `running`: the process of each worker; None, or a dead one, when there
    is none. `refusals`: how many of the next starts fail."""

    def __init__(self, node: SimMachine, make_worker: WorkerMaker) -> None:
        self._make_worker = make_worker
        self.node = node
        self.world = node.world
        self.life = node.life
        self.running: dict[Worker, SimWorker | None] = {"network": None, "trainer": None}
        if node.settings.chain is not None:
            self.running["chain"] = None
        self.refusals = 0
        self.supervision = supervision.WorkerSupervision(tuple(self.running), LIMITS)
        self._unsent: dict[Worker, list[messages.ToWorker]] = {}  # messages for a process that is being executed
        self._pid = node.life * 1000

    @property
    def live_workers(self) -> list[SimWorker]:
        """The processes that live, in a fixed order."""
        return [worker for worker in self.running.values() if worker is not None and worker.alive]

    # --- what it is told ---

    def dispatch(self, command: commands.Command) -> None:
        """Carry out a command, or hand it to the worker that it is for."""
        if isinstance(command, commands.SupervisorCommand):
            self.handle_command(command)
        else:
            self.send_command(supervision.worker_for_command(command), command)

    def handle_command(self, command: commands.SupervisorCommand) -> None:
        """Start a worker, kill one, or stop all."""
        actions = self.supervision.handle_command(command, self.world.now)
        if isinstance(command, commands.StartWorker) and actions != [
            supervision.ExecuteAction(command.worker, command.attempt)
        ]:
            self.node.fail_run(f"{command.id} is not carried out, but {actions}")
        self._execute_actions(actions)
        if isinstance(command, commands.StopWorkers):
            self._schedule_tick()

    def send_command(self, worker: Worker, command: commands.Command) -> None:
        """Hand a command to a worker's process, or drop it."""
        if PORTS[type(command)] != worker:
            self.node.fail_run(f"{command.id} goes to the {worker} worker")
        self._execute_actions(self.supervision.send_command(worker, command))

    # --- what it does ---

    def _execute_actions(self, actions: Sequence[supervision.Action]) -> None:
        for action in actions:
            match action:
                case supervision.EmitEventAction():
                    self.node.receive_fact(self.life, action.event)
                case supervision.ExecuteAction():
                    self._unsent[action.worker] = []
                    self.world.call_in(EXEC_S, self._start_process, action.worker, action.attempt)
                case supervision.SendAction():
                    self._send_message(action.worker, action.message)
                case supervision.TerminateAction():
                    self._terminate_process(action.worker)
                case supervision.KillAction():
                    self._kill_process(action.worker)
                case _:
                    assert_never(action)

    def _start_process(self, worker: Worker, attempt: int) -> None:
        if self._is_daemon_gone():
            return
        unsent = self._unsent.pop(worker)
        if self.refusals > 0:
            self.refusals -= 1
            self._execute_actions(self.supervision.on_start_failed(worker, "cannot execute", wanting=False))
            return
        self._pid += 1
        process = self._make_worker(self, worker, self._pid)
        process.ignores_stop = self.world.random.random() < IGNORES_STOP_CHANCE
        self.running[worker] = process
        self._execute_actions(self.supervision.on_started(worker, process.pid))
        if process.alive:
            process.start()
        for message in unsent:
            self._send_message(worker, message)

    def _send_message(self, worker: Worker, message: messages.ToWorker) -> None:
        if worker in self._unsent:
            self._unsent[worker].append(message)
            return
        process = self.running[worker]
        if process is None or not process.alive:
            return  # into a pipe that nobody reads any more
        match message:
            case messages.PerformMessage():
                if len(process.backlog) >= supervision.MESSAGES_QUEUED_MAX:
                    self._execute_actions(self.supervision.on_messages_unread(worker))
                else:
                    process.receive_command(message.command)
            case messages.PingMessage():
                process.call_later(0.0, self.on_message, process, messages.PongMessage(message.number))
            case messages.StopMessage():
                process.call_later(self.world.random.uniform(*STOP_S), process.handle_stop)
            case _:
                self.node.fail_run(f"a worker is sent {message}")

    def _terminate_process(self, worker: Worker) -> None:
        process = self.running[worker]
        if process is not None and process.pid % 2:  # else it ignores that too
            process.call_later(0.0, self.end_process, process, -signal.SIGTERM)

    def _kill_process(self, worker: Worker) -> None:
        process = self.running[worker]
        if process is not None:
            self.world.counts["worker_exits"] += process.alive
            self.end_process(process, -signal.SIGKILL)

    def end_process(self, process: SimWorker, status: int) -> None:
        if process.alive:
            process.terminate()
            process.status = status
            self.world.call_in(REAP_S, self._reap_process, process)

    def _reap_process(self, process: SimWorker) -> None:
        if self._is_daemon_gone():
            return
        stopping, actions = self.supervision.is_stopping, self.supervision.on_exit(process.kind, process.status)
        for action in actions:
            if isinstance(action, supervision.EmitEventAction) and isinstance(action.event, WorkerExited):
                self._check_exit_event(process, action.event, stopping)
        self._execute_actions(actions)

    def _check_exit_event(self, process: SimWorker, event: WorkerExited, stopping: bool) -> None:
        """What is told of an end is what happened: through whom it was, and whether a restart can help."""
        if event.outside != process.outside and (event.outside or not stopping):
            self.node.fail_run(f"it is told wrongly through whom a worker ended: {event}")
        if event.permanent != (process.fault is not None and process.fault.permanent):
            self.node.fail_run(f"it is told wrongly whether a restart can help: {event}")

    # --- time ---

    def _schedule_tick(self) -> None:
        """Wait no longer than `stop_s` for processes that were asked to end."""
        if self.supervision.next_tick_at < math.inf:
            self.world.call_at(max(self.supervision.next_tick_at, self.world.now), self._tick)

    def _tick(self) -> None:
        if self._is_daemon_gone():
            return
        if self.node.frozen_until > self.world.now:  # so is what waits for the workers
            self.world.call_at(self.node.frozen_until, self._tick)
            return
        self._execute_actions(self.supervision.tick(self.world.now))
        self._schedule_tick()

    def start_pinging(self, process: SimWorker) -> None:
        """A process stands still: from now on its pings count. While it answers at once they would change nothing."""
        if not process.watched:
            process.watched = True
            self.world.call_in(PING_S / 2, self._ping_process, process)

    def _ping_process(self, process: SimWorker) -> None:
        if self._is_daemon_gone() or not process.alive:
            return
        if self.node.frozen_until > self.world.now:
            self.world.call_at(self.node.frozen_until, self._ping_process, process)
            return
        process.watched = silent = process.frozen_until > self.world.now
        self._execute_actions(self.supervision.ping_worker(process.kind))
        if silent:
            self.world.call_in(PING_S, self._ping_process, process)

    # --- what happens to its processes ---

    def on_message(self, process: SimWorker, message: messages.FromWorker) -> None:
        if self._is_daemon_gone() or not process.alive:
            return
        actions = self.supervision.on_message(process.kind, message)
        if isinstance(message, messages.ObservedMessage) and supervision.EmitEventAction(message.event) not in actions:
            self.node.fail_run(f"{type(message.event).__name__} of the {process.kind} worker is lost")
        self._execute_actions(actions)
        self.supervision.set_waiting_for_inbox(process.kind, bool(self.node.piped))

    def on_inbox_room(self) -> None:
        for worker in self.running:
            self.supervision.set_waiting_for_inbox(worker, False)

    def break_process(self, process: SimWorker, reason: str, permanent: bool = False) -> None:
        """A worker process breaks by itself, for good or not, or somebody kills it."""
        if not process.alive:
            return
        self.world.counts["worker_exits"] += 1
        if permanent:
            process.fault = messages.FaultMessage(reason, permanent=True)
            self.on_message(process, process.fault)
        process.outside = not permanent and process.pid % 2 == 1
        self.end_process(process, -signal.SIGKILL if process.outside else 1)

    def _is_daemon_gone(self) -> bool:
        return self.node.life != self.life or not self.node.running

    def on_daemon_death(self) -> None:
        """The daemon died: its workers see their pipes close."""
        for worker in self.running.values():
            if worker is not None and worker.alive:
                worker.on_daemon_gone()
