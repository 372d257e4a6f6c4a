"""A node's state only goes forward, stays within its bounds, and moves along the charts."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from swarmd.core.chart import Chart, StateT, TriggerT, default_charts
from swarmd.core.commands import Command
from swarmd.core.events import Event, NodeStarted, WorkerExited, WorkerStartFailed
from swarmd.core.state import (
    BLOCKS_KEPT,
    MEMBERS_MAX,
    ONCHAIN_PEERS_MAX,
    REJECTIONS_KEPT,
    REWARDS_KEPT,
    SKIPS_KEPT,
    Chain,
    Clock,
    Coordination,
    Deadline,
    State,
    Work,
)
from swarmd.core.turn import PENDING_MAX

if TYPE_CHECKING:
    from swarmd.core.applied import Applied
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World

MOVES_MAX = 4  # transitions of one chart in one step: trained, published, submitted, announced
DEADLINES_MAX = PENDING_MAX + 16
DEADLINE_S_MAX = 8400.0  # further away nothing in the simulated settings can lie, two clocks being wrong
FAR = (-1, -1)


def reachable(chart: Chart[StateT, TriggerT], without: tuple[TriggerT, ...]) -> dict[StateT, set[StateT]]:
    """For every state, those that one step may lead to."""
    edges: dict[StateT, set[StateT]] = {state: {state} for state in chart.states}
    for (source, trigger), dest in chart.table.items():
        if trigger not in without:
            edges[source].add(dest)
    reached = edges
    for _ in range(MOVES_MAX - 1):
        reached = {state: {end for middle in ends for end in edges[middle]} for state, ends in reached.items()}
    return reached


class ProgressChecks:
    """Checks of one event's effect on one node's state."""

    def __init__(self, world: World) -> None:
        self.world = world
        charts = default_charts()
        self.round = reachable(charts.round, ("start",))
        self.link = reachable(charts.link, ("exited",))
        self.trainer = reachable(charts.trainer, ("exited",))
        self.coordinator = reachable(charts.coordinator, ("restart",))

    def look_at(self, node: SimNode, applied: Applied) -> None:
        envelope, before, after = applied.envelope, applied.before, applied.after
        if after.chart is not before.chart or after.link is not before.link or after.trainer is not before.trainer:
            self._check_charts(node, envelope.event, before, after)
        if after.work is not before.work and before.work is not None:
            self._check_forward(node, "work", _place(before.work), _place(after.work))
        if after.clock is not before.clock and before.clock is not None:
            self._check_forward(node, "the clock", _mark(before.clock), _mark(after.clock))
        if after.done is not before.done:
            self._check_forward(node, "done", before.done, after.done)
        if after.skips is not before.skips:
            self._check_forward(node, "skipped_to", (before.skipped_to,), (after.skipped_to,))
        if after.deadlines is not before.deadlines:
            self._check_deadlines(node, envelope.at, after.deadlines)
        if after.pending is not before.pending and len(after.pending) > 1:
            self._check_pending(node, after.pending)
        if after.chain is not before.chain and after.chain is not None:
            self._check_chain(node, envelope.event, before.chain, after.chain)
        if after.coordination is not before.coordination:
            self._check_coordinator_chart(node, envelope.event, before.coordination, after.coordination)
        if after.rewards is not before.rewards or after.coordination is not before.coordination:
            self._check_sizes(node, after)

    def _check_charts(self, node: SimNode, event: Event, before: State, after: State) -> None:
        legal = (
            after.chart in self.round[before.chart]
            and after.link.chart in self.link[before.link.chart]
            and after.trainer.chart in self.trainer[before.trainer.chart]
        )
        if not legal and not self._is_beginning_or_end(event, before, after):
            here = (before.chart, before.link.chart, before.trainer.chart)
            there = (after.chart, after.link.chart, after.trainer.chart)
            self.world.fail(node, f"no chart leads from {here} to {there} on {type(event).__name__}")

    def _check_coordinator_chart(
        self, node: SimNode, event: Event, before: Coordination | None, after: Coordination | None
    ) -> None:
        """Only a new life begins the muster again."""
        here, there = before.chart if before else "idle", after.chart if after else "idle"
        restarts = isinstance(event, NodeStarted) and there == "idle" and here in ("idle", "mustering")
        if there not in self.coordinator[here] and not restarts:
            self.world.fail(node, f"no chart leads a coordinator from {here} to {there} on {type(event).__name__}")

    def _check_chain(self, node: SimNode, event: Event, before: Chain | None, after: Chain) -> None:
        here = before.chart if before else "down"
        restarts = isinstance(event, NodeStarted | WorkerExited | WorkerStartFailed) and after.chart == "down"
        if after.chart not in self.link[here] and not restarts:
            self.world.fail(node, f"no chart leads the chain from {here} to {after.chart} on {type(event).__name__}")
        if len(after.recent) > BLOCKS_KEPT or len(after.reporters) > ONCHAIN_PEERS_MAX:
            self.world.fail(node, "what is known of the chain has grown beyond its bound")
        if after.recent is not (before.recent if before else None):
            numbers = [block.number for block in after.recent]
            if any(high <= low for low, high in pairwise(numbers)):
                self.world.fail(node, f"blocks are remembered out of order: {numbers}")

    def _is_beginning_or_end(self, event: Event, before: State, after: State) -> bool:
        """A process that starts or ends may lead from anywhere to the beginning of a chart."""
        if isinstance(event, NodeStarted):
            return (after.chart, after.link.chart, after.trainer.chart) == ("starting", "down", "down")
        if not isinstance(event, WorkerExited | WorkerStartFailed) or after.chart not in self.round[before.chart]:
            return False
        gone = after.link if event.worker == "network" else after.trainer
        return gone.chart == "down"

    def _check_forward(self, node: SimNode, what: str, before: tuple[float, ...], after: tuple[float, ...]) -> None:
        if after < before:
            self.world.fail(node, f"{what} went back from {before} to {after}")

    def _check_deadlines(self, node: SimNode, at: float, deadlines: tuple[Deadline, ...]) -> None:
        due_at = {deadline.name: deadline.due_at for deadline in deadlines}
        if len(due_at) != len(deadlines) or len(due_at) > DEADLINES_MAX:
            self.world.fail(node, f"deadlines twice or out of bounds: {deadlines}")
        if deadlines and deadlines[-1].due_at > at + DEADLINE_S_MAX:
            self.world.fail(node, f"a deadline lies too far away: {deadlines[-1]}")

    def _check_pending(self, node: SimNode, pending: tuple[Command, ...]) -> None:
        if len(pending) > PENDING_MAX or len({command.id for command in pending}) != len(pending):
            self.world.fail(node, f"pending commands twice or out of bounds: {[command.id for command in pending]}")

    def _check_sizes(self, node: SimNode, after: State) -> None:
        sized = len(after.skips) <= SKIPS_KEPT and len(after.rewards) <= REWARDS_KEPT
        coordination = after.coordination
        if coordination is not None:
            sized = sized and len(coordination.members) <= MEMBERS_MAX and len(coordination.reports) <= MEMBERS_MAX
        if not sized or len(after.rejections) > REJECTIONS_KEPT:
            self.world.fail(node, "something in the state has grown beyond its bound")


def _place(work: Work | None) -> tuple[int, ...]:
    return FAR if work is None else (work.round, work.stage)


def _mark(clock: Clock | None) -> tuple[float, ...]:
    """Announcements in the order they were made; a stage opened again has a later deadline."""
    return FAR if clock is None else (clock.round, clock.stage, not clock.final, clock.deadline_at)
