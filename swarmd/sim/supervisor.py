"""The simulated supervisor: starts and ends a node's worker processes and reports what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.core.commands import Command, KillWorker, StartWorker, StopWorkers
from swarmd.core.events import NodeStopped, WorkerExited, WorkerStarted, WorkerStartFailed
from swarmd.core.values import Worker
from swarmd.sim.chain_worker import ChainWorker
from swarmd.sim.guarded import GuardedNetworkWorker
from swarmd.sim.network import NetworkWorker
from swarmd.sim.trainer import TrainerWorker
from swarmd.sim.worker import SimWorker

if TYPE_CHECKING:
    from swarmd.sim.node import Node

EXEC_S = 0.02
REAP_S = 0.01  # from a process's end to the fact
STOP_S = (0.1, 3.0)

KINDS: dict[Worker, type[SimWorker]] = {"network": NetworkWorker, "trainer": TrainerWorker, "chain": ChainWorker}
GUARDED_KINDS = KINDS | {"network": GuardedNetworkWorker}  # among strangers


class Supervisor:
    """The worker processes of one daemon life.

    Attributes:
        running: the process of each worker; None, or a dead one, when there is none.
        refusals: how many of the next starts fail.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.life = node.life
        self.running: dict[Worker, SimWorker | None] = {"network": None, "trainer": None}
        if node.settings.chain is not None:
            self.running["chain"] = None
        self.refusals = 0
        self.stopping = False
        self._pid = node.life * 1000

    def perform(self, command: Command) -> None:
        if isinstance(command, StartWorker):
            self.world.call_in(EXEC_S, self._start, command)
        elif isinstance(command, KillWorker):
            self._kill(command)
        elif isinstance(command, StopWorkers):
            self.stopping = True
            self.world.call_in(self.world.random.uniform(*STOP_S), self._stop, command)

    def _start(self, command: StartWorker) -> None:
        if self._is_over() or self.stopping:
            return
        present = self.running[command.worker]
        if present is not None and present.alive:
            self.world.fail(self.node, f"{command.id} was sent while a {command.worker} worker runs")
        if self.refusals > 0:
            self.refusals -= 1
            self.node.receive(self.life, WorkerStartFailed(command.worker, "cannot execute", command.attempt))
            return
        self._pid += 1
        kinds = KINDS if self.world.hostile is None else GUARDED_KINDS
        worker = kinds[command.worker](self.node, self._pid)
        self.running[command.worker] = worker
        self.node.receive(self.life, WorkerStarted(command.worker, self._pid, command.attempt))
        worker.begin()

    def _kill(self, command: KillWorker) -> None:
        worker = self.running[command.worker]
        if worker is not None and worker.alive:
            self.lose(worker, command.reason)

    def lose(self, worker: SimWorker, reason: str, permanent: bool = False) -> None:
        """A worker process ended; the fact follows at once."""
        if worker.alive:
            worker.end()
            self.world.counts["worker_exits"] += 1
            exited = WorkerExited(worker.kind, reason, signal=9, permanent=permanent)
            self.world.call_in(REAP_S, self.node.receive, self.life, exited)

    def _stop(self, command: StopWorkers) -> None:
        """All workers end when asked; then the node has stopped."""
        if self._is_over():
            return
        for worker in self.node.workers:
            if isinstance(worker, NetworkWorker):
                worker.say_goodbye()
            worker.end()
            self.node.receive(self.life, WorkerExited(worker.kind, "stopped", code=0))
        self.node.receive(self.life, NodeStopped(command.reason, command.code))

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
