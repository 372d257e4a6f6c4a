"""How many of a step's questions one peer may have, how they are split into forward and backward passes, and where
activations are computed twice."""

from __future__ import annotations

import math

from swarmd.config import TrainingConfig

PEER_SHARE = 0.5  # of peers' places in a batch, at most so many are one peer's
LIGHT_PARAMETERS_MAX = 10_000_000  # up to here all groups go in one pass, and one torch thread is faster than several
CHECKPOINTING_PARAMETERS = 100_000_000  # from here on activations are computed twice to save memory


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


def split_questions(training: TrainingConfig, parameters: int) -> tuple[int, int]:
    """Questions in one pass and passes in a step; their product is `training.questions`.

    `training.micro_questions` is an upper bound: the largest divisor of `questions` that does not exceed it is taken.
    """
    light = parameters <= LIGHT_PARAMETERS_MAX
    wanted = training.micro_questions or (training.questions if light else 1)
    micro = max(size for size in range(1, min(wanted, training.questions) + 1) if training.questions % size == 0)
    return micro, training.questions // micro


def count_rows(training: TrainingConfig, parameters: int) -> int:
    """Completions in one forward and backward pass."""
    return split_questions(training, parameters)[0] * training.generations


def computes_twice(training: TrainingConfig, parameters: int) -> bool:
    """Whether activations are dropped in the forward pass and computed again in the backward pass."""
    if training.gradient_checkpointing == "auto":
        return parameters >= CHECKPOINTING_PARAMETERS
    return training.gradient_checkpointing == "on"
