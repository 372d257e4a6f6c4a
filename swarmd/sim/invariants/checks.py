"""What must hold after every commit, on states and on commands, whatever the world does.

Everything is counted anew from events and commands; the core's own books are only compared with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from swarmd.core.commands import Command, PublishReport
from swarmd.core.state import State
from swarmd.errors import SwarmdError
from swarmd.sim.invariants.claims import SubmissionChecks
from swarmd.sim.invariants.network import NetworkChecks, SignedRecords
from swarmd.sim.invariants.node import Accounts, CommandChecks, WeightsChecks, check_progress, find_stall
from swarmd.sim.invariants.swarm import CoordinatorModel, Honest, Recovery
from swarmd.sim.ports.chain import SimReceipt
from swarmd.sim.profile import SimProfile, draw_profile

if TYPE_CHECKING:
    from swarmd.core.applied import Applied
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World


class InvariantBroken(SwarmdError):
    """Something that must not happen has happened in a simulated run; the seed and profile repeat it."""

    def __init__(self, seed: int, profile: SimProfile, time_s: float, where: str, what: str) -> None:
        super().__init__(
            f"seed {seed}, {where}, {time_s:.3f} s after the beginning: {what}",
            f"Repeat it with: {line_of(seed, profile)}",
        )
        self.seed = seed
        self.what = what


def line_of(seed: int, profile: SimProfile) -> str:
    """The command line that repeats a run."""
    given = {} if profile.hostile == draw_profile(seed).hostile else {"hostile": profile.hostile}
    drawn = draw_profile(seed, **given)
    fields = msgspec.structs.asdict(profile).items()
    differing = given | {key: value for key, value in fields if value != getattr(drawn, key)}
    return " ".join([f"swarmd sim --seed {seed}", *(f"--set {key}={value}" for key, value in differing.items())])


class NodeChecks:
    """The checks of one node: a projection of its journal."""

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.accounts = Accounts(world, node)
        self.orders = CommandChecks(world, node)
        takes = node.settings.catch_up_rounds or node.settings.average_rounds
        self.weights = WeightsChecks(world, node) if takes else None
        self.chair = CoordinatorModel(world, node) if node.settings.coordination is not None else None
        self.claims = SubmissionChecks(world, node)
        self.seq = 0  # the fold of the events before `seq` is `state`
        self.state = State()

    def apply(self, applied: Applied) -> None:
        """A durable event, once, in the order of the log."""
        checks, before, after = self.world.checks, applied.before, applied.after
        self.seq, self.state = applied.seq + 1, after
        self.orders.apply(applied)
        if self.weights is not None:
            self.weights.apply(applied)
        checks.honest.look_at(self.node, applied)
        if after is before:
            return
        check_progress(self.world, self.node, applied)
        self.accounts.apply(applied)
        if self.chair is not None:
            self.chair.apply(applied)
        if after.chain is not None:
            self.claims.apply(applied)
        stall = find_stall(after)
        if stall and find_stall(after, self.orders.killed_workers(after)):
            self.world.fail(self.node, stall)


class Checks:
    """All checks of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledgers = [NodeChecks(world, node) for node in world.nodes]
        self._by_peer = {node.peer: ledger for node, ledger in zip(world.nodes, self.ledgers, strict=True)}
        self.recovery = Recovery(world)
        self.honest = Honest(world)
        self.signed = SignedRecords(world)
        self.network = NetworkChecks(world)
        self.reports: dict[tuple[str, int, int], PublishReport] = {}

    def forget(self, node: SimNode) -> None:
        """A node goes on from a backup: its own books are those of then. What it has published stays published."""
        self.ledgers[node.index] = self._by_peer[node.peer] = NodeChecks(self.world, node)
        self.honest.forget(node)

    def on_dispatch(self, node: SimNode, command: Command) -> None:
        """Check a command that is dispatched."""
        self.signed.on_dispatch(node, command)
        self.ledgers[node.index].orders.on_dispatch(command)

    def on_report(self, node: SimNode, report: PublishReport) -> None:
        """A report is published: there is one for each stage, whatever happened in between."""
        self.world.counts["reports"] += 1
        known = self.reports.setdefault((node.peer, report.round, report.stage), report)
        if known != report:
            self.world.fail(node, f"two reports for round {report.round}, stage {report.stage}: {known} and {report}")

    def on_receipt(self, receipt: SimReceipt) -> None:
        """Check a transaction that was mined."""
        if receipt.tx.submission:
            self._by_peer[receipt.tx.call.peer].claims.on_receipt(receipt)

    def expect_recovery(self) -> None:
        """Expect every node to recover from now on: no more faults are injected."""
        self.recovery.expect()
        self.network.expect()
        self.honest.expect()

    def at_end(self) -> None:
        """Make the checks that belong to the end of a run."""
        self.recovery.check()
        self.network.check()
        self.honest.check()
