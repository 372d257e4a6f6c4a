"""How large a record may be: a bound for each kind, so that little room under a key buys no large part of it."""

from __future__ import annotations

from typing import Any

import msgspec

from swarmd.errors import RecordRejected

INLINE_BYTES_MAX = 48 * 1024  # of a body that travels inside its record, compressed
FIELDS_BYTES_MAX = 1024  # of what else is in a record that may hold a body
PAYLOAD_BYTES_MAX = {
    "membership": 4 * 1024,
    "clock": 512,
    "report": 768,
    "rollouts": INLINE_BYTES_MAX + FIELDS_BYTES_MAX,
    "leaderboard": INLINE_BYTES_MAX + FIELDS_BYTES_MAX,
}
SIGNATURE_BYTES_MAX = 1200  # an RSA key of 600 bytes, a signature by 4096 bits, their lengths
VALUE_BYTES_MAX = max(PAYLOAD_BYTES_MAX.values()) + SIGNATURE_BYTES_MAX
UNKNOWN_BYTES_MAX = 256  # fields of later versions, and fields that state their default


def check_payload_size(payload: bytes, content: msgspec.Struct) -> None:
    """Is a payload no larger than its kind needs, and what it holds beyond its own fields little?

    Args:
        payload: as it came.
        content: what was decoded of it.

    Raises:
        RecordRejected: "oversized".
    """
    kind: Any = content.__struct_config__.tag
    if len(payload) > PAYLOAD_BYTES_MAX[kind]:
        raise RecordRejected(
            "oversized", f"a {kind} of {len(payload)} bytes fits in no record, the limit is {PAYLOAD_BYTES_MAX[kind]}"
        )
    unknown = len(payload) - len(msgspec.msgpack.encode(content))
    if unknown > UNKNOWN_BYTES_MAX:
        raise RecordRejected("oversized", f"{unknown} bytes of unknown fields, the limit is {UNKNOWN_BYTES_MAX}")
