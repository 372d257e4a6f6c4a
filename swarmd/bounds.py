"""Bounds on numbers from outside and on their sums; back-off and rate limits.

Numbers from peers, a chain, a proxy, a page or a question file are decoded into these types, so that decoding refuses
values out of range, and sums of several still fit into a log. Counters in the state saturate.
"""

import math
import time
from collections.abc import Callable
from typing import Annotated, NamedTuple

from cachetools import FIFOCache
from msgspec import DecodeError, Meta, Struct

DECODE_ERRORS = (DecodeError, UnicodeDecodeError, RecursionError)  # what msgspec raises for malformed bytes
INTEGER_MAX = 2**53  # a double, as pages and JSON use, represents integers up to this exactly
REAL_MAX = 1e12  # largest reward, or time in seconds
WORD_MAX = 2**64 - 1  # greatest integer that a log can hold
WORD_MIN = -(2**63)
SUM_MAX = 1e15  # largest sum of such reals

Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Integer = Annotated[int, Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
Real = Annotated[float, Meta(ge=-REAL_MAX, le=REAL_MAX)]  # neither infinite nor NaN


class Backoff(NamedTuple):
    """Exponential back-off: the delay doubles with each failure."""

    first_s: float
    most_s: float

    def after(self, failures: int) -> float:
        """Seconds to wait after `failures` in a row; `failures` is at least 1."""
        return min(self.first_s * 2.0 ** min(failures - 1, 64), self.most_s)


KEYS_MAX = 1024  # keys of a limiter; the one charged longest ago is forgotten first


class RateLimiter:
    """A token bucket for each key.

    Args:
        burst: the size of a bucket.
        per_s: tokens refilled each second.
        now: a monotonic clock in seconds.
        keys_max: keys that are remembered. A forgotten key has a full bucket again, so unless something else bounds the
        total, allow for every key that can occur.
    """

    def __init__(
        self, burst: float, per_s: float, now: Callable[[], float] = time.monotonic, keys_max: int = KEYS_MAX
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._now = now
        self._buckets: FIFOCache[str, tuple[float, float]] = FIFOCache(keys_max)  # key → tokens, last charge

    def try_charge(self, key: str = "", amount: float = 1.0, reserve: float = 0.0) -> bool:
        """Charge a key if `amount` tokens are left above the reserve, a share of the burst. Returns whether it was
        charged."""
        granted = self.has(key, amount, reserve)
        self.charge(key, amount if granted else 0.0)
        return granted

    def has(self, key: str, amount: float, reserve: float = 0.0) -> bool:
        """Whether `amount` tokens are left above the reserve, a share of the burst."""
        return amount <= self.tokens_left(key) - reserve * self._burst

    def tokens_left(self, key: str = "") -> float:
        """The tokens that a key has now; below zero if it was charged for more."""
        now = self._now()
        left, at = self._buckets.get(key, (self._burst, now))
        return min(self._burst, left + (now - at) * self._per_s)

    def charge(self, key: str, amount: float) -> None:
        """Charge a key for what was used already, even if its bucket goes below zero."""
        self._buckets[key] = (self.tokens_left(key) - amount, self._now())


def is_bounded(value: object) -> bool:
    """Whether each number in a decoded value is an `Integer`, or a real within the bound of sums."""
    if isinstance(value, float):
        return abs(value) <= SUM_MAX  # False for NaN
    if isinstance(value, int):
        return abs(value) <= INTEGER_MAX
    if isinstance(value, Struct):
        return all(is_bounded(getattr(value, name)) for name in value.__struct_fields__)
    return not isinstance(value, tuple | list) or all(map(is_bounded, value))


def clamp_integer(value: int, most: int = WORD_MAX, least: int = WORD_MIN) -> int:
    """The integer nearest to `value` that lies between `least` and `most`."""
    return min(max(value, least), most)


def clamp_real(value: float, most: float = REAL_MAX) -> float:
    """The real nearest to `value` between -`most` and `most`; 0 for NaN."""
    return 0.0 if math.isnan(value) else min(max(value, -most), most)


def add_bounded(total: float, value: float) -> float:
    """`total + value`, clamped so that it stays finite."""
    added = total + value
    if -SUM_MAX <= added <= SUM_MAX and -REAL_MAX <= value <= REAL_MAX:  # nearly always, and never with a NaN
        return added
    return clamp_real(total + clamp_real(value), SUM_MAX)
