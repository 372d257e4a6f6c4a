"""Names of the DHT's keys. Every key carries the swarm, and where it has one, the round and the stage.

hivemind finds a key by its id, the SHA-1 of the name's msgpack encoding; so do other implementations.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgpack  # type: ignore[import-untyped]

KEY_IDS_KEPT = 1024  # a stage's keys are asked for again and again


def members(swarm: str, shards: int = 0, epoch: int = 0, shard: int = 0) -> str:
    """Key of the members' records, or of one of its shards in an epoch."""
    return f"swarmd/{swarm}/members" + (f"/{shards}/{epoch}/{shard}" if shards else "")


def clock(swarm: str) -> str:
    """Where the swarm is; written by the coordinator."""
    return f"swarmd/{swarm}/clock"


def reports(swarm: str, round: int, stage: int, shards: int = 0, shard: int = 0) -> str:
    """Key of the reports of a stage, or of one of its shards."""
    return f"swarmd/{swarm}/reports/{round}/{stage}{_part(shards, shard)}"


def rollouts(swarm: str, round: int, stage: int, shards: int = 0, shard: int = 0) -> str:
    """What each peer shares of a stage; of one of its shards, where it has any."""
    return f"swarmd/{swarm}/rollouts/{round}/{stage}{_part(shards, shard)}"


def _part(shards: int, shard: int) -> str:
    return f"/{shards}/{shard}" if shards else ""


def is_sharded(name: str) -> bool:
    """Is this the key of a shard?"""
    return name.count("/") > 4


def leaderboard(swarm: str, round: int) -> str:
    """Standings after a round; written by the coordinator."""
    return f"swarmd/{swarm}/leaderboard/{round}"


def hints(swarm: str) -> str:
    """The gossip topic on which writers say what they have just written."""
    return f"swarmd/{swarm}/hints"


def clock_topic(swarm: str) -> str:
    """The gossip topic on which the clock's signed record itself travels."""
    return f"swarmd/{swarm}/clock"


def evidence_topic(swarm: str) -> str:
    """The gossip topic on which contradictory records travel, and which leaderboard was read."""
    return f"swarmd/{swarm}/evidence"


@lru_cache(maxsize=KEY_IDS_KEPT)
def key_id(name: str) -> bytes:
    """The 20-byte id under which hivemind stores a name."""
    return hashlib.sha1(msgpack.packb(name), usedforsecurity=False).digest()
