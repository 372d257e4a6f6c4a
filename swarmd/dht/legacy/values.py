"""hivemind's msgpack, read as if every byte were hostile: extension 0x40 is a tuple, 0x50 a dictionary of subkeys.

hivemind's own decoder goes down into nested extensions without an end, and what it returns has no particular type. Here
everything that foreign bytes can do wrong comes out as `RecordRejected`.
"""

from __future__ import annotations

import math
from typing import Any

import msgpack  # type: ignore[import-untyped]

from swarmd.bounds import REAL_MAX
from swarmd.dht.wire.msgpack_guard import check_plain
from swarmd.errors import RecordRejected

TUPLE, DICTIONARY = 0x40, 0x50
VALUE_BYTES_MAX = 1024 * 1024  # a prompt with five answers and five opinions has some 20 KiB
DICTIONARY_BYTES_MAX = 4 * 1024 * 1024  # v0.4's messages hold no more
LENGTH_MAX = 65536  # of an array; a leaderboard has one element for each peer
MAP_LENGTH_MAX = 1024
DEPTH_MAX = 32  # of arrays and maps inside one another, in one tuple: room is taken for each before it is read
TUPLES_DEEP_MAX = 4  # tuples inside one another; honest values have 2
TEXT_LENGTH_MAX = 65536  # characters
REWARD_MAX = 1e9
NUMBER_MAX = 2**31 - 1

Entry = tuple[object, object, object]  # subkey, encoded value, expiration: all of them as a peer says


def encode(value: Any) -> bytes:
    """As hivemind's serializer encodes it, byte for byte."""
    return bytes(msgpack.packb(value, use_bin_type=True, strict_types=True, default=_encode_tuple))


def _encode_tuple(value: Any) -> Any:
    if isinstance(value, tuple):
        return msgpack.ExtType(TUPLE, encode(list(value)))
    raise TypeError(f"a {type(value).__name__} has no encoding")


def decode(encoded: bytes, bytes_max: int = VALUE_BYTES_MAX) -> Any:
    """A value of None, bool, int, float, str, bytes, list, dict and tuple; of msgpack, also its time stamp.

    Raises:
        RecordRejected: "oversized", "nested" or "malformed".
    """
    return _unpack(encoded, bytes_max, 0)


def _unpack(encoded: bytes, bytes_max: int, depth: int) -> Any:
    if len(encoded) > bytes_max:
        raise RecordRejected("oversized", f"{len(encoded)} bytes, the limit is {bytes_max}")

    def open_extension(code: int, payload: bytes) -> Any:
        if code != TUPLE:
            raise RecordRejected("malformed", f"extension type {code}")
        if depth >= TUPLES_DEEP_MAX:
            raise RecordRejected("nested", "tuples are nested too deeply")
        inside = _unpack(payload, bytes_max, depth + 1)
        return tuple(inside) if isinstance(inside, list) else _refuse("a tuple of something else than a list")

    try:
        return _unpack_bounded(encoded, open_extension)
    except RecordRejected:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise RecordRejected("malformed", f"no msgpack value: {error!r:.200}") from error


def _unpack_bounded(encoded: bytes, open_extension: Any) -> Any:
    check_plain(encoded, DEPTH_MAX, extensions=True)
    bounds = {"max_array_len": LENGTH_MAX, "max_map_len": MAP_LENGTH_MAX}
    return msgpack.unpackb(encoded, raw=False, ext_hook=open_extension, **bounds)


def _refuse(what: str) -> Any:
    raise RecordRejected("malformed", what)


def decode_dictionary(encoded: bytes) -> list[Entry]:
    """The entries of a dictionary as holders send it, not yet checked one by one.

    Raises:
        RecordRejected: "oversized", "nested" or "malformed".
    """
    if len(encoded) > DICTIONARY_BYTES_MAX:
        raise RecordRejected("oversized", f"a dictionary of {len(encoded)} bytes")
    payload = _payload_of(encoded)
    content = decode(payload, DICTIONARY_BYTES_MAX)
    if not isinstance(content, list) or len(content) != 3 or not isinstance(content[2], list):
        raise RecordRejected("malformed", "a dictionary of another shape")
    entries = content[2]
    if not all(isinstance(entry, list) and len(entry) == 3 for entry in entries):
        raise RecordRejected("malformed", "a dictionary with entries of another shape")
    return [(subkey, value, expiration) for subkey, value, expiration in entries]


def _payload_of(encoded: bytes) -> bytes:
    try:
        outer = _unpack_bounded(encoded, msgpack.ExtType)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise RecordRejected("malformed", f"no dictionary: {error!r:.200}") from error
    if not isinstance(outer, msgpack.ExtType) or outer.code != DICTIONARY:
        raise RecordRejected("malformed", "no dictionary")
    return bytes(outer.data)


def pair_in(encoded: bytes) -> tuple[Any, Any]:
    """A value that is a tuple, or list, of two. Raises RecordRejected."""
    value = decode(encoded)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise RecordRejected("malformed", "no pair")
    return value[0], value[1]


def number(value: object) -> int:
    """A round or stage. Raises RecordRejected."""
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise RecordRejected("malformed", "no number of a round or stage")
    return value


def amount(value: object) -> float:
    """A reward or a time. Raises RecordRejected: "malformed", "non-finite" or "oversized"."""
    if type(value) is int and abs(value) <= NUMBER_MAX:
        value = float(value)
    if type(value) is not float:
        raise RecordRejected("malformed", "no number")
    if not math.isfinite(value):
        raise RecordRejected("non-finite", "a number is infinite or NaN")
    if abs(value) > REAL_MAX:
        raise RecordRejected("oversized", f"a number of {value:g}")
    return value


def reward(value: object) -> float:
    """A reward within bounds. Raises RecordRejected."""
    checked = amount(value)
    if abs(checked) > REWARD_MAX:
        raise RecordRejected("oversized", f"a reward of {checked:g}")
    return checked


def text(value: object, length_max: int = TEXT_LENGTH_MAX) -> str:
    """A text within bounds. Raises RecordRejected."""
    if not isinstance(value, str):
        raise RecordRejected("malformed", "no text")
    if len(value) > length_max:
        raise RecordRejected("oversized", f"a text of {len(value)} characters, the limit is {length_max}")
    return value
