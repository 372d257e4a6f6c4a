"""Bounds: on numbers from outside and their sums, and on how often something may be tried or asked for.

Whatever comes from peers, a chain, a proxy, a page or a file of questions has these types, so that decoding refuses
numbers beyond them, and sums of several still fit into a log. Counters in the state saturate.
"""

import math
import time
from collections.abc import Callable
from typing import Annotated, NamedTuple

from cachetools import FIFOCache
from msgspec import DecodeError, Meta, Struct

DECODE_ERRORS = (DecodeError, UnicodeDecodeError, RecursionError)  # what msgspec raises at bytes from outside
INTEGER_MAX = 2**53  # exact in a double too, as pages and JSON hold it
REAL_MAX = 1e12  # of a reward, or a time in seconds
WORD_MAX = 2**64 - 1  # greatest integer that a log can hold
WORD_MIN = -(2**63)
SUM_MAX = 1e15  # of a sum of reals

Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Integer = Annotated[int, Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
Real = Annotated[float, Meta(ge=-REAL_MAX, le=REAL_MAX)]  # neither infinite nor NaN


class Backoff(NamedTuple):
    """How long to wait before the next try: twice as long after each failure."""

    first_s: float
    most_s: float

    def after(self, failures: int) -> float:
        """Seconds to wait after `failures` in a row, at least one."""
        return min(self.first_s * 2.0 ** min(failures - 1, 64), self.most_s)


KEYS_MAX = 1024  # of a limiter; the key that was charged longest ago is forgotten first


class RateLimiter:
    """A token bucket for each key.

    Args:
        burst: the size of a bucket.
        per_s: the tokens that come back each second.
        now: a monotonic clock in seconds.
        keys_max: keys that are remembered. A forgotten key has a full bucket again, so unless something else bounds
            the total, this must be as many as there can be.
    """

    def __init__(
        self, burst: float, per_s: float, now: Callable[[], float] = time.monotonic, keys_max: int = KEYS_MAX
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._now = now
        self._buckets: FIFOCache[str, tuple[float, float]] = FIFOCache(keys_max)  # key → tokens, when

    def try_charge(self, key: str = "", amount: float = 1.0, reserve: float = 0.0) -> bool:
        """Charge a key if it has `amount` left, beyond a reserve that is a share of the burst. False if it does not."""
        granted = self.has(key, amount, reserve)
        self.charge(key, amount if granted else 0.0)
        return granted

    def has(self, key: str, amount: float, reserve: float = 0.0) -> bool:
        """Whether `amount` is left, beyond the reserve."""
        return amount <= self.tokens_left(key) - reserve * self._burst

    def tokens_left(self, key: str = "") -> float:
        """The tokens that a key has now; below zero if it was charged for more."""
        now = self._now()
        left, at = self._buckets.get(key, (self._burst, now))
        return min(self._burst, left + (now - at) * self._per_s)

    def charge(self, key: str, amount: float) -> None:
        """Charge a key for what it has used already, even if it has less left."""
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
    """A sum that stays finite."""
    added = total + value
    if -SUM_MAX <= added <= SUM_MAX and -REAL_MAX <= value <= REAL_MAX:  # nearly always, and never with a NaN
        return added
    return clamp_real(total + clamp_real(value), SUM_MAX)
