"""How many of a step's questions one peer may have."""

from __future__ import annotations

import math

from swarmd.config import TrainingConfig

PEER_SHARE = 0.5  # of peers' places in a batch, at most so many are one peer's
LIGHT_PARAMETERS_MAX = 10_000_000  # up to here one torch thread is faster than several


def bound_peer(training: TrainingConfig, peers: int) -> int:
    """How many groups of a batch may come of one peer: `PEER_SHARE` of peers' places, rounded up. 0: no bound,
    as where there is only one peer, whose places nobody else could take.

    Args:
        peers: that published something.
    """
    if peers < 2:
        return 0
    return max(1, math.ceil(training.peer_questions * PEER_SHARE))


def count_ranks(training: TrainingConfig, peers: int, ranks: int) -> int:
    """How many of the ranks one peer may have groups on: each keeps to `bound_peer` of its own places by itself, which
    is rounded up each time, and together they are to keep to that of all.

    Args:
        training: of one rank.
        peers: that published something.
        ranks: that train together.
    """
    bound = bound_peer(training, peers)
    if not bound:
        return ranks
    return min(max(math.ceil(training.peer_questions * ranks * PEER_SHARE) // bound, 1), ranks)
