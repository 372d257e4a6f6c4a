"""Bodies of rollouts and leaderboards: small ones travel inside their record, larger ones are fetched from the owner.

A body is worth nothing until its size and sha256 are those that the signed record states.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Protocol

from swarmd.dht.wire.msgpack_guard import check_plain
from swarmd.dht.wire.records import BODY_BYTES_MAX
from swarmd.dht.wire.sizes import INLINE_BYTES_MAX
from swarmd.errors import RecordRejected

INLINE_TOTAL_BYTES_MAX = 3 * 512 * 1024  # of all members under one key: the whole key is one message when read
SHOWN_AT_ONCE_BYTES_MAX = 64 * 1024 * 1024  # of a key when all members ask at once, by all who keep it together: a good
# half of what `swarmd.dht.limits.ANSWERS` has at some eight of them for members behind one address


class BlobStore(Protocol):
    """What is used of `swarmd.eventlog.blobs.Blobs`."""

    def get(self, digest: str) -> bytes:
        """The body. Raises an error when it is not there."""

    def put(self, body: bytes) -> str:
        """Store a body; returns its digest."""

    def has(self, digest: str) -> bool:
        """Whether a body with this digest is stored."""


def deflate(body: bytes, members: int, to_fetch: bool = True) -> bytes:
    """The body for inside the record, or nothing when it is too large for that.

    Args:
        members: peers that share the key; the more there are, the less room each has. What peers show when all of them
            ask grows with their square.
        to_fetch: whether peers could fetch the body, in which case it need not be in the record.
    """
    packed = zlib.compress(body, 6)
    room = min(INLINE_BYTES_MAX, INLINE_TOTAL_BYTES_MAX // max(members, 1))
    if to_fetch:
        room = min(room, SHOWN_AT_ONCE_BYTES_MAX // max(members, 1) ** 2)
    return packed if len(packed) <= room else b""


def inflate(packed: bytes, size_bytes: int) -> bytes:
    """The body out of a record.

    Raises:
        RecordRejected: "malformed" when it is no zlib stream or has not the stated size.
    """
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(packed, size_bytes + 1)
    except zlib.error as error:
        raise RecordRejected("malformed", f"the body is no zlib stream: {error}") from error
    if len(body) != size_bytes or not stream.eof or stream.unused_data:
        raise RecordRejected("malformed", f"the body has not the stated {size_bytes} bytes")
    return body


def check_body(body: bytes, digest: str, size_bytes: int) -> None:
    """Is this the body that was announced, and plain msgpack?

    Raises:
        RecordRejected: "oversized", "wrong-digest", "nested" or "malformed".
    """
    if len(body) != size_bytes or size_bytes > BODY_BYTES_MAX:
        raise RecordRejected("oversized", f"{len(body)} bytes instead of {size_bytes}")
    if hashlib.sha256(body).hexdigest() != digest:
        raise RecordRejected("wrong-digest", "the body is not the one that was announced")
    check_plain(body)
