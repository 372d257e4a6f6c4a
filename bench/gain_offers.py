"""Nodes of `bench gain` that average what others offer, by the trainer's own code and what it asks of a mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

from msgspec.structs import replace
from safetensors.torch import load_file

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.core.events import StageTrained
from swarmd.core.values import PeerWeights
from swarmd.dht.weights import MEAN_OFFERS
from swarmd.files import hash_file, make_directory
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import Question
from swarmd.swarms.reasoning_gym import ReasoningGymPlan
from swarmd.training.checkpoints import WEIGHTS
from swarmd.training.engine import TrainingEngine
from swarmd.training.peer_weights import write_announced

QUESTIONS = 32  # of each family, by which a node measures a mean


class MeasuringPlan(ReasoningGymPlan):
    """A node's plan: it measures itself by other held-out questions than the benchmark does, and they are counted.

    Args:
        swarm: whose questions they are.
        training: of the node.
        apart: questions of each family that the benchmark measures by.
    """

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig, apart: int) -> None:
        super().__init__(swarm, training)
        self._apart = apart
        self._asked = 0

    def hold_out(self, task: str, count: int) -> list[Question]:
        """See `Plan.hold_out`."""
        found = super().hold_out(task, self._apart + count)[self._apart :]
        self._asked += len(found)
        return found

    def take_asked(self) -> int:
        """Held-out questions that were asked since this was last called."""
        asked, self._asked = self._asked, 0
        return asked


class Offers:
    """What nodes give each other of their weights, without a network.

    Args:
        directory: where all that is offered lies.
        nodes: their data directories.
        every: rounds between exchanges.
    """

    def __init__(self, directory: Path, nodes: Sequence[NodeDirectory], every: int) -> None:
        self._directory = directory
        self._nodes = nodes
        self._every = every
        self.taken: Sequence[PeerWeights | None] = [None] * len(nodes)  # in the next round, by node
        make_directory(directory)

    def exchange(self, engines: Sequence[TrainingEngine], trained: Sequence[StageTrained]) -> None:
        """After a round, where it is one for it: each node has the weights of others, drawn by lot from the round."""
        round = trained[0].round
        self.taken = [None] * len(self._nodes)
        if (round + 1) % self._every == 0:
            offered = [self._offer(engine, event) for engine, event in zip(engines, trained, strict=True)]
            random = Random(round)
            others = [[*offered[:place], *offered[place + 1 :]] for place in range(len(offered))]
            drawn = [random.sample(each, min(MEAN_OFFERS, len(each))) for each in others]
            self.taken = [self._give(each, paths) for each, paths in zip(drawn, self._nodes, strict=True)]

    def _offer(self, engine: TrainingEngine, event: StageTrained) -> PeerWeights:
        path = self._directory / "offered.tmp"
        write_announced(load_file(engine.checkpoint_directory(event) / WEIGHTS), path)
        told = PeerWeights("", event.round, hash_file(path), path.stat().st_size, averaged=True)
        path.rename(self._place(told))
        return told

    def _give(self, drawn: Sequence[PeerWeights], paths: NodeDirectory) -> PeerWeights:
        """Put them where the node's network worker would have put them."""
        make_directory(paths.peer_weights)
        for told in drawn:
            path = paths.peer_weights / self._place(told).name
            if not path.exists():
                os.link(self._place(told), path)
        first, *others = drawn
        return replace(first, others=tuple(each.offers[0] for each in others))

    def _place(self, told: PeerWeights) -> Path:
        return self._directory / f"{told.digest}.safetensors"
