"""The chain and submission layers of a node in a swarm whose rounds a contract keeps. Pure."""

import math
from typing import Literal

import msgspec

from swarmd.core.chart_types import LinkState, SubmissionState
from swarmd.core.state import ChainState, State, Submission
from swarmd.core.values import ChainSettings, utc_day_of
from swarmd.gas import BUDGET_TOLD_SHARE, COIN_WEI, ROUNDS_MAX, ROUNDS_WANTED
from swarmd.observe.layers import (
    Layer,
    LiveDaemon,
    LiveWorker,
    WorkerStatus,
    describe_silence,
    first_line,
    worker_status,
)

WAITING: tuple[SubmissionState, ...] = ("intended", "prepared", "lost")  # states in which no transaction is under way
UNDER_WAY: tuple[SubmissionState, ...] = (*WAITING, "sent")
FUNDS_KEPT_S = 600.0  # the worker's figures about the account are valid this long
CHAIN_WORDS: dict[LinkState, str] = {  # shown if there is no other reason
    "down": "the chain worker does not run",
    "connecting": "reading the chain",
    "up": "",
    "degraded": "no endpoint answers as it should",
}
OVERDUE_LOOKS = 3  # a submission that is not on the chain after this many checks is overdue


class ChainStatus(Layer, frozen=True, kw_only=True):
    state: LinkState
    chain_id: int
    contract: str
    account: str  # account that sends submissions; empty while unknown
    registered: bool  # the contract knows this peer
    round: int  # the contract's round
    stage: int
    block: int = -1  # newest block read; with the daemon down, the last one logged
    head: int = -1  # newest block of the chain, as the endpoint says; like the next two, only while the worker reports
    lag_s: float | None = None  # age of the newest block when it was read; None if no block can be read
    endpoint: str = ""  # endpoint that answered last: scheme, host and port
    members: int | None = None  # peers on the allow-list, None if everybody may take part
    balance_coins: float | None = None  # of the account, in the chain's coin; like the next, None while unknown
    rounds_paid: int | None = None  # rounds that the balance pays for at the present gas price, at most ROUNDS_MAX
    day_spent_coins: float | None = None  # upper bound of the fees signed for today (UTC); None if others sign
    day_coins_max: float | None = None  # chain.fees.day_coins_max as the worker reports it; None: unknown or no limit
    worker: WorkerStatus


class RewardOnChain(msgspec.Struct, frozen=True):
    """This node's last confirmed reward."""

    round: int
    stage: int
    reward: int  # as submitted, scaled by chain.reward_scale
    block: int


class RefusedSubmission(msgspec.Struct, frozen=True):
    """A submission that the contract will never accept."""

    submission: str
    code: str
    reason: str
    age_s: float


class SubmissionsStatus(Layer, frozen=True, kw_only=True):
    """What this node submits to the chain. `state` is that of the oldest open submission, else of the latest one.

    The state keeps only the latest 64 confirmed or refused submissions, so the counts are of these.
    """

    state: Literal[SubmissionState, "none"]
    waiting: int = 0
    sent: int = 0
    included: int = 0
    confirmed: int = 0
    refused: int = 0
    oldest: str = ""  # oldest open submission, not on the chain yet
    oldest_s: float | None = None  # seconds since it was intended
    last_reward: RewardOnChain | None = None
    last_refusal: RefusedSubmission | None = None


def chain_status(state: State, chain: ChainState, now: float, live: LiveDaemon | None, absent: str) -> ChainStatus:
    """The chain layer. `absent` says why no daemon answers, if none does."""
    process = live.chain if live else None
    reason = first_line(chain.reason) or CHAIN_WORDS[chain.chart]
    if chain.chart == "down" and state.chaining.reason:
        reason = f"the chain worker is down: {first_line(state.chaining.reason)}"
    progress = process.progress if process else None
    if progress is not None and chain.chart == "connecting" and progress.total:
        reason = f"reading the chain, block {progress.done} of {progress.total}"
    mute = describe_silence(process)
    stranger = _describe_not_admitted(state, chain) if chain.chart == "up" else ""
    balance_coins, rounds_paid = _read_funds(process)
    poor = _describe_low_funds(chain.account, rounds_paid)
    day_spent_coins, day_coins_max = _read_day_spending(state, chain, process, now)
    scarce = _describe_low_budget(day_spent_coins, day_coins_max)
    return ChainStatus(
        state=chain.chart if live else "down",
        healthy=live is not None and chain.chart == "up" and process is not None and not mute and not stranger,
        age_s=now - chain.since if chain.since else 0.0,
        reason=(mute or reason or "; ".join(filter(None, (stranger, poor, scarce)))) if live else absent,
        chain_id=chain.chain_id,
        contract=chain.contract,
        account=chain.account,
        registered=chain.registered,
        round=chain.round,
        stage=chain.stage,
        block=progress.done if progress and progress.total else (chain.recent[-1].number if chain.recent else -1),
        head=progress.total if progress and progress.total else -1,
        lag_s=progress.figures.get("lag_s") if progress and chain.chart in ("up", "connecting") else None,
        endpoint=progress.note if progress else "",
        members=None if state.members is None else len(state.members),
        balance_coins=balance_coins,
        rounds_paid=rounds_paid,
        day_spent_coins=day_spent_coins,
        day_coins_max=day_coins_max,
        worker=worker_status(state.chaining, live, process),
    )


def _read_funds(process: LiveWorker | None) -> tuple[float | None, int | None]:
    """The account's coins and the rounds they pay for, from the worker's latest figures; None if these are too old."""
    if process is None or process.progress is None or process.progress_age_s > FUNDS_KEPT_S:
        return None, None
    figures = process.progress.figures
    balance_coins, rounds = figures.get("balance_coins", math.nan), figures.get("rounds_paid", math.nan)
    if not (0 <= balance_coins < math.inf and 0 <= rounds < math.inf):
        return None, None
    return balance_coins, int(min(rounds, ROUNDS_MAX))


