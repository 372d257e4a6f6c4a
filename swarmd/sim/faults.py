"""What goes wrong in the simulated world, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from swarmd.core.events import StopRequested
from swarmd.sim.network import NetworkWorker
from swarmd.sim.node import CRASH_POINTS, Node

if TYPE_CHECKING:
    from swarmd.sim.world import World

PARTITION_S = (10.0, 180.0)
FREEZE_S = (2.0, 120.0)
SLOW_DISK_S = (0.5, 8.0)
OPERATOR_S = 60.0  # how often somebody looks whether the swarm has run its rounds
CLOCK_STEP_S = 3.0  # a clock set anew is off by up to this


class Faults:
    """Draws faults at random instants until the world becomes calm."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.over = False
        self._rate_s = world.profile.faults * world.profile.nodes / 3600.0

    def begin(self) -> None:
        if self._rate_s > 0:
            self._schedule()
        if self.world.profile.rounds_max:
            self.world.call_in(OPERATOR_S, self._look_for_end)

    def _schedule(self) -> None:
        self.world.call_in(self.random.expovariate(self._rate_s), self._strike)

    def _strike(self) -> None:
        if self.over:
            return
        self._schedule()
        node = self.random.choice(self.world.nodes)
        if node.running:
            self.random.choices(_KINDS, _WEIGHTS)[0](self, node)

    def end(self) -> None:
        """From now on nothing goes wrong any more. Frozen workers thaw when their time has come."""
        self.over = True
        world = self.world
        world.dht.heal()
        for node in world.nodes:
            node.crash_point = None
            node.supervisor.refusals = 0
            node.frozen_until = min(node.frozen_until, world.now)
            world.call_in(0.0, node.thaw, node.life)

    # --- kinds of faults ---

    def _crash(self, node: Node) -> None:
        node.crash()

    def _crash_in_commit(self, node: Node) -> None:
        node.crash_point = self.random.choice(CRASH_POINTS)

    def _crash_coordinator(self, node: Node) -> None:
        self.world.nodes[0].crash()

    def _kill_worker(self, node: Node) -> None:
        if node.workers:
            node.lose_worker(self.random.choice(node.workers), "killed")

    def _lose_link(self, node: Node) -> None:
        worker = node.supervisor.running["network"]
        if isinstance(worker, NetworkWorker):
            worker.lose_link()

    def _partition(self, node: Node) -> None:
        dht = self.world.dht
        if not dht.split:
            self.world.counts["partitions"] += 1
            dht.part()
            self.world.call_in(self.random.uniform(*PARTITION_S), dht.heal)

    def _freeze_all(self, node: Node) -> None:
        """SIGSTOP for the daemon and its workers."""
        until = self.world.now + self.random.uniform(*FREEZE_S)
        self.world.counts["freezes"] += 1
        node.freeze(until)
        for worker in node.workers:
            worker.freeze(until)

    def _freeze_daemon(self, node: Node) -> None:
        self.world.counts["freezes"] += 1
        node.freeze(self.world.now + self.random.uniform(*FREEZE_S))

    def _freeze_worker(self, node: Node) -> None:
        if node.workers:
            self.world.counts["freezes"] += 1
            self.random.choice(node.workers).freeze(self.world.now + self.random.uniform(*FREEZE_S))

    def _slow_disk(self, node: Node) -> None:
        node.busy_until = self.world.now + self.random.uniform(*SLOW_DISK_S)

    def _refuse_starts(self, node: Node) -> None:
        """The next worker processes cannot be executed."""
        node.supervisor.refusals = self.random.randint(1, 3)
        self._kill_worker(node)

    def _break_for_good(self, node: Node) -> None:
        """A worker ends for a reason that a restart cannot mend."""
        for worker in node.workers[:1]:
            node.supervisor.lose(worker, "identity in use", permanent=True)

    def _stop(self, node: Node) -> None:
        node.receive(node.life, StopRequested("operator"))

    def _forget(self, node: Node) -> None:
        self.world.dht.forget()

    def _set_clock(self, node: Node) -> None:
        node.skew_s += self.random.uniform(-CLOCK_STEP_S, CLOCK_STEP_S)

    def _look_for_end(self) -> None:
        """The operator gives a swarm that has run its rounds more of them."""
        if self.over:
            return
        self.world.call_in(OPERATOR_S, self._look_for_end)
        node = self.world.nodes[0]
        coordination = node.state.coordination
        if node.running and coordination is not None and coordination.chart == "finished":
            node.extend(self.world.profile.rounds_max)
            self._stop(node)


_FAULTS: tuple[tuple[Callable[[Faults, Node], None], float], ...] = (
    (Faults._crash, 4.0),
    (Faults._crash_in_commit, 5.0),
    (Faults._crash_coordinator, 1.0),
    (Faults._kill_worker, 4.0),
    (Faults._lose_link, 4.0),
    (Faults._partition, 1.0),
    (Faults._freeze_all, 2.0),
    (Faults._freeze_daemon, 1.0),
    (Faults._freeze_worker, 1.5),
    (Faults._slow_disk, 2.0),
    (Faults._refuse_starts, 0.5),
    (Faults._break_for_good, 0.2),
    (Faults._stop, 1.0),
    (Faults._forget, 1.0),
    (Faults._set_clock, 1.0),
)
_KINDS = [kind for kind, _ in _FAULTS]
_WEIGHTS = [weight for _, weight in _FAULTS]
