"""What a round costs an account, and how many rounds it can pay for. Pure, and cheap to import: status uses it.

Estimates are on the safe side: gas a little above what docs/CONTRACT.md measures, and the price that is signed, which
is the most that may be paid.
"""

from swarmd.config import ChainConfig

# Units of gas.
REGISTER_GAS = 125_000
REWARD_GAS = 111_000
VOTE_GAS = 205_000  # for one winner,
WINNER_GAS = 45_000  # and for each further one that the contract knows
STEP_GAS = 38_000  # of the contract, to another stage or round

ROUNDS_WANTED = 10  # that an account should be able to pay for
ROUNDS_MAX = 1_000_000  # more are not counted
COIN_WEI = 10**18
BUDGET_TOLD_SHARE = 0.8  # of a day's budget that is signed for: from here on it is reported


def round_gas(chain: ChainConfig, stages: int) -> int:
    """Units of gas of a round at most: a reward and a step of the contract for each of its stages, and a vote."""
    vote = VOTE_GAS + (chain.winners - 1) * WINNER_GAS if chain.winners else 0
    step = 0 if chain.drive == "never" else STEP_GAS
    return stages * (REWARD_GAS + step) + vote


def rounds_paid(balance_wei: int, price_wei: int, gas: int) -> int:
    """Rounds of `gas` units that a balance pays for at this price, at most ROUNDS_MAX, also if gas is free."""
    round_wei = price_wei * gas
    return min(balance_wei // round_wei, ROUNDS_MAX) if round_wei > 0 else ROUNDS_MAX


def format_coins(wei: int) -> str:
    """Wei as the chain's coin, shortened."""
    return f"{wei / COIN_WEI:.6g} coins"
