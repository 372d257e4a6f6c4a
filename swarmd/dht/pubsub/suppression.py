"""How long a node waits before it tells what many know at the same time: few tell, and the others hear it.

By such timers the receivers of a multicast suppress each other's feedback: J. Nonnenmacher and E. Biersack, "Scalable
Feedback for Large Groups", IEEE/ACM Transactions on Networking 7(3), 1999; RFC 5401, 3.2.2. The later, the more densely
timers end: e times as densely after each spread. So the first of N ends after a spread or two, and by the time its
message has reached all, c seconds later, some e^(c / spread) have told, whatever N is. Of timers that end evenly
within W seconds it would be N c / W.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

SPREAD_S = 1.0  # a few times what a message takes to all


class Suppression:
    """Draws how long to wait for others.

    Args:
        random: chance.
        members: how many may tell the same, as far as this node knows; too few make more nodes tell.
    """

    def __init__(self, random: Random, members: Callable[[], int]) -> None:
        self._random = random
        self._members = members

    def delay_s(self) -> float:
        """Seconds to wait before one tells what nobody else has told by then: at most 1 + ln(members) of `SPREAD_S`."""
        return SPREAD_S * math.log1p(self._random.random() * (math.e * max(1, self._members()) - 1.0))

    def apart_s(self, period_s: float) -> float:
        """A period, or up to half of it less: what all do regularly they do not do together."""
        return period_s * self._random.uniform(0.5, 1.0)
