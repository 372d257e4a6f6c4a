"""Names of the DHT's keys and gossip topics, and the shards of keys.

- Every key names the swarm and, if applicable, round and stage. hivemind finds a key by its id, the SHA-1 of the name's
  msgpack encoding.
- If the clock announces n shards, the reports of a stage are spread over n keys, and so are its rollouts. A peer's
  shard follows from a hash of peer and stage, so no peer stays in a shard that it chose. Memberships are spread over n
  keys, too, by a hash of peer and epoch. docs/PROTOCOL.md has the format, docs/adr/0040 and 0044 the arithmetic.
"""

import hashlib
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgpack  # type: ignore[import-untyped]
import msgspec

from swarmd.core.coordination import SHARDS_MAX
from swarmd.errors import RecordRejected

KEY_IDS_KEPT = 1024  # a stage's keys are used repeatedly

DOMAIN = b"swarmd-shard-v1\x00"
EPOCH_ROUNDS = 16  # rounds after which memberships move to other shards


def members_key(swarm: str, shards: int = 0, epoch: int = 0, shard: int = 0) -> str:
    return f"swarmd/{swarm}/members" + (f"/{shards}/{epoch}/{shard}" if shards else "")


def clock_key(swarm: str) -> str:
    """Return the key of the clock, which the coordinator writes."""
    return f"swarmd/{swarm}/clock"


def reports_key(swarm: str, round: int, stage: int, shards: int = 0, shard: int = 0) -> str:
    return f"swarmd/{swarm}/reports/{round}/{stage}{_shard_suffix(shards, shard)}"


def rollouts_key(swarm: str, round: int, stage: int, shards: int = 0, shard: int = 0) -> str:
    return f"swarmd/{swarm}/rollouts/{round}/{stage}{_shard_suffix(shards, shard)}"


def _shard_suffix(shards: int, shard: int) -> str:
    return f"/{shards}/{shard}" if shards else ""


def is_shard_key(name: str) -> bool:
    return name.count("/") > 4


def leaderboard_key(swarm: str, round: int) -> str:
    """Return the key of the standings after a round, which the coordinator writes."""
    return f"swarmd/{swarm}/leaderboard/{round}"


def hints_topic(swarm: str) -> str:
    """Return the gossip topic of hints at new records."""
    return f"swarmd/{swarm}/hints"


def clock_topic(swarm: str) -> str:
    """Return the gossip topic of the clock's signed record."""
    return f"swarmd/{swarm}/clock"


def evidence_topic(swarm: str) -> str:
    """Return the gossip topic of contradicting records."""
    return f"swarmd/{swarm}/evidence"


@lru_cache(maxsize=KEY_IDS_KEPT)
def key_id(name: str) -> bytes:
    """Return the 20-byte id under which hivemind stores a name."""
    return hashlib.sha1(msgpack.packb(name), usedforsecurity=False).digest()


Shards = Annotated[int, msgspec.Meta(ge=0, le=SHARDS_MAX)]  # 0: one key for all, otherwise a power of two from 2 on


class MemberSharding(NamedTuple):
    """Number of shards over which a swarm's memberships are spread, and the epoch."""

    shards: int = 0  # 0: under one key
    epoch: int = 0


def epoch_of(round: int) -> int:
    return round // EPOCH_ROUNDS


def member_shard_of(swarm: str, peer: str, place: MemberSharding) -> int:
    """Return the shard of a peer's membership in an epoch, from 0 on; 0 without shards."""
    if not place.shards:
        return 0
    return _hash_to_shard([swarm, peer, "members", place.epoch], place.shards)


def shard_of(swarm: str, peer: str, round: int, stage: int, shards: int) -> int:
    """Return the shard of a peer's records of a stage, from 0 on; 0 without shards."""
    if not shards:
        return 0
    return _hash_to_shard([swarm, peer, round, stage], shards)


def _hash_to_shard(place: list[str | int], shards: int) -> int:
    return int.from_bytes(hashlib.sha256(DOMAIN + bytes(msgpack.packb(place))).digest()[:8], "big") % shards


def check_shard_number(shards: int, shard: int = 0) -> None:
    """Raise RecordRejected("malformed") unless this is a valid number of shards, and a shard among them."""
    if shards == 1 or shards & (shards - 1) or not 0 <= shard < max(shards, 1):
        raise RecordRejected("malformed", f"there is no shard {shard} of {shards}: their number is a power of two")
