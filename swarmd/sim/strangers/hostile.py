"""Who attacks a simulated swarm: seeded actors with streams of chance of their own."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from swarmd.sim.profile import kinds_of
from swarmd.sim.strangers.actors import ACTORS
from swarmd.sim.strangers.guarded import GuardedNetworkWorker

if TYPE_CHECKING:
    from swarmd.sim.world import World


class Hostile:
    """The actors of one run.

    Attributes:
        random: for what honest nodes do by chance because there are strangers.
        crowd: how many identities a Sybil crowd has.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(f"{world.seed}/strangers")
        self.kinds = kinds_of(world.profile.hostile)
        self.crowd = world.profile.crowd
        self.actors = [ACTORS[kind](self, Random(f"{world.seed}/{kind}")) for kind in self.kinds]

    def begin(self) -> None:
        """Start the hostile actors."""
        for actor in self.actors:
            self.world.call_in(actor.random.uniform(0.0, 60.0), actor.run)

    def workers(self, side: int) -> list[GuardedNetworkWorker]:
        """Honest workers that can be reached at a side."""
        return [
            worker
            for worker in self.world.dht.workers
            if isinstance(worker, GuardedNetworkWorker) and worker.linked and worker.node.side == side
        ]


def is_hostile(peer: str) -> bool:
    """Whether a peer is none of the honest nodes."""
    return not peer.startswith("peer-")
