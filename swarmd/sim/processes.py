"""The worker processes of a simulated node, made up, under the shipped supervision."""

from __future__ import annotations

import math
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, assert_never, get_args

from swarmd.config import WorkersConfig
from swarmd.core.commands import (
    ChainCommand,
    Command,
    NetworkCommand,
    StartWorker,
    StopWorkers,
    SupervisorCommand,
    TrainerCommand,
)
from swarmd.core.events import Event, WorkerExited
from swarmd.core.values import Worker
from swarmd.shell.supervision import (
    MESSAGES_QUEUED_MAX,
    PINGS_MISSED,
    Action,
    Execute,
    Kill,
    Send,
    Supervision,
    Tell,
    Terminate,
    worker_of,
)
from swarmd.sim.machine import Machine
from swarmd.worker.messages import Fault, FromWorker, Observed, Perform, Ping, Pong, Stop, ToWorker

EXEC_S = 0.02
REAP_S = 0.01  # from a process's end to its being reaped
STOP_S = (0.1, 3.0)  # in which a worker ends that was asked to
IGNORES_STOP_CHANCE = 0.05  # that it does not, and has to be killed
LIMITS = WorkersConfig()
PING_S = LIMITS.silent_s / PINGS_MISSED

Port = Literal["network", "trainer", "chain", "supervisor"]

