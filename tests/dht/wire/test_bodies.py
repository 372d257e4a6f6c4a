"""Bodies: inside the record or fetched, and nothing else than was announced."""

from __future__ import annotations

import hashlib
import zlib

import msgpack
import pytest

from swarmd.dht.wire.bodies import check_body, deflate, inflate
from swarmd.errors import RecordRejected


def test_small_bodies_travel_inside_and_come_back() -> None:
    body = msgpack.packb(["question", b"completion"] * 500)
    assert inflate(deflate(body, members=3), len(body)) == body


@pytest.mark.parametrize(
    ("packed", "size"),
    [
        (zlib.compress(b"x" * 50_000_000), 100),
        (zlib.compress(b"x" * 10), 11),
        (zlib.compress(b"x" * 10)[:-3], 10),
        (zlib.compress(b"x" * 10) + b"more", 10),
        (b"no zlib", 7),
        (b"", 0),
    ],
)
def test_a_bomb_or_another_size_is_refused(packed: bytes, size: int) -> None:
    with pytest.raises(RecordRejected) as raised:
        inflate(packed, size)
    assert raised.value.reason == "malformed"


@pytest.mark.parametrize(
    ("body", "change", "reason"),
    [
        (msgpack.packb([1, 2]), {}, ""),
        (msgpack.packb([1, 2]), {"size_bytes": 4}, "oversized"),
        (msgpack.packb([1, 2]), {"digest": "0" * 64}, "wrong-digest"),
        (b"\x91" * 50 + b"\xc0", {}, "nested"),
        (msgpack.packb(msgpack.ExtType(1, b"x")), {}, "malformed"),
        (b"\x92\xc0", {}, "malformed"),
    ],
)
def test_the_body_must_be_the_announced_one(body: bytes, change: dict[str, object], reason: str) -> None:
    stated = {"digest": hashlib.sha256(body).hexdigest(), "size_bytes": len(body)} | change
    try:
        check_body(body, **stated)  # type: ignore[arg-type]
        found = ""
    except RecordRejected as error:
        found = error.reason
    assert found == reason
