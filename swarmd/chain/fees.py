"""Gas prices, the bounds on what is signed, and the balance of the account that submits.

- A price has EIP-1559's two parts if the chain has a base fee, else one.
- A replacement costs at least an eighth more than what it replaces; nothing is signed above `fees.max_gwei`.
- `DailyBudget` bounds what an account signs for in a day. It counts the most expensive attempt of each nonce.
- `BalanceMonitor` reads the balance at intervals for status and metrics, so that an operator is warned before the
  account cannot pay. Nothing else depends on it.
"""

from collections.abc import Sequence
from time import monotonic, time
from typing import Any, NamedTuple

import anyio

from swarmd.chain.ports import AccountClient, Price
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.values import SubmissionAttempt, utc_day_of
from swarmd.errors import BudgetSpent, EndpointFailed, GasTooDear, SwarmdError
from swarmd.gas import BUDGET_TOLD_SHARE, COIN_WEI, format_coins, round_gas, rounds_paid
from swarmd.logger import get_logger
from swarmd.worker.runtime import TimeSource

GWEI = 10**9
# Without a base fee, a price that the endpoint chooses is signed and paid in full; with one, the chain charges only the
# base fee and the tip. So only the configuration may say that a chain has none.
NO_BASE_FEE = "{} shows a block without a base fee"
LEGACY_FIX = "If the chain really has none (no EIP-1559), set chain.fees.legacy = true"
BASE_FEES = 2  # the base fee may grow by this factor before the transaction is stuck
log = get_logger(__name__)


def parse_quantity(value: Any, what: str) -> int:
    """Decode a JSON-RPC quantity of at most 256 bits. Raises EndpointFailed, naming `what`, for anything else. (Python
    refuses to print a number of very many digits.)"""
    try:
        number = int(value, 16)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 1 << 256:
        raise EndpointFailed(f"an endpoint's answer is not a valid {what}")
    return number


async def quote_gas_price(chain: AccountClient, fees: FeesConfig) -> Price:
    """Return the gas price to sign with now, within the configured bounds. Raises GasTooDear: above fees.max_gwei;
    ChainError: no endpoint answers, or there is no base fee though `fees.legacy` is not set."""
    base_wei, cap = await chain.base_fee_wei(), max_gas_price_wei(fees)
    if base_wei is None:
        if not fees.legacy:
            raise EndpointFailed(NO_BASE_FEE.format("an endpoint"), LEGACY_FIX)
        price_wei = await chain.gas_price_wei()
        _check_gas_price(price_wei, fees)
        return Price(price_wei)
    _check_gas_price(base_wei, fees)
    fee_wei = min(BASE_FEES * base_wei + round(fees.tip_gwei * GWEI), cap)
    return Price(fee_wei, min(round(fees.tip_gwei * GWEI), fee_wei))


def max_gas_price_wei(fees: FeesConfig) -> int:
    """Return the highest price that is ever signed, in wei."""
    return round(fees.max_gwei * GWEI)


def _check_gas_price(asked_wei: int, fees: FeesConfig) -> None:
    if asked_wei > max_gas_price_wei(fees):
        raise GasTooDear(
            f"gas costs {asked_wei / GWEI:g} gwei now, and chain.fees.max_gwei is {fees.max_gwei:g}",
            "Wait until it is cheaper, or raise the bound",
        )


def replacement_price(earlier: Price, asked: Price, fees: FeesConfig) -> Price | None:
    """Return the price at which nodes accept a replacement of an earlier transaction; None if it is above the bound."""
    fee_wei = max(asked.fee_wei, min_replacement_price_wei(earlier.fee_wei))
    if fee_wei > max_gas_price_wei(fees):
        return None
    if asked.tip_wei is None:
        return Price(fee_wei)
    tip_wei = max(
        asked.tip_wei, min_replacement_price_wei(earlier.fee_wei if earlier.tip_wei is None else earlier.tip_wei)
    )
    return Price(fee_wei, tip_wei) if tip_wei <= fee_wei else None


def min_replacement_price_wei(price_wei: int) -> int:
    """Return the least price that replaces this one: an eighth more, although nodes require only a tenth."""
    return price_wei * 9 // 8 + 1