PORTS: dict[type, Port] = {
    **dict.fromkeys(get_args(NetworkCommand), "network"),
    **dict.fromkeys(get_args(TrainerCommand), "trainer"),
    **dict.fromkeys(get_args(ChainCommand), "chain"),
    **dict.fromkeys(get_args(SupervisorCommand), "supervisor"),
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

    def __init__(self, supervisor: SimSupervisor, pid: int) -> None:
        self.supervisor = supervisor
        self.node = supervisor.node
        self.world = supervisor.world
        self.random = supervisor.world.random
        self.pid = pid
        self.alive = True
        self.status: int | None = None
        self.outside = False
        self.fault: Fault | None = None
        self.watched = False
        self.ignores_stop = False
        self.frozen_until = 0.0
        self.backlog: deque[Command] = deque()

    @abstractmethod
    def begin(self) -> None:
        """Come up after the process was started."""

    def take(self, command: Command) -> None:
        """Read a command from the pipe, in their order."""
        if self.backlog or self.frozen_until > self.world.now:
            self.backlog.append(command)
            self.later(0.0, lambda: self.perform(self.backlog.popleft()))
        else:
            self.perform(command)

    @abstractmethod
    def perform(self, command: Command) -> None:
        """Do what the daemon wants; facts follow later, never from within."""

    def tell(self, event: Event) -> None:
        """Report a fact to the daemon."""
        if self.alive:
            self.supervisor.hear(self, Observed(event))

    def later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Go on with `act` after a while, unless the process is dead by then; a frozen one does it when it thaws."""
        self.world.call_in(delay_s, self._act, act, args)

    def _act(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.frozen_until > self.world.now:
            self.world.call_at(self.frozen_until, self._act, act, args)
        else:
            act(*args)

    def freeze(self, until: float) -> None:
        """Stand still, as after SIGSTOP."""
        self.frozen_until = max(self.frozen_until, until)
        self.supervisor.watch(self)

    def heed_stop(self) -> None:
        """End as it was asked to, if it heeds that."""
        if not self.ignores_stop:
            self.supervisor.die(self, 0)

    def orphan(self) -> None:
        """The daemon is gone, and the pipe with it."""
        self.end()

    def end(self) -> None:
        """Be gone, whatever was being done."""
        self.alive = False


WorkerMaker = Callable[["SimSupervisor", Worker, int], SimWorker]


class SimSupervisor:
    """The worker processes of one daemon life.

    Args:
        node: whose.
        make_worker: makes a worker's process, given its pid.

    Attributes:
        running: the process of each worker; None, or a dead one, when there is none.
        refusals: how many of the next starts fail.
    """

    def __init__(self, node: Machine, make_worker: WorkerMaker) -> None:
        self._make_worker = make_worker
        self.node = node
        self.world = node.world
        self.life = node.life
        self.running: dict[Worker, SimWorker | None] = {"network": None, "trainer": None}
        if node.settings.chain is not None:
            self.running["chain"] = None
        self.refusals = 0
        self.supervision = Supervision(tuple(self.running), LIMITS)
        self._unsent: dict[Worker, list[ToWorker]] = {}  # messages for a process that is being executed
        self._pid = node.life * 1000

    @property
    def workers(self) -> list[SimWorker]:
        """The processes that live, in a fixed order."""
        return [worker for worker in self.running.values() if worker is not None and worker.alive]

    # --- what it is told ---

    def dispatch(self, command: Command) -> None:
        """Carry out a command, or hand it to the worker that it is for."""
        if isinstance(command, SupervisorCommand):
            self.perform(command)
        else:
            self.hand(worker_of(command), command)

    def perform(self, command: SupervisorCommand) -> None:
        """Start a worker, kill one, or stop all."""
        actions = self.supervision.perform(command, self.world.now)
        if isinstance(command, StartWorker) and actions != [Execute(command.worker, command.attempt)]:
            self.node.fail(f"{command.id} is not carried out, but {actions}")
        self._act(actions)
        if isinstance(command, StopWorkers):
            self._end_in_time()

    def hand(self, worker: Worker, command: Command) -> None:
        """Hand a command to a worker's process, or drop it."""
        if PORTS[type(command)] != worker:
            self.node.fail(f"{command.id} goes to the {worker} worker")
        self._act(self.supervision.hand(worker, command))

    # --- what it does ---

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Tell():
                    self.node.receive(self.life, action.event)
                case Execute():
                    self._unsent[action.worker] = []
                    self.world.call_in(EXEC_S, self._execute, action.worker, action.attempt)
                case Send():
                    self._send(action.worker, action.message)
                case Terminate():
                    self._terminate(action.worker)
                case Kill():
                    self._kill(action.worker)
                case _:
                    assert_never(action)

    def _execute(self, worker: Worker, attempt: int) -> None:
        if self._is_over():
            return
        unsent = self._unsent.pop(worker)
        if self.refusals > 0:
            self.refusals -= 1
            self._act(self.supervision.start_failed(worker, "cannot execute", wanting=False))
            return
        self._pid += 1
        process = self._make_worker(self, worker, self._pid)
        process.ignores_stop = self.world.random.random() < IGNORES_STOP_CHANCE
        self.running[worker] = process
        self._act(self.supervision.started(worker, process.pid))
        if process.alive:
            process.begin()
        for message in unsent:
            self._send(worker, message)

    def _send(self, worker: Worker, message: ToWorker) -> None:
        if worker in self._unsent:
            self._unsent[worker].append(message)
            return
        process = self.running[worker]
        if process is None or not process.alive:
            return  # into a pipe that nobody reads any more
        match message:
            case Perform():
                if len(process.backlog) >= MESSAGES_QUEUED_MAX:
                    self._act(self.supervision.unread(worker))
                else:
                    process.take(message.command)
            case Ping():
                process.later(0.0, self.hear, process, Pong(message.number))
            case Stop():
                process.later(self.world.random.uniform(*STOP_S), process.heed_stop)
            case _:
                self.node.fail(f"a worker is sent {message}")

    def _terminate(self, worker: Worker) -> None:
        process = self.running[worker]
        if process is not None and process.pid % 2:  # else it ignores that too
            process.later(0.0, self.die, process, -signal.SIGTERM)

    def _kill(self, worker: Worker) -> None:
        process = self.running[worker]
        if process is not None:
            self.world.counts["worker_exits"] += process.alive
            self.die(process, -signal.SIGKILL)

    def die(self, process: SimWorker, status: int) -> None:
        """A process ends with this status."""
        if process.alive:
            process.end()
            process.status = status
            self.world.call_in(REAP_S, self._reap, process)

    def _reap(self, process: SimWorker) -> None:
        if self._is_over():
            return
        stopping, actions = self.supervision.is_stopping, self.supervision.ended(process.kind, process.status)
        for action in actions:
            if isinstance(action, Tell) and isinstance(action.event, WorkerExited):
                self._check_exit(process, action.event, stopping)
        self._act(actions)

    def _check_exit(self, process: SimWorker, event: WorkerExited, stopping: bool) -> None:
        """What is told of an end is what happened: through whom it was, and whether a restart can help."""
        if event.outside != process.outside and (event.outside or not stopping):
            self.node.fail(f"it is told wrongly through whom a worker ended: {event}")
        if event.permanent != (process.fault is not None and process.fault.permanent):
            self.node.fail(f"it is told wrongly whether a restart can help: {event}")

    # --- time ---

    def _end_in_time(self) -> None:
        """Wait no longer than `stop_s` for processes that were asked to end."""
        if self.supervision.due_at < math.inf:
            self.world.call_at(max(self.supervision.due_at, self.world.now), self._tick)

    def _tick(self) -> None:
        if self._is_over():
            return
        if self.node.frozen_until > self.world.now:  # so is what waits for the workers
            self.world.call_at(self.node.frozen_until, self._tick)
            return
        self._act(self.supervision.tick(self.world.now))
        self._end_in_time()

    def watch(self, process: SimWorker) -> None:
        """A process stands still: from now on its pings count. While it answers at once they would change nothing."""
        if not process.watched:
            process.watched = True
            self.world.call_in(PING_S / 2, self._ping, process)

    def _ping(self, process: SimWorker) -> None:
        if self._is_over() or not process.alive:
            return
        if self.node.frozen_until > self.world.now:
            self.world.call_at(self.node.frozen_until, self._ping, process)
            return
        process.watched = silent = process.frozen_until > self.world.now
        self._act(self.supervision.ping(process.kind))
        if silent:
            self.world.call_in(PING_S, self._ping, process)

    # --- what happens to its processes ---

    def hear(self, process: SimWorker, message: FromWorker) -> None:
        """A process has sent a message."""
        if self._is_over() or not process.alive:
            return
        actions = self.supervision.heard(process.kind, message)
        if isinstance(message, Observed) and Tell(message.event) not in actions:
            self.node.fail(f"{type(message.event).__name__} of the {process.kind} worker is lost")
        self._act(actions)
        self.supervision.hands_over(process.kind, bool(self.node.piped))

    def has_room(self) -> None:
        """No fact waits for room in the inbox any more."""
        for worker in self.running:
            self.supervision.hands_over(worker, False)

    def lose(self, process: SimWorker, reason: str, permanent: bool = False) -> None:
        """A worker process breaks by itself, for good or not, or somebody kills it."""
        if not process.alive:
            return
        self.world.counts["worker_exits"] += 1
        if permanent:
            process.fault = Fault(reason, permanent=True)
            self.hear(process, process.fault)
        process.outside = not permanent and process.pid % 2 == 1
        self.die(process, -signal.SIGKILL if process.outside else 1)

    def _is_over(self) -> bool:
        """Whether the daemon that this supervisor belongs to is gone."""
        return self.node.life != self.life or not self.node.running

    def abandon(self) -> None:
        """The daemon died: its workers see their pipes close."""
        for worker in self.running.values():
            if worker is not None and worker.alive:
                worker.orphan()
