"""How many messages a swarm tells of a leaderboard, and how soon two different ones are found out, as the swarm grows.

A model (`bench.gossip_model`): seconds are simulated, a figure is the median over the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from bench.gossip_model import ModelSwarm, one_board, one_victim
from bench.measure import Sample
from bench.table import Row
from swarmd.dht.pubsub.suppression import Suppression

SIZES = (16, 64, 300, 1000)
SEEDS = range(5)
EVEN_S = 2.0  # longest wait where it is drawn evenly
EVENLY = f"drawn evenly, up to {EVEN_S:g} s"
TOLD_GOAL = 5.0

Figure = Callable[[ModelSwarm], float]


class Even(Suppression):
    """Waits that are drawn evenly and know nothing of the size of the swarm."""

    def delay_s(self) -> float:
        return self._random.uniform(0.0, EVEN_S)


def exponential(random: Random, size: int) -> Suppression:
    """As a node waits that knows all others."""
    return Suppression(random, lambda: size)


def even(random: Random, size: int) -> Suppression:
    """As no node waits any more."""
    return Even(random, lambda: size)


ONE_BOARD: tuple[tuple[str, str, Figure], ...] = (
    ("one leaderboard: messages told", "messages", lambda swarm: swarm.counts.total()),
    ("one leaderboard: until it is told", "s", lambda swarm: swarm.told[0].at_s),
)
ONE_VICTIM: tuple[tuple[str, str, Figure], ...] = (
    ("another one for one node: messages told", "messages", lambda swarm: swarm.counts.total()),
    ("another one for one node: until all know", "s", lambda swarm: swarm.found_s),
)


def run(directory: Path) -> Iterable[Row]:
    """The rows of this benchmark."""
    for play, figures in ((one_board, ONE_BOARD), (one_victim, ONE_VICTIM)):
        for size in SIZES:
            ours, theirs = ([play(size, draw, seed) for seed in SEEDS] for draw in (exponential, even))
            for what, unit, figure in figures:
                yield row(f"{what}, N = {size:,}", unit, sample_of(ours, figure), sample_of(theirs, figure))


def row(what: str, unit: str, ours: Sample, theirs: Sample) -> Row:
    """A figure beside the same with waits that are drawn evenly; the goal is for messages of one leaderboard."""
    if not what.startswith("one leaderboard: messages"):
        return Row(what, unit, ours, EVENLY, theirs)
    return Row(what, unit, ours, EVENLY, theirs, goal=f"<= {TOLD_GOAL:g}", met=ours.median <= TOLD_GOAL)


def sample_of(swarms: Iterable[ModelSwarm], figure: Figure) -> Sample:
    """One figure of several swarms."""
    return Sample(tuple(float(figure(swarm)) for swarm in swarms))
