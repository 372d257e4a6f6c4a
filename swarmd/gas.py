"""The gas cost of a round, and how many rounds an account can pay for. Pure, and cheap to import: `swarmd status` uses
it.

Estimates are pessimistic: a little more gas than docs/CONTRACT.md measures, at the signed price, the most that may be
charged.
"""

from swarmd.config import ChainConfig

# In units of gas.
REGISTER_GAS = 125_000
REWARD_GAS = 111_000
VOTE_GAS = 205_000  # for one winner,
WINNER_GAS = 45_000  # and for each further one that the contract knows
STEP_GAS = 38_000  # for advancing the contract to the next stage or round

ROUNDS_WANTED = 10  # an account should be able to pay for this many
ROUNDS_MAX = 1_000_000  # rounds are counted up to this
COIN_WEI = 10**18
BUDGET_TOLD_SHARE = 0.8  # report when this share of the day's budget is signed for


def round_gas(chain: ChainConfig, stages: int) -> int:
    """Units of gas of a round at most: a reward and a contract step for each of its stages, and one vote."""
    vote = VOTE_GAS + (chain.winners - 1) * WINNER_GAS if chain.winners else 0
    step = 0 if chain.drive == "never" else STEP_GAS
    return stages * (REWARD_GAS + step) + vote


def rounds_paid(balance_wei: int, price_wei: int, gas: int) -> int:
    """How many rounds of `gas` units a balance pays for, at most ROUNDS_MAX; ROUNDS_MAX if gas is free."""
    round_wei = price_wei * gas
    return min(balance_wei // round_wei, ROUNDS_MAX) if round_wei > 0 else ROUNDS_MAX


def format_coins(wei: int) -> str:
    return f"{wei / COIN_WEI:.6g} coins"
