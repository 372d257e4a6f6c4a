"""To whom a node has given its bodies: they have them too, and whoever it cannot serve now may ask them. Pure."""

from __future__ import annotations

import random
from typing import Annotated

import msgspec
from cachetools import FIFOCache

from swarmd.dht.identity.identity import is_peer_id
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS, check_plain
from swarmd.errors import RecordRejected

BODIES_MAX = 256  # of which it is known who has them
HOLDERS_MAX = 16  # of one body: those that were given it last
NAMED_MAX = 4  # in one answer
NAMES_BYTES_MAX = 1024

Name = Annotated[str, msgspec.Meta(max_length=120)]
_names: msgspec.msgpack.Decoder[list[Name]] = msgspec.msgpack.Decoder(list[Name])


class BodyHolders:
    """Peers that were given a body to its end, by digest; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._holders: FIFOCache[str, FIFOCache[str, None]] = FIFOCache(BODIES_MAX)

    def note(self, digest: str, peer: str) -> None:
        """A peer was given a body."""
        holders = self._holders.get(digest) or FIFOCache(HOLDERS_MAX)
        holders[peer] = None
        self._holders[digest] = holders

    def some(self, digest: str, asker: str) -> list[str]:
        """A few that have a body, by chance, so that they share what it costs; never the asker itself."""
        holders = [peer for peer in self._holders.get(digest, ()) if peer != asker]
        return random.sample(holders, min(len(holders), NAMED_MAX))


def encode_names(peers: list[str]) -> bytes:
    """Length as two bytes, big-endian, and a msgpack array of peer ids."""
    encoded = msgspec.msgpack.encode(peers)
    return len(encoded).to_bytes(2, "big") + encoded


def read_names(encoded: bytes) -> list[str]:
    """Peer ids that another node names, the first `NAMED_MAX`. Raises RecordRejected: "malformed", "nested"."""
    check_plain(encoded)
    try:
        return [name for name in _names.decode(encoded)[:NAMED_MAX] if is_peer_id(name)]
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"no names of peers: {error!s:.200}") from error
