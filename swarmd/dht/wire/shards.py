"""Shards of a large swarm's keys: which one a peer's record lies in. Pure.

Where the clock announces shards, the reports of a stage lie under so many keys in the place of one, and so do its
rollouts. A peer's shard follows from a hash of peer and stage: nobody stays in a shard that it chose. docs/PROTOCOL.md
has the format, docs/adr/0040 the arithmetic.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Protocol

import msgpack  # type: ignore[import-untyped]
import msgspec

from swarmd.core.coordinator.shards import SHARDS_MAX
from swarmd.errors import RecordRejected

DOMAIN = b"swarmd-shard-v1\x00"

Shards = Annotated[int, msgspec.Meta(ge=0, le=SHARDS_MAX)]  # 0: one key for all, else a power of two from 2 on


class ShardSource(Protocol):
    """Knows what the clock has announced: `swarmd.dht.store.announced_shards.AnnouncedShards`."""

    def of(self, round: int) -> int | None:
        """Number of shards of a round's stages; None where the clock was not heard in that round or a later one."""


def shard_of(swarm: str, peer: str, round: int, stage: int, shards: int) -> int:
    """The shard of a peer's records of a stage, counted from 0; 0 where there are none."""
    if not shards:
        return 0
    place = DOMAIN + bytes(msgpack.packb([swarm, peer, round, stage]))
    return int.from_bytes(hashlib.sha256(place).digest()[:8], "big") % shards


def check_shards(shards: int, shard: int = 0) -> None:
    """Is this a number of shards that there may be, and a shard of them? Raises RecordRejected("malformed")."""
    if shards == 1 or shards & (shards - 1) or not 0 <= shard < max(shards, 1):
        raise RecordRejected("malformed", f"there is no shard {shard} of {shards}: their number is a power of two")
