"""Weights of peers: what a stage begins from was fetched and asked for, came before it, and is better, or a mean
with what no stage was averaged with before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.core.applied import Applied
from swarmd.core.commands import Train
from swarmd.core.events import NodeStarted, StageTrained, WeightsAdopted, WeightsFetched
from swarmd.core.values import PeerWeights
from swarmd.sim.node import SimNode

if TYPE_CHECKING:
    from swarmd.sim.world import World


class WeightsChecks:
    """Checks of one node."""

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.fetched: PeerWeights | None = None  # the last ones that were asked for when they came
        self.averaged: set[str] = set()  # digests of what stages were averaged with
        self.bare: tuple[int, int] = (-1, -1)  # last (round, stage) that was begun without any

    def apply(self, applied: Applied) -> None:
        """A durable event, once, in the order of the log."""
        event = applied.event
        if isinstance(event, WeightsFetched) and any(each.id == event.command for each in applied.before.pending):
            self.fetched = event.weights
        elif isinstance(event, NodeStarted) and event.restored:
            self.averaged.clear()  # the backup may be of before
        elif isinstance(event, StageTrained):
            train = next((each for each in applied.before.pending if each.id == event.command), None)
            if isinstance(train, Train) and train.weights is not None and train.weights.averaged:
                self.averaged.add(train.weights.digest)
        elif isinstance(event, WeightsAdopted):
            self._look_at_adoption(applied, event)
        for command in applied.commands:
            if isinstance(command, Train):
                self._look_at_stage(command)

    def _look_at_stage(self, train: Train) -> None:
        """A stage that was begun is not given weights: it goes on, or anew, as it began."""
        place = (train.round, train.stage)
        if train.weights is None:
            self.bare = place
        elif place == self.bare:
            self.world.fail(self.node, f"{train.id} was begun without weights, and now with those of a peer")
        elif train.weights.digest in self.averaged:
            self.world.fail(self.node, f"{train.id} is averaged with {train.weights}, as a stage before was")
        elif train.weights != self.fetched:
            self.world.fail(self.node, f"{train.id} begins from {train.weights}, fetched were {self.fetched}")

    def _look_at_adoption(self, applied: Applied, event: WeightsAdopted) -> None:
        if not event.weights.averaged and not event.held_out > event.held_out_before:
            what = f"weights of {event.held_out} were adopted, the own have {event.held_out_before}"
            self.world.fail(self.node, what)
        train = next((each for each in applied.before.pending if each.id == event.command), None)
        if isinstance(train, Train) and train.weights != event.weights:
            self.world.fail(self.node, f"{event.command} adopts {event.weights}, it was given {train.weights}")
