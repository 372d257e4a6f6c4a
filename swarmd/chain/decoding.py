"""Values out of what a contract returns or logs, with a bound on everything.

eth_abi decodes the same, but takes time, and a few bytes of offsets that all point at one long text become gigabytes
there. A text that is no UTF-8 keeps its bytes visible (``\\xff``), so that two of them never become one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from eth_utils.address import to_checksum_address

WORD = 32
TEXT_BYTES_MAX = 1 << 20
ITEMS_MAX = 100_000


class MalformedAbi(ValueError):
    """The bytes do not hold what was looked for; the message says in two words why."""


class AbiReader:
    """ABI-encoded values; places are counted in bytes from its beginning."""

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._budget = len(encoded)  # bytes of text that may still be taken, so that none is taken twice for free

    def unsigned(self, at: int) -> int:
        """An unsigned integer of 256 bits."""
        if at < 0 or at + WORD > len(self._encoded):
            raise MalformedAbi("too short")
        return int.from_bytes(self._encoded[at : at + WORD], "big")

    def signed(self, at: int) -> int:
        """A signed integer of 256 bits."""
        unsigned = self.unsigned(at)
        return unsigned - (1 << 256) if unsigned >> 255 else unsigned

    def address(self, at: int) -> str:
        """An account."""
        return account_of(self.unsigned(at))

    def content(self, at: int, most: int = TEXT_BYTES_MAX) -> bytes:
        """Bytes after their length, of which there may be `most`."""
        length = self.unsigned(at)
        if length > most:
            raise MalformedAbi("too long")
        if at + WORD + length > len(self._encoded):
            raise MalformedAbi("too short")
        self._budget -= length
        if self._budget < 0:
            raise MalformedAbi("overlapping")
        return self._encoded[at + WORD : at + WORD + length]

    def text(self, at: int, most: int = TEXT_BYTES_MAX) -> str:
        """A text of at most `most` bytes."""
        return self.content(at, most).decode("utf-8", "backslashreplace")

    def count(self, at: int, most: int = ITEMS_MAX) -> int:
        """How many items an array has, `most` at most."""
        count = self.unsigned(at)
        if count > most:
            raise MalformedAbi("too many")
        if at + WORD + count * WORD > len(self._encoded):
            raise MalformedAbi("too short")
        return count

    def offset(self, base: int, at: int) -> int:
        """Where a value lies whose offset from `base` stands at `at`."""
        return base + min(self.unsigned(at), len(self._encoded))


Taker = Callable[[AbiReader, int], Any]
STATIC: dict[str, Taker] = {
    "address": AbiReader.address,
    "bool": lambda content, at: content.unsigned(at) != 0,
    "bytes32": lambda content, at: content.unsigned(at).to_bytes(WORD, "big"),
}
DYNAMIC: dict[str, Taker] = {"string": AbiReader.text, "bytes": AbiReader.content}


def values_of(types: Sequence[str], encoded: bytes) -> tuple[Any, ...]:
    """The values of these types: integers, address, bool, bytes32, string, bytes, and arrays of them.

    Raises:
        Malformed: the bytes do not hold them.
    """
    content = AbiReader(encoded)
    return tuple(_value(content, kind, 0, place * WORD) for place, kind in enumerate(types))


def _value(content: AbiReader, kind: str, base: int, at: int) -> Any:
    if kind.endswith("[]"):
        return _array(content, kind[:-2], content.offset(base, at))
    if kind in DYNAMIC:
        return DYNAMIC[kind](content, content.offset(base, at))
    if kind.startswith("int"):
        return content.signed(at)
    return STATIC.get(kind, AbiReader.unsigned)(content, at)


def _array(content: AbiReader, kind: str, at: int) -> tuple[Any, ...]:
    first = at + WORD
    return tuple(_value(content, kind, first, first + place * WORD) for place in range(content.count(at)))


@lru_cache(maxsize=8192)
def account_of(number: int) -> str:
    """The checksummed address in a word."""
    return to_checksum_address((number & ((1 << 160) - 1)).to_bytes(20, "big"))


def show_text(text: str) -> str:
    """Somebody else's text as it may stand on a terminal: what cannot be printed is a blank."""
    return "".join(each if each.isprintable() else " " for each in text)
