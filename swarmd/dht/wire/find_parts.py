"""What goes along with hivemind's `rpc_find`, so that an answer need not bring a key's whole dictionary. Pure.

The filter is a field of the request that hivemind's message does not have: a peer that does not know it skips it, as
protobuf has it, and answers with the dictionary. A peer that knows it answers with a part in the dictionary's place.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

from swarmd.bounds import Count, Real
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS, check_plain
from swarmd.errors import RecordRejected

FILTER_FIELD = 15  # of `FindRequest`, whose own are 1 to 3
LENGTH_DELIMITED = 2  # protobuf's wire type of bytes
OWNERS_MAX = 64  # that one request may name; of them more would not fit into a call with keys
LIFE_BYTES = 8
OWNER_BYTES_MAX = 120
PART_START = 0x93  # a msgpack array of three; a dictionary of hivemind's is an extension type

Owner = Annotated[str, msgspec.Meta(max_length=OWNER_BYTES_MAX)]


class Cursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a storer's answers have brought an asker."""

    life: Annotated[bytes, msgspec.Meta(max_length=LIFE_BYTES)] = b""  # of the storer's memory; another one began anew
    last: Count = 0  # number of the latest change that was shown


class FindFilter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an asker wants of a key: the records of these owners; of all if it names none, those that are new to it."""

    owners: Annotated[tuple[Owner, ...], msgspec.Meta(max_length=OWNERS_MAX)] = ()
    cursor: Cursor = Cursor()


class Shown(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record in an answer."""

    owner: Owner
    value: bytes
    expiration: Real


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An answer: records, and how far they bring the asker."""

    life: Annotated[bytes, msgspec.Meta(max_length=LIFE_BYTES)]
    last: Count
    records: tuple[Shown, ...]


_filters: msgspec.msgpack.Decoder[FindFilter] = msgspec.msgpack.Decoder(FindFilter)
_part: msgspec.msgpack.Decoder[Part] = msgspec.msgpack.Decoder(Part)


def add_filter(request: Any, wanted: FindFilter) -> None:
    """Have a `FindRequest` say what of its key is wanted."""
    encoded = msgspec.msgpack.encode(wanted)
    request.MergeFromString(_varint(FILTER_FIELD << 3 | LENGTH_DELIMITED) + _varint(len(encoded)) + encoded)


def read_filter(request: Any) -> FindFilter | None:
    """What a `FindRequest` says is wanted; None where it says nothing, as hivemind's own.

    Raises:
        RecordRejected: "malformed" where this is no filter, or there is not one key.
    """
    found = [field.data for field in UnknownFieldSet(request) if field.field_number == FILTER_FIELD]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0], bytes) or len(request.keys) != 1:
        raise RecordRejected("malformed", "a filter is given once, for one key")
    wanted: FindFilter = _decode(_filters, found[0])
    return wanted


def encode_part(part: Part) -> bytes:
    """For the `value` of a `FindResult`."""
    return msgspec.msgpack.encode(part)


def is_part(value: bytes) -> bool:
    """Is the `value` of a `FindResult` a part? It is a dictionary, otherwise."""
    return value[:1] == bytes([PART_START])


def read_part(value: bytes, size_bytes_max: int) -> Part:
    """Read an answer. Raises RecordRejected: "oversized", "malformed", "nested"."""
    if len(value) > size_bytes_max:
        raise RecordRejected("oversized", f"an answer of {len(value)} bytes")
    part: Part = _decode(_part, value)
    return part


def _decode(decoder: Any, encoded: bytes) -> Any:
    check_plain(encoded)
    try:
        return decoder.decode(encoded)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"no part of a key, and no filter for one: {error!s:.200}") from error


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