def _read_day_spending(
    state: State, chain: ChainState, process: LiveWorker | None, now: float
) -> tuple[float | None, float | None]:
    """Coins signed for today, from the log, and the day's budget, as the worker reports it."""
    if chain.spent_day < 0 and not _chain_settings(state).sends:
        return None, None
    spent_wei = int(chain.spent_wei) if chain.spent_day >= utc_day_of(now) else 0
    told = process.progress.figures.get("day_coins_max", math.nan) if process and process.progress else math.nan
    return spent_wei / COIN_WEI, told if 0 < told < math.inf else None


def _describe_low_budget(spent_coins: float | None, most_coins: float | None) -> str:
    """A warning that the day's budget is nearly spent; empty if it is not, or if there is none."""
    if spent_coins is None or most_coins is None or spent_coins < BUDGET_TOLD_SHARE * most_coins:
        return ""
    return (
        f"{spent_coins:.6g} of {most_coins:g} coins of the day's budget are signed for: what it has no room for waits "
        "until 00:00 UTC"
    )


def _describe_low_funds(account: str, rounds_paid: int | None) -> str:
    """Ask for coins if the account will soon be unable to pay; empty if it can. The chain still counts as healthy."""
    if rounds_paid is None or rounds_paid >= ROUNDS_WANTED:
        return ""
    left = f"about {rounds_paid} more rounds" if rounds_paid > 1 else "hardly a round more"
    return f"the account pays for {left}: send coins to {account or 'it'}"


def account_layer(chain: ChainStatus | None) -> Layer | None:
    """The account as a layer for notifications: unhealthy if coins or the day's budget run out; None if unknown."""
    if chain is None or (chain.rounds_paid is None and chain.day_coins_max is None):
        return None
    poor = _describe_low_funds(chain.account, chain.rounds_paid)
    scarce = _describe_low_budget(chain.day_spent_coins, chain.day_coins_max)
    reason = "; ".join(filter(None, (poor, scarce)))
    return Layer(state="poor" if poor else "scarce" if scarce else "", healthy=not reason, age_s=0.0, reason=reason)


def _describe_not_admitted(state: State, chain: ChainState) -> str:
    """Why the contract would refuse this node's submissions; empty if it would not."""
    if not _chain_settings(state).sends:
        return ""
    if state.settings is not None and state.members is not None and state.settings.peer not in state.members:
        return "this peer is not on the contract's allow-list"
    return "" if chain.registered else "the contract does not know this peer yet"


def _chain_settings(state: State) -> ChainSettings:
    return (state.settings.chain if state.settings else None) or ChainSettings()


def submissions_status(state: State, now: float) -> SubmissionsStatus:
    """The layer of submissions: waiting, under way, settled."""
    charts = [each.chart for each in state.submissions]
    first = next((each for each in state.submissions if each.chart in UNDER_WAY), None)
    telling = [each for each in state.submissions if each.kind != "advance" or each.chart != "refused"]
    shown = first or max(telling, key=lambda each: each.since, default=None)
    # Refusals to advance the contract do not matter: another node was quicker.
    refusals = [each for each in state.submissions if each.chart == "refused" and each.kind != "advance"]
    refused = max(refusals, key=lambda each: each.since, default=None)
    reason = _describe_trouble(state, first, refused, now)
    return SubmissionsStatus(
        state=shown.chart if shown else "none",
        healthy=not reason,
        age_s=now - shown.since if shown else 0.0,
        reason=reason or _describe_reason(state, first),
        waiting=sum(chart in WAITING for chart in charts),
        sent=charts.count("sent"),
        included=charts.count("included"),
        confirmed=charts.count("confirmed"),
        refused=charts.count("refused"),
        oldest=first.id if first else "",
        oldest_s=now - first.intended_at if first else None,
        last_reward=_find_last_reward(state),
        last_refusal=RefusedSubmission(refused.id, refused.code, first_line(refused.reason), now - refused.since)
        if refused
        else None,
    )


def _describe_trouble(state: State, first: Submission | None, refused: Submission | None, now: float) -> str:
    """Why submissions are unhealthy: one is overdue, or the latest settled one was refused; empty if they are
    healthy."""
    if first is not None and now - first.intended_at > OVERDUE_LOOKS * _chain_settings(state).resend_s:
        up = state.chain is not None and state.chain.chart == "up"
        why = first_line(first.reason) or ("not in a block yet" if up else "the chain cannot be reached")
        return f"{first.id} has been {first.chart} for {now - first.since:.0f} s: {why}"
    settled = [each for each in state.submissions if each.chart in ("confirmed", "refused") and each.kind != "advance"]
    if refused is not None and max(settled, key=lambda each: each.since) is refused:
        return f"{refused.id} was refused, {refused.code}: {first_line(refused.reason)}"
    return ""


def _describe_reason(state: State, first: Submission | None) -> str:
    if not _chain_settings(state).sends:
        return "this node submits nothing (chain.sender)"
    if first is None:
        return "" if state.submissions else "nothing to submit yet"
    return f"{first.id}: {first_line(first.reason)}" if first.reason else first.id


def _find_last_reward(state: State) -> RewardOnChain | None:
    rewards = [each for each in state.submissions if each.kind == "reward" and each.chart == "confirmed"]
    last = max(rewards, key=lambda each: (each.round, each.stage), default=None)
    if last is None:
        return None
    return RewardOnChain(last.round, last.stage, last.reward, last.block.number if last.block else -1)
