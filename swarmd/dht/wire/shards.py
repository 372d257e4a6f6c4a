"""Shards of a large swarm's keys: which one a peer's record lies in. Pure.

Where the clock announces shards, the reports of a stage lie under so many keys in the place of one, and so do its
rollouts. A peer's shard follows from a hash of peer and stage: nobody stays in a shard that it chose. Memberships lie
in as many, by a hash of peer and epoch. docs/PROTOCOL.md has the format, docs/adr/0040 and 0044 the arithmetic.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, NamedTuple, Protocol

import msgpack  # type: ignore[import-untyped]
import msgspec

from swarmd.core.coordinator.coordination import SHARDS_MAX
from swarmd.errors import RecordRejected

DOMAIN = b"swarmd-shard-v1\x00"
EPOCH_ROUNDS = 16  # then each membership lies elsewhere

Shards = Annotated[int, msgspec.Meta(ge=0, le=SHARDS_MAX)]  # 0: one key for all, else a power of two from 2 on


class ShardSource(Protocol):
    """Knows how many shards there are: `swarmd.dht.store.announced_shards.AnnouncedShards`."""

    fixed: int  # number of shards of a swarm on a chain, of its memberships too, which lie in epoch 0; 0: the clock's

    @property
    def is_large(self) -> bool:
        """Whether stages lie in shards now."""

    def of(self, round: int) -> int | None:
        """Number of shards of a round's stages; None where the clock was not heard in that round or a later one."""


class MembersPlace(NamedTuple):
    """Where the memberships of a swarm lie."""

    shards: int = 0  # 0: under one key
    epoch: int = 0


class PlaceListener(Protocol):
    """Is told that memberships lie elsewhere: `swarmd.dht.members.member_keys.MemberKeys`."""

    def __call__(self) -> None:
        """The clock has said so. Must return at once, and raises nothing."""


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
