"""Checks peers' msgpack before it is decoded: no extension types, little nesting, no trailing bytes.

The check walks the encoding without building any object, so a few hostile bytes cannot ask for gigabytes: a decoder
that trusts the lengths of arrays allocates each before it reads its elements.
"""

from swarmd.bounds import DECODE_ERRORS as DECODE_ERRORS
from swarmd.errors import RecordRejected

DEPTH_MAX = 8  # nested arrays and maps
ELEMENTS_MAX = 1_000_000  # total number of values

_SCALAR, _BLOB, _BRANCH, _EXTENSION, _BAD = range(5)


def _decode_first_byte(byte: int) -> tuple[int, int, int]:
    """Return (kind, size of the value or of its length field, children per unit or in total) for a first byte. For an
    extension without a length field, the last is its size."""
    if byte <= 0x7F or byte >= 0xE0 or byte in (0xC0, 0xC2, 0xC3):
        return (_SCALAR, 0, 0)
    if byte <= 0x8F:
        return (_BRANCH, 0, 2 * (byte & 0x0F))
    if byte <= 0x9F:
        return (_BRANCH, 0, byte & 0x0F)
    if byte <= 0xBF:
        return (_SCALAR, byte & 0x1F, 0)
    sized = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
    blobs = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
    branches = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
    extensions = {0xC7: (1, 0), 0xC8: (2, 0), 0xC9: (4, 0)} | {0xD4 + power: (0, 1 << power) for power in range(5)}
    if byte in sized:
        return (_SCALAR, sized[byte], 0)
    if byte in blobs:
        return (_BLOB, blobs[byte], 0)
    if byte in branches:
        return (_BRANCH, *branches[byte])
    if byte in extensions:
        return (_EXTENSION, *extensions[byte])
    return (_BAD, 0, 0)


_TABLE = tuple(_decode_first_byte(byte) for byte in range(256))


def check_plain_msgpack(
    encoded: bytes, depth_max: int = DEPTH_MAX, elements_max: int = ELEMENTS_MAX, extensions: bool = False
) -> None:
    """Walk one msgpack value. `extensions` allows extension types; the decoder must check their contents. Raises
    RecordRejected: "nested" beyond `depth_max`, "oversized" beyond `elements_max` values, or "malformed" for an
    extension type that is not allowed, a truncated value or trailing bytes."""
    at, elements, end = 0, 0, len(encoded)
    open_counts = [1]  # values still expected at each depth
    while open_counts:
        if not open_counts[-1]:
            open_counts.pop()
            continue
        open_counts[-1] -= 1
        elements += 1
        if elements > elements_max:
            raise RecordRejected("oversized", f"more than {elements_max} values")
        if at >= end:
            raise RecordRejected("malformed", "the msgpack value is cut")
        kind, size, children = _TABLE[encoded[at]]
        at += 1
        if kind == _SCALAR:
            at += size
        elif kind == _EXTENSION and extensions:
            at += size + 1 + (int.from_bytes(encoded[at : at + size], "big") if size else children)
        elif kind in (_EXTENSION, _BAD):
            raise RecordRejected("malformed", "an extension type or an invalid byte")
        else:
            length = int.from_bytes(encoded[at : at + size], "big") if size else 1
            at += size
            if kind == _BLOB:
                at += length
            elif length * children:
                open_counts.append(length * children)
                if len(open_counts) > depth_max + 1:
                    raise RecordRejected("nested", f"more than {depth_max} levels")
    if at != end:
        raise RecordRejected("malformed", "the msgpack value is cut or has bytes after its end")
