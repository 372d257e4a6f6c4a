"""What must hold after every commit, on states and on commands, whatever the world does.

Everything is counted from events and commands; the core's own books are only compared with that.
"""

from __future__ import annotations

from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import Command, Gather, PublishReport
from swarmd.core.events import Event, RolloutsGathered
from swarmd.sim.chain import SimReceipt
from swarmd.sim.network import NetworkWorker
from swarmd.sim.network_checks import NetworkChecks
from swarmd.sim.node import SimNode
from swarmd.sim.node_checks import Accounts, CommandChecks, WeightsChecks, check_progress, find_stall
from swarmd.sim.submission_checks import SubmissionChecks
from swarmd.sim.swarm import Swarm
from swarmd.sim.swarm_checks import CoordinatorModel, Honest, Recovery


class NodeChecks:
    """The checks of one node, by its journal.

    Args:
        submissions: those of what it submits to a contract, if there is one.
    """

    def __init__(
        self, world: Swarm, node: SimNode, honest: Honest, recovery: Recovery, submissions: SubmissionChecks | None
    ) -> None:
        self.node = node
        self.orders = CommandChecks(node)
        self._accounts = Accounts(node)
        takes = node.settings.catch_up_rounds or node.settings.average_rounds
        self._weights = WeightsChecks(node) if takes else None
        coordinates = node.settings.coordination is not None
        self._coordinator = CoordinatorModel(world, node, honest, recovery) if coordinates else None
        self._honest = honest
        self._submissions = submissions

    def apply(self, applied: AppliedEvent) -> None:
        """A durable event, once, in the order of the log."""
        before, after = applied.before, applied.after
        self.orders.apply(applied)
        if self._weights is not None:
            self._weights.apply(applied)
        self._honest.look_at(self.node, applied)
        if after is before:
            return
        check_progress(self.node, applied)
        self._accounts.apply(applied)
        if self._coordinator is not None:
            self._coordinator.apply(applied)
        if self._submissions is not None and after.chain is not None:
            self._submissions.apply(applied)
        stall = find_stall(after)
        if stall and find_stall(after, self.orders.killed_workers(after)):
            self.node.fail(stall)


class Checks:
    """All checks of a world."""

    def __init__(self, world: Swarm) -> None:
        self.world = world
        self.recovery = Recovery(world)
        self.honest = Honest(world)
        self.network = NetworkChecks(world)
        chain = world.chain
        self.submissions = [] if chain is None else [SubmissionChecks(node, chain) for node in world.nodes]
        self._by_peer = {checks.node.peer: checks for checks in self.submissions}
        self.nodes = [self._make(node) for node in world.nodes]
        self.reports: dict[tuple[str, int, int], PublishReport] = {}

    def _make(self, node: SimNode) -> NodeChecks:
        submissions = self.submissions[node.index] if self.submissions else None
        return NodeChecks(self.world, node, self.honest, self.recovery, submissions)

    def forget(self, node: SimNode) -> None:
        """A node goes on from a backup: its own books are those of then. What it has published stays published."""
        self.nodes[node.index] = self._make(node)
        self.honest.forget(node)
        self.network.forget(node)

    def on_network_command(self, worker: NetworkWorker, command: Command) -> None:
        """A network worker is told something. There is one report for each stage, whatever happened in between."""
        if isinstance(command, Gather):
            self.network.on_gather(worker, command)
        elif isinstance(command, PublishReport):
            self.world.counts["reports"] += 1
            place = (command.round, command.stage)
            known = self.reports.setdefault((worker.peer, *place), command)
            if known != command:
                worker.node.fail(f"two reports for round {place[0]}, stage {place[1]}: {known} and {command}")

    def on_network_fact(self, worker: NetworkWorker, event: Event) -> None:
        """A network worker is about to tell something."""
        if isinstance(event, RolloutsGathered):
            self.network.on_gathered(worker, event)
        else:
            self.network.on_fact(worker, event)

    def on_receipt(self, receipt: SimReceipt) -> None:
        """Check a transaction that was mined."""
        if receipt.tx.submission:
            self._by_peer[receipt.tx.call.peer].on_receipt(receipt)

    def at_end(self) -> None:
        """Make the checks that belong to the end of a run."""
        self.recovery.check()
        if self.recovery.settled is not None:
            for each in self.submissions:
                each.check()
        self.network.check()
        self.honest.check()
