"""Rows of numbers as bytes, in which they are kept beside a log."""

from __future__ import annotations

import sys
from array import array

import msgspec


def doubles_as_bytes(numbers: array[float]) -> bytes:
    """Little-endian doubles."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def doubles_of(content: bytes) -> array[float]:
    """The numbers that `doubles_as_bytes` had. Raises msgspec.DecodeError."""
    numbers = array("d")
    if len(content) % numbers.itemsize:
        raise msgspec.DecodeError("no whole number of doubles")
    numbers.frombytes(content)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