class DailyBudget:
    """The daily budget of one account."""

    def __init__(self, fees: FeesConfig, clock: TimeSource = time) -> None:
        self._coins_max = fees.day_coins_max
        self._clock = clock
        self._day = -1
        self._spent_wei = 0

    @property
    def spent_wei(self) -> int:
        """The most that today's signed transactions may cost."""
        return self._spent_wei if self._day >= utc_day_of(self._clock()) else 0

    def restore(self, day: int, spent_wei: int) -> None:
        """Restore a day's sum from a log; keep a larger sum of this process, which may not be logged yet."""
        if day > self._day:
            self._day, self._spent_wei = day, spent_wei
        elif day == self._day:
            self._spent_wei = max(self._spent_wei, spent_wei)

    def check_budget(self, cost_wei: int, counted_wei: int, what: str) -> None:
        """Raise BudgetSpent if a transaction exceeds the day's budget; `counted_wei` of it are counted already."""
        more_wei = max(cost_wei - counted_wei, 0)
        most_wei = round(self._coins_max * COIN_WEI)
        if not self._coins_max or self.spent_wei + more_wei <= most_wei:
            return
        asked = f"the {what} may cost {format_coins(more_wei)}"
        if more_wei > most_wei:
            why = f"{asked}, and chain.fees.day_coins_max is {self._coins_max:g} for a whole day"
            raise BudgetSpent(why, "Raise it and restart")
        why = (
            f"{format_coins(self.spent_wei)} of {self._coins_max:g} are signed for today, and {asked}: the day's budget"
        )
        raise BudgetSpent(f"{why}, chain.fees.day_coins_max, is spent", "Wait until 00:00 UTC, or raise it and restart")

    def record_spending(self, cost_wei: int, counted_wei: int) -> None:
        today = utc_day_of(self._clock())
        if today > self._day:
            self._day, self._spent_wei = today, 0
        was_scarce = self.is_nearly_spent
        self._spent_wei += max(cost_wei - counted_wei, 0)
        if self.is_nearly_spent and not was_scarce:
            log.warning(
                "%s of %g are signed for today, the day's budget", format_coins(self._spent_wei), self._coins_max
            )

    @property
    def is_nearly_spent(self) -> bool:
        return 0 < self._coins_max * COIN_WEI * BUDGET_TOLD_SHARE <= self.spent_wei

    def metrics(self) -> dict[str, float]:
        """Return the metrics for progress reports, by name."""
        told = {"day_spent_coins": self.spent_wei / COIN_WEI}
        return told | ({"day_coins_max": self._coins_max} if self._coins_max else {})


def counted_cost_wei(attempts: Sequence[SubmissionAttempt], nonce: int) -> int:
    """Return the wei already counted for a nonce: its most expensive attempt, since only one is mined."""
    return max((int(each.cost_wei) for each in attempts if each.nonce == nonce), default=0)


LOOK_S = 120.0  # between two reads of the balance
KEPT_S = 600.0  # a balance is reported for this long while later reads fail


class BalanceReading(NamedTuple):
    """An account's balance when it was last read."""

    balance_wei: int
    rounds: int  # rounds that it would pay for, at the price of that time
    at: float  # monotonic seconds


class BalanceMonitor:
    """Reads one account's balance at intervals, and reports it."""

    def __init__(
        self, config: ChainConfig, stages: int, chain: AccountClient, account: str, clock: TimeSource = monotonic
    ) -> None:
        self._config = config
        self._gas = round_gas(config, stages)
        self._chain = chain
        self._account = account
        self._clock = clock
        self._seen: BalanceReading | None = None

    async def run(self) -> None:
        """Read the balance at intervals until cancelled."""
        while True:
            await self.read_balance()
            await anyio.sleep(LOOK_S)

    async def read_balance(self) -> None:
        """Read the balance once; on failure, the last reading stays."""
        try:
            balance_wei = await self._chain.balance_wei(self._account)
            try:
                price_wei = (await quote_gas_price(self._chain, self._config.fees)).fee_wei
            except GasTooDear:
                price_wei = max_gas_price_wei(self._config.fees)  # nothing above it is ever signed
            rounds = rounds_paid(balance_wei, price_wei, self._gas)
        except SwarmdError as error:  # even another chain: the watcher handles that
            log.debug("what the account has is not known: %s", error.message)
        else:
            self._seen = BalanceReading(balance_wei, rounds, self._clock())

    def metrics(self) -> dict[str, float]:
        """Return the metrics for progress reports, by name; none if the reading is older than KEPT_S. An empty account
        behind a proxy is not reported either: another account pays for it, as with RL Swarm's login server."""
        seen = self._seen
        if seen is None or self._clock() - seen.at > KEPT_S:
            return {}
        if self._config.sender == "proxy" and seen.balance_wei == 0:
            return {}
        return {"balance_coins": seen.balance_wei / COIN_WEI, "rounds_paid": float(seen.rounds)}
