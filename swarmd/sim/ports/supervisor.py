"""Made-up worker processes under the shipped supervision, and checks of what that decides about them."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, assert_never

from swarmd.config import WorkersConfig
from swarmd.core.commands import Command, KillWorker, StartWorker, StopWorkers, SupervisorCommand
from swarmd.core.events import Event, NodeStopped, WorkerExited, WorkerStarted, WorkerStartFailed
from swarmd.core.values import Worker
from swarmd.shell.supervision import (
    DRAIN_S,
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
from swarmd.sim.invariants.node import PORTS
from swarmd.sim.ports.chain_worker import ChainWorker
from swarmd.sim.ports.guarded import GuardedNetworkWorker
from swarmd.sim.ports.machine import SimWorker, TrainerWorker
from swarmd.sim.ports.network import NetworkWorker
from swarmd.worker.messages import Fault, FromWorker, Observed, Perform, Ping, Pong, Stop, ToWorker

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode

EXEC_S = 0.02
REAP_S = 0.01  # from a process's end to its being reaped
STOP_S = (0.1, 3.0)  # in which a worker ends that was asked to
IGNORES_STOP_CHANCE = 0.05  # that it does not, and has to be killed
LIMITS = WorkersConfig()
PING_S = LIMITS.silent_s / PINGS_MISSED
SLACK_S = 1.0
TERMINATE_S = 1.0  # at least, from SIGTERM to SIGKILL

KINDS: dict[Worker, type[SimWorker]] = {"network": NetworkWorker, "trainer": TrainerWorker, "chain": ChainWorker}
GUARDED_KINDS = KINDS | {"network": GuardedNetworkWorker}  # among strangers


class SimSupervisor:
    """The worker processes of one daemon life.

    Attributes:
        ports: where the daemon's commands go.
        running: the process of each worker; None, or a dead one, when there is none.
        refusals: how many of the next starts fail.
    """

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.world = node.world
        self.life = node.life
        self.running: dict[Worker, SimWorker | None] = {"network": None, "trainer": None}
        if node.settings.chain is not None:
            self.running["chain"] = None
        self.refusals = 0
        self.supervision = Supervision(tuple(self.running), LIMITS)
        self.checks = SupervisionChecks(self)
        self._unsent: dict[Worker, list[ToWorker]] = {}  # messages for a process that is being executed
        self._pid = node.life * 1000

    # --- what it is told ---

    def dispatch(self, command: Command) -> None:
        """Carry out a command, or hand it to the worker that it is for."""
        if isinstance(command, SupervisorCommand):
            self.perform(command)
        else:
            self.hand(worker_of(command), command)

    def perform(self, command: SupervisorCommand) -> None:
        """Start a worker, kill one, or stop all."""
        self.checks.on_command(command)
        actions = self.supervision.perform(command, self.world.now)
        if isinstance(command, StartWorker) and actions != [Execute(command.worker, command.attempt)]:
            self.world.fail(self.node, f"{command.id} is not carried out, but {actions}")
        self._act(actions)
        if isinstance(command, StopWorkers):
            self._end_in_time()

    def hand(self, worker: Worker, command: Command) -> None:
        """Hand a command to a worker's process, or drop it."""
        if PORTS[type(command)] != worker:
            self.world.fail(self.node, f"{command.id} goes to the {worker} worker")
        self._act(self.supervision.hand(worker, command))

    # --- what it does ---

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Tell():
                    self.checks.on_told(action.event)
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
        process = (KINDS if self.world.hostile is None else GUARDED_KINDS)[worker](self.node, self._pid)
        process.ignores_stop = self.world.random.random() < IGNORES_STOP_CHANCE
        self.running[worker] = process
        self.checks.on_executed(process)
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
                self.checks.on_asked(message.grace_s)
                process.later(self.world.random.uniform(*STOP_S), self._heed_stop, process)
            case _:
                self.world.fail(self.node, f"a worker is sent {message}")

    def _heed_stop(self, process: SimWorker) -> None:
        """A worker ends as it was asked to."""
        if process.ignores_stop:
            return
        if isinstance(process, NetworkWorker):
            process.say_goodbye()
        self._die(process, 0)

    def _terminate(self, worker: Worker) -> None:
        process = self.running[worker]
        self.checks.on_signal(process, signal.SIGTERM)
        if process is not None and process.pid % 2:  # else it ignores that too
            process.later(0.0, self._die, process, -signal.SIGTERM)

    def _kill(self, worker: Worker) -> None:
        process = self.running[worker]
        self.checks.on_signal(process, signal.SIGKILL)
        if process is not None:
            self.world.counts["worker_exits"] += process.alive
            self._die(process, -signal.SIGKILL)

    def _die(self, process: SimWorker, status: int) -> None:
        if process.alive:
            process.end()
            process.status = status
            self.world.call_in(REAP_S, self._reap, process)

    def _reap(self, process: SimWorker) -> None:
        if not self._is_over():
            self._act(self.supervision.ended(process.kind, process.status))

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
        self.checks.on_ping(process, silent)
        self._act(self.supervision.ping(process.kind))
        if silent:
            self.world.call_in(PING_S, self._ping, process)

    # --- what happens to its processes ---

    def hear(self, process: SimWorker, message: FromWorker) -> None:
        """A frame of a process comes."""
        if self._is_over() or not process.alive:
            return
        self.checks.on_heard(process)
        actions = self.supervision.heard(process.kind, message)
        if isinstance(message, Observed) and Tell(message.event) not in actions:
            self.world.fail(self.node, f"{type(message.event).__name__} of the {process.kind} worker is lost")
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
        self._die(process, -signal.SIGKILL if process.outside else 1)

    def _is_over(self) -> bool:
        """Whether the daemon that this supervisor belongs to is gone."""
        return self.node.life != self.life or not self.node.running

    def abandon(self) -> None:
        """The daemon died: its workers see their pipes close."""
        for worker in self.running.values():
            if isinstance(worker, TrainerWorker) and worker.alive:
                worker.orphan()
            elif worker is not None:
                worker.end()


