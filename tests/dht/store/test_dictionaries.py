"""What is read of a foreign dictionary, and at what cost."""

from __future__ import annotations

import msgpack
import pytest

from swarmd.dht.store.dictionaries import guard_serializer, load_dictionary
from swarmd.errors import RecordRejected
from tests.dht.making import PROMISED_BYTES_MAX, peak_bytes


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_dictionary_of_arrays_in_arrays_takes_no_room_for_what_they_promise(wrapped: bool) -> None:
    endless = b"\xdc\xff\xff" * 1000 + b"\xc0" * 65_535
    encoded = msgpack.packb(msgpack.ExtType(0x50, endless)) if wrapped else endless
    guard_serializer()
    assert peak_bytes(load_dictionary, encoded) < PROMISED_BYTES_MAX


def test_a_dictionary_of_a_million_crumbs_is_refused_before_it_is_read() -> None:
    crumbs = msgpack.packb([0, 0.0, [0] * 1_000_000])
    guard_serializer()
    with pytest.raises(RecordRejected) as refused:
        load_dictionary(msgpack.packb(msgpack.ExtType(0x50, crumbs)))
    assert refused.value.reason == "oversized"
