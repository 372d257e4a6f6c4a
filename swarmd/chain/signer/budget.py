"""What an account may sign for in a day, counted by the most that it may cost: no endpoint can talk that down.

A day is one of UTC. What was signed stands in the event log, or in a signer's audit log, and is taken up from there:
a process that starts again goes on with what the day has left.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import time

from swarmd.config import FeesConfig
from swarmd.core.values import Prepared, day_of
from swarmd.errors import BudgetSpent
from swarmd.gas import BUDGET_TOLD_SHARE, COIN_WEI, coins
from swarmd.worker.runtime import TimeSource

log = logging.getLogger(__name__)


class Budget:
    """The day's budget of one account.

    Args:
        fees: its `day_coins_max`, 0 for none.
        clock: POSIX seconds.
    """

    def __init__(self, fees: FeesConfig, clock: TimeSource = time) -> None:
        self._coins_max = fees.day_coins_max
        self._clock = clock
        self._day = -1
        self._spent_wei = 0

    @property
    def spent_wei(self) -> int:
        """What was signed for today at most."""
        return self._spent_wei if self._day >= day_of(self._clock()) else 0

    def restore(self, day: int, spent_wei: int) -> None:
        """What a log has of a day; what was signed here meanwhile, and may not be in the log yet, stays."""
        if day > self._day:
            self._day, self._spent_wei = day, spent_wei
        elif day == self._day:
            self._spent_wei = max(self._spent_wei, spent_wei)

    def check(self, cost_wei: int, counted_wei: int, what: str) -> None:
        """Whether the day has room for a transaction, of which `counted_wei` is counted already. Raises BudgetSpent."""
        more_wei = max(cost_wei - counted_wei, 0)
        most_wei = round(self._coins_max * COIN_WEI)
        if not self._coins_max or self.spent_wei + more_wei <= most_wei:
            return
        asked = f"the {what} may cost {coins(more_wei)}"
        if more_wei > most_wei:
            why = f"{asked}, and chain.fees.day_coins_max is {self._coins_max:g} for a whole day"
            raise BudgetSpent(why, "Raise it and restart")
        why = f"{coins(self.spent_wei)} of {self._coins_max:g} are signed for today, and {asked}: the day's budget"
        raise BudgetSpent(
            f"{why}, chain.fees.day_coins_max, is spent", "It goes on at 00:00 UTC, or raise it and restart"
        )

    def note(self, cost_wei: int, counted_wei: int) -> None:
        """Count a signed transaction against the day's budget."""
        today = day_of(self._clock())
        if today > self._day:
            self._day, self._spent_wei = today, 0
        was_scarce = self.is_scarce
        self._spent_wei += max(cost_wei - counted_wei, 0)
        if self.is_scarce and not was_scarce:
            log.warning("%s of %g are signed for today, the day's budget", coins(self._spent_wei), self._coins_max)

    @property
    def is_scarce(self) -> bool:
        """Whether the day's budget is nearly spent."""
        return 0 < self._coins_max * COIN_WEI * BUDGET_TOLD_SHARE <= self.spent_wei

    def figures(self) -> dict[str, float]:
        """What is known, by the names that progress has."""
        told = {"day_spent_coins": self.spent_wei / COIN_WEI}
        return told | ({"day_coins_max": self._coins_max} if self._coins_max else {})


def counted(attempts: Sequence[Prepared], nonce: int) -> int:
    """What is counted for a nonce already: the chain takes one transaction of each, so the dearest counts. In wei."""
    return max((int(each.cost_wei) for each in attempts if each.nonce == nonce), default=0)