class SupervisionChecks:
    """What must hold of every decision about processes, told from what really happens to them."""

    def __init__(self, supervisor: SimSupervisor) -> None:
        self._supervisor = supervisor
        self._node = supervisor.node
        self._world = supervisor.world
        self._of = {worker: Followed() for worker in supervisor.running}
        self._stop_at = math.inf
        self._grace_s = math.inf  # of those who were never asked
        self._stopped = False

    def on_command(self, command: SupervisorCommand) -> None:
        """The core wants something."""
        if isinstance(command, StopWorkers):
            self._stop_at = self._world.now
            self._world.call_in(LIMITS.stop_s + DRAIN_S + SLACK_S, self._check_stopped)
            return
        followed = self._of[command.worker]
        if isinstance(command, KillWorker):
            followed.ordered = True
        elif followed.process is not None:
            self._fail(f"{command.id} was sent while a {command.worker} worker runs")
        else:
            self._of[command.worker] = Followed(owed=True)

    def on_executed(self, process: SimWorker) -> None:
        """There is a new process."""
        if self._of[process.kind].process is not None:
            self._fail(f"a second {process.kind} worker is executed beside the first")
        if self._stop_at + EXEC_S < self._world.now:
            self._fail(f"a {process.kind} worker is started after the node began to stop")
        self._of[process.kind].process = process

    def on_told(self, event: Event) -> None:
        """The core is told something about a process, or that the node has stopped."""
        if isinstance(event, WorkerStarted):
            process = self._of[event.worker].process
            if process is None or process.pid != event.pid:
                self._fail(f"{event} is told, and there is another or none")
        elif isinstance(event, WorkerStartFailed | WorkerExited):
            followed = self._of[event.worker]
            if not followed.owed:
                self._fail(f"the end of one {event.worker} worker is told twice: {event.reason}")
            if isinstance(event, WorkerExited):
                self._check_exit(event, followed)
            self._of[event.worker] = Followed()
        elif isinstance(event, NodeStopped):
            left = [worker for worker, followed in self._of.items() if followed.process is not None]
            if left:
                self._fail(f"the node counts as stopped while its {', '.join(left)} worker is there")
            self._stopped = True

    def _check_exit(self, event: WorkerExited, followed: Followed) -> None:
        """How it ended is what really happened."""
        process = followed.process
        if process is None or process.alive:
            self._fail(f"{event} is told, and no process has ended")
        unasked = process.outside and not followed.ordered and self._stop_at == math.inf
        if (event.outside and not process.outside) or (unasked and not event.outside) or event.planned:
            self._fail(f"it is told wrongly through whom a worker ended: {event}")
        if event.permanent != (process.fault is not None and process.fault.permanent):
            self._fail(f"it is told wrongly whether a restart can help: {event}")

    def on_asked(self, grace_s: float) -> None:
        """A worker is asked to end within a time."""
        self._grace_s = grace_s

    def on_signal(self, process: SimWorker | None, number: signal.Signals) -> None:
        """A process is asked to end by a signal, or killed."""
        if process is None:
            self._fail(f"{number.name} goes to a process that was never there")
        followed, now = self._of[process.kind], self._world.now
        silent_s = followed.quiet_pings * PING_S
        because = followed.ordered or silent_s >= LIMITS.silent_s or len(process.backlog) >= MESSAGES_QUEUED_MAX
        if not because and self._stop_at == math.inf:
            self._fail(f"the {process.kind} worker is killed, it was silent for {silent_s:.0f} s")
        if not because and now < self._stop_at + self._grace_s:
            self._fail(f"the {process.kind} worker gets {number.name} {now - self._stop_at:.1f} s after it was asked")
        if not because and number == signal.SIGKILL and now < followed.terminated_at + TERMINATE_S:
            self._fail(f"the {process.kind} worker gets no time to end after SIGTERM")
        followed.ordered = followed.ordered or number == signal.SIGKILL
        if number == signal.SIGTERM:
            followed.terminated_at = now

    def on_heard(self, process: SimWorker) -> None:
        """It answers."""
        followed = self._of[process.kind]
        followed.spoken, followed.quiet_pings = True, 0

    def on_ping(self, process: SimWorker, silent: bool) -> None:
        """A ping is due; `silent`: it will not be answered now."""
        followed = self._of[process.kind]
        if silent and followed.spoken and not self._node.piped:
            followed.quiet_pings += 1
        if followed.quiet_pings * PING_S > LIMITS.silent_s + 2 * PING_S:
            self._fail(f"the {process.kind} worker answers no ping and lives")

    def _check_stopped(self) -> None:
        """An orderly stop comes to its end, unless the daemon stood still meanwhile."""
        held = max(self._node.frozen_until, self._node.busy_until) > self._stop_at
        same = self._node.life == self._supervisor.life and self._node.running
        if same and not held and not self._stopped:
            self._fail("a stop does not come to its end")

    def _fail(self, what: str) -> NoReturn:
        self._world.fail(self._node, what)


class Followed:
    """What really becomes of one worker.

    Attributes:
        owed: the core has not heard of its end yet.
        process: that was executed, until the core has heard of its end.
        ordered: somebody ordered it killed.
        spoken: it has sent a frame.
        quiet_pings: in a row, without an answer.
    """

    def __init__(self, owed: bool = False) -> None:
        self.owed = owed
        self.process: SimWorker | None = None
        self.ordered = self.spoken = False
        self.quiet_pings = 0
        self.terminated_at = math.inf
