"""Names of the DHT's keys, and shards of them. Every key carries the swarm, and if it has one, the round and the stage.

hivemind finds a key by its id, the SHA-1 of the name's msgpack encoding; so do other implementations.

If the clock announces shards, the reports of a stage lie under so many keys in the place of one, and so do its
rollouts. A peer's shard follows from a hash of peer and stage: nobody stays in a shard that it chose. Memberships lie
in as many, by a hash of peer and epoch. docs/PROTOCOL.md has the format, docs/adr/0040 and 0044 the arithmetic.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgpack  # type: ignore[import-untyped]
import msgspec

from swarmd.core.coordinator.coordination import SHARDS_MAX
from swarmd.errors import RecordRejected

KEY_IDS_KEPT = 1024  # a stage's keys are asked for again and again

DOMAIN = b"swarmd-shard-v1\x00"
EPOCH_ROUNDS = 16  # then each membership lies elsewhere


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
    """The gossip topic on which contradictory records travel."""
    return f"swarmd/{swarm}/evidence"


@lru_cache(maxsize=KEY_IDS_KEPT)
def key_id(name: str) -> bytes:
    """The 20-byte id under which hivemind stores a name."""
    return hashlib.sha1(msgpack.packb(name), usedforsecurity=False).digest()


Shards = Annotated[int, msgspec.Meta(ge=0, le=SHARDS_MAX)]  # 0: one key for all, else a power of two from 2 on


class MembersPlace(NamedTuple):
    """Where the memberships of a swarm lie."""

    shards: int = 0  # 0: under one key
    epoch: int = 0


def epoch_of(round: int) -> int:
    """The epoch that a round lies in."""
    return round // EPOCH_ROUNDS


def member_shard_of(swarm: str, peer: str, place: MembersPlace) -> int:
    """The shard of a peer's membership in an epoch, counted from 0; 0 where there are none."""
    if not place.shards:
        return 0
    return _shard([swarm, peer, "members", place.epoch], place.shards)


def shard_of(swarm: str, peer: str, round: int, stage: int, shards: int) -> int:
    """The shard of a peer's records of a stage, counted from 0; 0 where there are none."""
    if not shards:
        return 0
    return _shard([swarm, peer, round, stage], shards)


def _shard(place: list[str | int], shards: int) -> int:
    return int.from_bytes(hashlib.sha256(DOMAIN + bytes(msgpack.packb(place))).digest()[:8], "big") % shards


def check_shards(shards: int, shard: int = 0) -> None:
    """Is this a number of shards that there may be, and a shard of them? Raises RecordRejected("malformed")."""
    if shards == 1 or shards & (shards - 1) or not 0 <= shard < max(shards, 1):
        raise RecordRejected("malformed", f"there is no shard {shard} of {shards}: their number is a power of two")
