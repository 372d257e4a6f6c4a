"""The simulated worker processes of a node, under the shipped supervision."""

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
REAP_S = 0.01  # between a process's end and its being reaped
STOP_S = (0.1, 3.0)  # time in which a worker ends after a request
IGNORES_STOP_CHANCE = 0.05  # probability that it ignores the request, and must be killed
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
    """A child process of one run of the daemon.

    Attributes:
        status: its exit status, negative for a signal.
        outside: whether its end has an outside cause.
        fault: the fault that it reported before it ended.
        watched: whether its pings are simulated.
        ignores_stop: whether it ignores stop requests and SIGTERM.
        backlog: commands that arrived while it was frozen.
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
        """Start the worker's activity in a new process."""

    def receive_command(self, command: commands.Command) -> None:
        """Handle a command from the pipe, in order."""
        if self.backlog or self.frozen_until > self.world.now:
            self.backlog.append(command)
            self.call_later(0.0, lambda: self.perform(self.backlog.popleft()))
        else:
            self.perform(command)

    @abstractmethod
    def perform(self, command: commands.Command) -> None:
        """Carry out a command; facts must be reported later, not during the call."""

    def send_event(self, event: Event) -> None:
        """Report a fact to the daemon."""
        if self.alive:
            self.supervisor.on_message(self, messages.ObservedMessage(event))

    def call_later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act` after a delay, unless the process has died by then; a frozen one does it when it thaws."""
        self.world.call_in(delay_s, self._call_when_thawed, act, args)

    def _call_when_thawed(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.frozen_until > self.world.now:
            self.world.call_at(self.frozen_until, self._call_when_thawed, act, args)
        else:
            act(*args)

    def freeze(self, until: float) -> None:
        """Freeze until then, like SIGSTOP."""
        self.frozen_until = max(self.frozen_until, until)
        self.supervisor.start_pinging(self)

    def handle_stop(self) -> None:
        """Handle a request to stop, unless the worker ignores it."""
        if not self.ignores_stop:
            self.supervisor.end_process(self, 0)

    def on_daemon_gone(self) -> None:
        self.terminate()

    def terminate(self) -> None:
        """Stop everything: the process has ended."""
        self.alive = False


WorkerMaker = Callable[["SimSupervisor", Worker, int], SimWorker]


class SimSupervisor:
    """The worker processes of one run of the daemon. `running`: each worker's process; None, or a dead one, if there is
    none. `refusals`: how many of the next starts fail."""

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
        self._unsent: dict[Worker, list[messages.ToWorker]] = {}  # messages for a process that is being started
        self._pid = node.life * 1000

    @property
    def live_workers(self) -> list[SimWorker]:
        """The live processes, in a fixed order."""
        return [worker for worker in self.running.values() if worker is not None and worker.alive]

    # --- commands ---

    def dispatch(self, command: commands.Command) -> None:
        """Carry out a command, or pass it to its worker."""
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
        """Pass a command to a worker's process, or drop it."""
        if PORTS[type(command)] != worker:
            self.node.fail_run(f"{command.id} goes to the {worker} worker")
        self._execute_actions(self.supervision.send_command(worker, command))

    # --- actions ---

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
            return  # a pipe without a reader
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
        if process is not None and process.pid % 2:  # the others ignore it
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
        """Check that an exit event has the right cause, and says correctly if a restart can help."""
        if event.outside != process.outside and (event.outside or not stopping):
            self.node.fail_run(f"it is told wrongly through whom a worker ended: {event}")
        if event.permanent != (process.fault is not None and process.fault.permanent):
            self.node.fail_run(f"it is told wrongly whether a restart can help: {event}")

    # --- time ---

    def _schedule_tick(self) -> None:
        """Schedule the supervision's next tick, which ends the wait of `stop_s` for stopping processes."""
        if self.supervision.next_tick_at < math.inf:
            self.world.call_at(max(self.supervision.next_tick_at, self.world.now), self._tick)

    def _tick(self) -> None:
        if self._is_daemon_gone():
            return
        if self.node.frozen_until > self.world.now:  # messages to the workers are delayed as well
            self.world.call_at(self.node.frozen_until, self._tick)
            return
        self._execute_actions(self.supervision.tick(self.world.now))
        self._schedule_tick()

    def start_pinging(self, process: SimWorker) -> None:
        """Simulate the pings of a frozen process; those of one that answers at once would change nothing."""
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

    # --- events of processes ---

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
        """End a worker process by a failure, permanent or not, or by an outside kill."""
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
        """Close the pipes of all workers, because the daemon died."""
        for worker in self.running.values():
            if worker is not None and worker.alive:
                worker.on_daemon_gone()
