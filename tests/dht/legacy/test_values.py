"""v0.4's bytes: every vector of its format, round trips, and nothing but `RecordRejected` from any bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.dht.legacy import keys
from swarmd.dht.legacy.values import (
    DICTIONARY_BYTES_MAX,
    LENGTH_MAX,
    TUPLES_DEEP_MAX,
    VALUE_BYTES_MAX,
    decode,
    decode_dictionary,
    encode,
)
from swarmd.dht.p2p.hivemind_api import DHTID, DictionaryDHTValue, MSGPackSerializer
from swarmd.dht.wire import names
from swarmd.errors import RecordRejected
from tests.dht.making import PROMISED_BYTES_MAX, peak_bytes
from tests.dht.outsider import bomb, dictionary_of

PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
KEY_VECTORS = {
    keys.CLOCK: "4cdcc7be2267d357cabf5ec0a9a73d4979d111f8",
    keys.rewards(0, 0): "deeac7c2049b9978771d686e41befaa00ef35f90",
    keys.leaderboard(0, 0): "cacaac0d3d8ab5ea8bca10734fa662401e1dacac",
    keys.outputs(PEER, 0, 0): "c0a0e0a3787de0c765e2502778d88325af8d5130",
}
VALUE_VECTORS = [
    ((3, 1), "c703409203 01"),
    (4.25, "cb4011000000000000"),
    ((1.5, {"question": "q"}), "c71640 92 cb3ff8000000000000 81a87175657374696f6ea171"),
    ([("A", 2.0)], "91 c70c40 92 a141 cb4000000000000000"),
    (None, "c0"),
]

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    scalars | texts | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=4)
        | st.tuples(scalars | texts, scalars | texts)
    ),
    max_leaves=12,
)


def reason_of(encoded: bytes) -> str:
    with pytest.raises(RecordRejected) as refused:
        decode(encoded)
    return refused.value.reason


@pytest.mark.parametrize(("name", "expected"), KEY_VECTORS.items())
def test_key_ids_are_those_of_v04(name: str, expected: str) -> None:
    assert names.key_id(name).hex() == expected
    assert DHTID.generate(source=name).to_bytes().hex() == expected


@pytest.mark.parametrize(("value", "expected"), VALUE_VECTORS)
def test_values_are_those_of_v04(value: Any, expected: str) -> None:
    encoded = bytes.fromhex(expected)
    assert encode(value) == encoded == MSGPackSerializer.dumps(value)
    assert decode(encoded) == value == MSGPackSerializer.loads(encoded)
    assert type(decode(encoded)) is type(value)


def test_the_names_are_those_of_v04() -> None:
    assert list(KEY_VECTORS) == [
        "rl_swarm_rs",
        "rl_swarm_rewards_0_0",
        "rl_swarm_leaderboard_0_0",
        f"rl_swarm_outputs_{PEER}_0_0",
    ]
    assert keys.question_key("abc") == "900150983cd24fb0d6963f7d28e17f72"
    assert keys.hashed("abc") == keys.hashed("900150983cd24fb0d6963f7d28e17f72") == keys.question_key("abc")


@given(values)
def test_what_is_encoded_is_read_back_and_hivemind_writes_the_same(value: Any) -> None:
    encoded = encode(value)
    assert decode(encoded) == value
    assert encoded == MSGPackSerializer.dumps(value)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_refusal(junk: bytes) -> None:
    for read in (decode, decode_dictionary):
        try:
            read(junk)
        except RecordRejected as error:
            assert error.reason in ("malformed", "nested", "oversized")


@given(values, st.data())
def test_no_broken_value_raises_anything_but_a_refusal(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(encoded[: data.draw(st.integers(1, len(encoded)))]))
    except RecordRejected as error:
        assert error.reason in ("malformed", "nested", "oversized")


def nested(depth: int) -> bytes:
    value: Any = 1
    for _ in range(depth):
        value = (value,)
    return encode(value)


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "malformed"),
        (b"\xc1", "malformed"),
        (b"\x01\x02", "malformed"),
        (b"\x92\x01", "malformed"),
        (b"\xa2\xff\xfe", "malformed"),  # no UTF-8
        (b"\xd4\x07\x00", "malformed"),  # an unknown extension
        (b"\xd4\x40\x01", "malformed"),  # a tuple of a number
        (b"\x81\x01\x02", "malformed"),  # a key that is no text
        (b"\xdd\xff\xff\xff\xff", "malformed"),  # promises four thousand million elements
        (b"\xdc\xff\xff" * 20, "malformed"),
        (b"\xdc\xff\xff" * 400, "nested"),
        (b"\x91" * 3000, "nested"),
        (msgpack.packb([0] * (LENGTH_MAX + 1)), "malformed"),
        (dictionary_of([]), "malformed"),  # is no value
        (bomb(400), "nested"),
        (nested(TUPLES_DEEP_MAX + 1), "nested"),
        (msgpack.packb("x" * VALUE_BYTES_MAX), "oversized"),
    ],
)
def test_hostile_values_are_refused(encoded: bytes, reason: str) -> None:
    assert reason_of(encoded) == reason


ENDLESS = b"\xdc\xff\xff" * 1000  # arrays inside one another, each of which promises 65,535 elements


@pytest.mark.parametrize("encoded", [ENDLESS, msgpack.packb(msgpack.ExtType(0x50, ENDLESS))])
@pytest.mark.parametrize("read", [decode, decode_dictionary])
def test_arrays_in_arrays_take_no_room_for_what_they_promise(read: Callable[[bytes], Any], encoded: bytes) -> None:
    assert peak_bytes(read, encoded) < PROMISED_BYTES_MAX


def test_values_at_the_bounds_are_read() -> None:
    assert decode(nested(TUPLES_DEEP_MAX)) == ((((1,),),),)
    assert decode(msgpack.packb("x" * (VALUE_BYTES_MAX - 5))) == "x" * (VALUE_BYTES_MAX - 5)
    assert math.isnan(decode(encode(math.nan)))


def test_a_dictionary_of_hiveminds_is_read() -> None:
    dictionary = DictionaryDHTValue()
    expected = [("a", encode(1.0), 4e9), ("b", encode((2, 3)), 5e9)]
    for subkey, value, expiration in expected:
        dictionary.store(subkey, value, expiration)
    encoded = MSGPackSerializer.dumps(dictionary)
    assert encoded[:3] in (b"\xc7" + bytes((encoded[1], 0x50)),)
    assert decode_dictionary(encoded) == expected


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (encode((1, 2)), "malformed"),
        (encode([1, 2, []]), "malformed"),
        (msgpack.packb(msgpack.ExtType(0x50, b"\xc1")), "malformed"),
        (msgpack.packb(msgpack.ExtType(0x50, encode([0, 0.0, 7]))), "malformed"),
        (msgpack.packb(msgpack.ExtType(0x50, encode([0, 0.0, [[1, 2]]]))), "malformed"),
        (msgpack.packb(msgpack.ExtType(0x50, dictionary_of([]))), "malformed"),
        (msgpack.packb(msgpack.ExtType(0x50, bomb(400))), "nested"),
        (b"\x00" * (DICTIONARY_BYTES_MAX + 1), "oversized"),
    ],
)
def test_what_is_no_dictionary_is_refused(encoded: bytes, reason: str) -> None:
    with pytest.raises(RecordRejected) as refused:
        decode_dictionary(encoded)
    assert refused.value.reason == reason
