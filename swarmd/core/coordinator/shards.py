"""Into how many shards the records of a large swarm's stages are divided; the coordinator decides and announces it."""

from __future__ import annotations

import math

from swarmd.core.state import AnyCoordination

SHARDS_MAX = 1024
ROUNDS_KEPT = 16  # before their number shrinks


def shards_for(members: int, each: int) -> int:
    """The power of two that divides so many members into shards of about `each`; 0 where they fit into one."""
    if not each or members <= each:
        return 0
    exponent = max(1, round(math.log2(members / each)))
    return min(1 << exponent, SHARDS_MAX)


def place_records(coordination: AnyCoordination, shard_members: int) -> None:
    """Decide where records lie from the round on that begins.

    Their number grows at once and shrinks only after `ROUNDS_KEPT`, so that one more member or one less does not have
    it change in each round.
    """
    placed, since, round = coordination.shards, coordination.sharded_since, coordination.round
    wanted = shards_for(coordination.members.present, shard_members)
    rests = round < since + ROUNDS_KEPT and wanted < placed
    if wanted != placed and not rests and round >= since:
        coordination.shards, coordination.sharded_since, coordination.shards_before = wanted, round, placed
