"""What must hold after every commit, on states and on commands, whatever the world does.

Everything is counted from events and commands; the core's own books are only compared with that.
"""

from __future__ import annotations

from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import Command, Gather, PublishReport
from swarmd.core.events import Event, RolloutsGathered
from swarmd.sim.chain import SimReceipt
from swarmd.sim.network import SimNetworkWorker
from swarmd.sim.network_checks import NetworkChecks
from swarmd.sim.node import SimNode
from swarmd.sim.node_checks import CommandChecks, RoundAccounts, TokenChecks, WeightsChecks, check_progress, find_stall
from swarmd.sim.submission_checks import SubmissionChecks
from swarmd.sim.swarm import SimSwarm
from swarmd.sim.swarm_checks import CoordinatorModel, HonestNodesChecks, RecoveryChecks


class NodeChecks:
    """The checks of one node, by its journal.

    Args:
        submissions: those of what it submits to a contract, if there is one.
    """

    def __init__(
        self,
        world: SimSwarm,
        node: SimNode,
        honest: HonestNodesChecks,
        recovery: RecoveryChecks,
        submissions: SubmissionChecks | None,
    ) -> None:
        self.node = node
        self.orders = CommandChecks(node)
        self._accounts = RoundAccounts(node)
        self._tokens = TokenChecks(node)
        takes = node.settings.catch_up_rounds or node.settings.average_rounds
        self._weights = WeightsChecks(node) if takes else None
        coordinates = node.settings.coordination is not None
        self._coordinator = CoordinatorModel(world, node, honest, recovery) if coordinates else None
        self._honest = honest
        self._submissions = submissions

    def check_event(self, applied: AppliedEvent) -> None:
        """A durable event, once, in the order of the log."""
        before, after = applied.before, applied.after
        self.orders.check_event(applied)
        if self._weights is not None:
            self._weights.check_event(applied)
        self._honest.check_event(self.node, applied)
        if after is before:
            return
        check_progress(self.node, applied)
        self._accounts.check_event(applied)
        self._tokens.check_event(applied)
        if self._coordinator is not None:
            self._coordinator.check_event(applied)
        if self._submissions is not None and after.chain is not None:
            self._submissions.check_event(applied)
        stall = find_stall(after)
        if stall and find_stall(after, self.orders.killed_workers(after)):
            self.node.fail_run(stall)


class WorldChecks:
    """All checks of a world."""

    def __init__(self, world: SimSwarm) -> None:
        self.world = world
        self.recovery = RecoveryChecks(world)
        self.honest = HonestNodesChecks(world)
        self.network = NetworkChecks(world)
        chain = world.chain
        self.submissions = [] if chain is None else [SubmissionChecks(node, chain) for node in world.nodes]
        self._by_peer = {checks.node.peer: checks for checks in self.submissions}
        self.nodes = [self._make_node_checks(node) for node in world.nodes]
        self.reports: dict[tuple[str, int, int], PublishReport] = {}

    def _make_node_checks(self, node: SimNode) -> NodeChecks:
        submissions = self.submissions[node.index] if self.submissions else None
        return NodeChecks(self.world, node, self.honest, self.recovery, submissions)

    def reset_node(self, node: SimNode) -> None:
        """A node goes on from a backup: its own books are those of then. What it has published stays published."""
        self.nodes[node.index] = self._make_node_checks(node)
        self.honest.reset_node(node)
        self.network.reset_node(node)

    def on_network_command(self, worker: SimNetworkWorker, command: Command) -> None:
        """A network worker is told something. There is one report for each stage, whatever happened in between."""
        if isinstance(command, Gather):
            self.network.on_gather_command(worker, command)
        elif isinstance(command, PublishReport):
            self.world.counts["reports"] += 1
            place = (command.round, command.stage)
            known = self.reports.setdefault((worker.peer, *place), command)
            if known != command:
                worker.node.fail_run(f"two reports for round {place[0]}, stage {place[1]}: {known} and {command}")

    def on_network_fact(self, worker: SimNetworkWorker, event: Event) -> None:
        """A network worker is about to tell something."""
        if isinstance(event, RolloutsGathered):
            self.network.on_rollouts_gathered(worker, event)
        else:
            self.network.on_network_fact(worker, event)

    def on_receipt(self, receipt: SimReceipt) -> None:
        """Check a transaction that was mined."""
        if receipt.tx.submission:
            self._by_peer[receipt.tx.call.peer].on_transaction_mined(receipt)

    def check_at_end(self) -> None:
        """Make the checks that belong to the end of a run."""
        self.recovery.check_at_end()
        if self.recovery.settled is not None:
            for each in self.submissions:
                each.check_at_end()
        self.network.check_at_end()
        self.honest.check_at_end()
