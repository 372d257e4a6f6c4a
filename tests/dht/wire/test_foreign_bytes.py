"""Bodies, msgpack and dictionaries from peers are bounded before they are decoded."""

import hashlib
import zlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.dht.store.validator import install_serializer_guard, load_dictionary
from swarmd.dht.wire.bodies import check_body, deflate, inflate
from swarmd.dht.wire.msgpack_guard import check_plain_msgpack
from swarmd.errors import RecordRejected
from tests.dht.making import PROMISED_BYTES_MAX, peak_bytes


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


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
)


def depth_of(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=-1 if not value else 0)
    if isinstance(value, dict):
        return 1 + max((depth_of(inner) for pair in value.items() for inner in pair), default=-1)
    return 0


def reason_of(encoded: bytes, **bounds: int) -> str:
    try:
        check_plain_msgpack(encoded, **bounds)
    except RecordRejected as error:
        return error.reason
    return ""


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40))
def test_plain_values_pass_up_to_the_depth(value: Any) -> None:
    encoded = msgpack.packb(value, use_bin_type=True)
    assert reason_of(encoded, depth_max=100) == ""
    assert reason_of(encoded) == ("nested" if depth_of(value) > 8 else "")


@given(st.binary(max_size=60))
def test_random_bytes_pass_only_if_msgpack_reads_them(encoded: bytes) -> None:
    reason = reason_of(encoded)
    if reason:
        assert reason in {"malformed", "nested"}
    else:
        msgpack.unpackb(encoded, raw=True, object_pairs_hook=list, strict_map_key=False)


@given(SCALARS | st.lists(SCALARS, max_size=5), st.data())
def test_a_cut_value_or_trailing_bytes_are_malformed(value: Any, data: st.DataObject) -> None:
    encoded = msgpack.packb(value, use_bin_type=True)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert reason_of(encoded[:cut]) == "malformed"
    assert reason_of(encoded + b"\xc0") == "malformed"


def test_extension_types_are_malformed() -> None:
    for code, size in ((0x40, 3), (0x50, 16), (-1, 4), (5, 300)):
        assert reason_of(msgpack.packb(msgpack.ExtType(code & 0x7F, b"x" * size))) == "malformed"
    assert reason_of(msgpack.packb({"deep": [msgpack.ExtType(1, b"x")]})) == "malformed"
    assert reason_of(b"\xc1") == "malformed"


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 8, 16, 17, 300, 70_000])
def test_extension_types_are_walked_over_where_they_may_be(size: int) -> None:
    encoded = msgpack.packb([msgpack.ExtType(0x40, b"\xc1" * size), {"after": 1}])
    check_plain_msgpack(encoded, extensions=True)
    with pytest.raises(RecordRejected):
        check_plain_msgpack(encoded[:-1], extensions=True)


def test_a_few_bytes_cannot_ask_for_much() -> None:
    assert reason_of(b"\xdd\xff\xff\xff\xff" + b"\xc0" * 10) == "malformed"
    assert reason_of(b"\xc6\xff\xff\xff\xff") == "malformed"
    assert reason_of(b"\xdc\x00\x64" + b"\xc0" * 100, elements_max=50) == "oversized"
    assert reason_of(b"\x91" * 100_000) == "nested"


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_dictionary_of_arrays_in_arrays_takes_no_room_for_what_they_promise(wrapped: bool) -> None:
    endless = b"\xdc\xff\xff" * 1000 + b"\xc0" * 65_535
    encoded = msgpack.packb(msgpack.ExtType(0x50, endless)) if wrapped else endless
    install_serializer_guard()
    assert peak_bytes(load_dictionary, encoded) < PROMISED_BYTES_MAX


def test_a_dictionary_of_a_million_crumbs_is_refused_before_it_is_read() -> None:
    crumbs = msgpack.packb([0, 0.0, [0] * 1_000_000])
    install_serializer_guard()
    with pytest.raises(RecordRejected) as refused:
        load_dictionary(msgpack.packb(msgpack.ExtType(0x50, crumbs)))
    assert refused.value.reason == "oversized"
