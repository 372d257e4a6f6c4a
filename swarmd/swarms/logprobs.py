"""Log-probabilities of sampled tokens on the wire: two bytes a token.

A value is a whole number of units of 1/2048 nat below zero, so that neither a positive value nor one that is no number
can be written. Rounding is off by 1/4096 nat at most, which is 0.025 % of a probability; what is below -32 nats (a
probability of 1e-14) is written as that.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

TOKEN_BYTES = 2
UNITS = 2048  # of one nat
UNITS_MAX = 2**16 - 1
LOWEST = -UNITS_MAX / UNITS


def pack_logprobs(values: Sequence[float]) -> bytes:
    """Natural logarithms of probabilities, each rounded to a unit; above 0 they count as 0.

    Raises:
        ValueError: one is no number.
    """
    if any(math.isnan(value) for value in values):
        raise ValueError("a log-probability is no number")
    units = [round(-min(max(value, LOWEST), 0.0) * UNITS) for value in values]
    return struct.pack(f"<{len(units)}H", *units)


def unpack_logprobs(packed: bytes) -> list[float]:
    """What `pack_logprobs` wrote, up to `ERROR_MAX`. The length of `packed` is even."""
    return [-unit / UNITS for unit in struct.unpack(f"<{len(packed) // TOKEN_BYTES}H", packed)]
