"""Into how many shards the records of a large swarm's stages are divided; the coordinator decides and announces it."""

from __future__ import annotations

import math

from swarmd.core.state import Coordination
from swarmd.core.values import Value

SHARDS_MAX = 1024
SHARDED_SINCE = 4  # version of the network's protocol that knows shards
MEMBERS_SHARDED_SINCE = 5  # and of memberships
ROUNDS_KEPT = 16  # before their number shrinks


class Placement(Value, frozen=True):
    """Where the records of stages lie."""

    shards: int = 0  # from the round `since` on; 0: under one key
    since: int = 0
    before: int = 0  # number in the rounds before


def shards_for(members: int, each: int) -> int:
    """The power of two that divides so many members into shards of about `each`; 0 where they fit into one."""
    if not each or members <= each:
        return 0
    exponent = max(1, round(math.log2(members / each)))
    return min(1 << exponent, SHARDS_MAX)


def placement_of(coordination: Coordination) -> Placement:
    """Where the records of the open stage lie."""
    return Placement(coordination.shards, coordination.sharded_since, coordination.shards_before)


def place_records(coordination: Coordination, shard_members: int, round: int) -> Placement:
    """Where records lie from a round on that is about to begin.

    Their number grows at once and shrinks only after `ROUNDS_KEPT`, so that one more member or one less does not have
    it change in each round.
    """
    placed = placement_of(coordination)
    wanted = shards_for(coordination.members.present, shard_members)
    rests = round < placed.since + ROUNDS_KEPT and wanted < placed.shards
    if wanted == placed.shards or rests or round < placed.since:
        return placed
    return Placement(wanted, round, placed.shards)
