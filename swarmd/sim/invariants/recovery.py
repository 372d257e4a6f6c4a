"""After the faults have ceased, every node finds its way back, and its reports count again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from swarmd.core.node.workers import LEAVING
from swarmd.core.state import Coordination, State

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World

PROPAGATION_S = 30.0  # from an announcement until every connected node has heard of it
SETTLE_S = 400.0  # from the end of the faults until the swarm is whole: restarts, back-off, hung trainers, a muster
CALM_S_MIN = 600.0  # a shorter calm proves nothing
AGAIN_STAGES = 3  # within which a healthy member with credit is credited again
PACE_MARGIN = 3.0  # a node is quick enough when it would have time for so many stages

Place = tuple[int, int]


class Recovery:
    """Compares the nodes at the end with where the coordinator was some time before."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.settled: Place | None = None  # the coordinator's place SETTLE_S after the calm began
        self.last: Place | None = None  # its place PROPAGATION_S before the end
        self._healthy: set[str] = set()  # members that are well since the open stage opened, all faults being over
        self._missed: Counter[str] = Counter()  # stages in a row, all of them calm, that each was not credited in

    def expect(self) -> None:
        """Expect every node to recover from now on."""
        if self.world.profile.calm_s >= CALM_S_MIN:
            self.world.call_in(SETTLE_S, self._mark_settled)
            self.world.call_at(self.world.ends_at - PROPAGATION_S, self._mark_last)

    def _mark_settled(self) -> None:
        self.settled = self._place()

    def _mark_last(self) -> None:
        self.last = self._place()

    def _place(self) -> Place:
        if self.world.chain is not None:
            return self.world.chain.contract.place
        coordination = self._coordination()
        return coordination.round, coordination.stage

    def _coordination(self) -> Coordination:
        coordination = self.world.nodes[0].state.coordination
        if coordination is None or not self.world.nodes[0].running:
            self.world.fail(self.world.nodes[0], "the coordinator does not run although all faults have ceased")
        return coordination

    def check(self) -> None:
        """Check at the end of a run that every node recovered."""
        if self.settled is None or self.last is None:
            return
        coordination = None if self.world.chain is not None else self._coordination()
        finished = coordination is not None and coordination.chart == "finished"
        if not finished and self._place() <= self.settled:
            self.world.fail(None, f"the swarm stands still at {self.settled} although all faults have ceased")
        for node in self.world.nodes:
            self._check_running(node)
            if finished:
                self._check_ended(node, node.state)
            else:
                self._check_node(node, coordination)

    def _check_running(self, node: SimNode) -> None:
        state = node.state
        if not node.running or state.link.chart != "up":
            self.world.fail(node, f"it is {state.chart}, its link {state.link.chart}, although all faults have ceased")
        if state.low_space is not None:
            self.world.fail(node, "it pauses although its disk has room")
        if state.chain is not None and state.chain.chart != "up":
            self.world.fail(node, f"its chain is {state.chain.chart}, although all faults have ceased")

    def _check_node(self, node: SimNode, coordination: Coordination | None) -> None:
        assert self.last is not None and self.settled is not None, "the marks are set before"
        state, chain = node.state, node.state.chain
        if state.clock is None or (state.clock.round, state.clock.stage) < self.last:
            self.world.fail(node, f"it knows {state.clock}, the swarm has been at {self.last} for {PROPAGATION_S} s")
        if chain is not None and (chain.round, chain.stage) < self.last:
            where = (chain.round, chain.stage)
            self.world.fail(node, f"it has the contract at {where}, it was at {self.last} long before")
        if self._is_waited_for(node) and not self._is_sitting_out(state):
            if state.done < self.settled:
                what = f"it trained {state.done} last, the swarm was at {self.settled} long before the end"
                self.world.fail(node, what)
            if coordination is not None:
                self._check_credit(node, coordination)
        if chain is not None:
            self.world.checks.ledgers[node.index].claims.check()

    def _check_ended(self, node: SimNode, state: State) -> None:
        if state.clock is None or not state.clock.final or state.chart not in ("waiting", "round.training"):
            self.world.fail(node, f"the swarm has ended, the node is {state.chart} and knows {state.clock}")

    def on_close(self, now: Coordination, reports: Collection[str]) -> None:
        """The coordinator closes a stage in which these reported, and opens the next, `now`."""
        if self.settled is None:
            return
        healthy = {node.peer for node in self.world.nodes if self._is_healthy(node, now)}
        for peer in self._healthy & healthy:
            self._missed[peer] = 0 if peer in reports else self._missed[peer] + 1
            if self._missed[peer] > AGAIN_STAGES:  # for the first of them it may have been too slow itself
                self.world.fail(None, f"{peer} is well and was not credited in {self._missed[peer]} stages of calm")
        for peer in self._missed.keys() - healthy:
            del self._missed[peer]
        self._healthy = healthy

    def _is_healthy(self, node: SimNode, now: Coordination) -> bool:
        """Whether a node is up, quick enough, and a member with credit."""
        state, member = node.state, now.members.get(node.peer)
        known = member is not None and member.rounds and not member.left and node.peer not in now.barred
        runs = node.running and state.link.chart == "up" and state.chart not in (*LEAVING, "round.publishing")
        trains = state.trainer.chart in ("idle", "busy") and state.low_space is None and state.catch_up is None
        return bool(known and runs and trains and self._is_waited_for(node)) and now.round >= state.floor

    def _is_waited_for(self, node: SimNode) -> bool:
        """By its own rules a swarm leaves nodes behind that take too long, or are slower than its quorum."""
        return is_quick(self.world, node) and self.world.profile.quorum == 1.0

    def _is_sitting_out(self, state: State) -> bool:
        """Whether a node that was brought back from a backup may not sign anything of the settled round yet."""
        assert self.settled is not None, "the marks are set before"
        return not state.restored and self.settled[0] < state.floor

    def _check_credit(self, node: SimNode, coordination: Coordination) -> None:
        assert self.settled is not None, "the marks are set before"
        credited = {member.peer: member.last_round for member in coordination.members}.get(node.peer, -1)
        if credited < self.settled[0]:
            self.world.fail(
                node, f"its reports count no more since round {credited}, the swarm is at {coordination.round}"
            )


def is_quick(world: World, node: SimNode) -> bool:
    """Whether it trains a stage well within the time that there is."""
    return node.pace_s * PACE_MARGIN < min(node.settings.train_s, world.profile.stage_s)
