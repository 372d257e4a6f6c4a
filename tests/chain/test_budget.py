"""What an account may sign for in a day: kept on a real chain, over restarts, by the node and by the signer."""

from functools import partial
from pathlib import Path

import pytest
from eth_typing import HexStr

from swarmd.chain.endpoints import RpcPool
from swarmd.chain.fees import DailyBudget, counted_cost_wei
from swarmd.chain.senders import make_wallet
from swarmd.chain.signer import AuditLine, SignerRequest
from swarmd.config import FeesConfig
from swarmd.core.commands import Submit
from swarmd.core.events import CommandFailed, SubmissionConfirmed, SubmissionPrepared
from swarmd.core.values import SubmissionAttempt
from swarmd.errors import BudgetSpent, EndpointFailed
from swarmd.gas import COIN_WEI
from tests.chain.faults import Node, Places, account_named, attempts_of, settings
from tests.chain.grounds import Ground, calls_through, calls_to
from tests.chain.signing import seated
from tests.chain.test_endpoints import hide_base_fee
from tests.chain.test_submitter import wish

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("endings")]
DAY_S = 86_400
REGISTER = Submit("register", "register", "register")


def budget(most: float, at: list[float]) -> DailyBudget:
    return DailyBudget(FeesConfig(day_coins_max=most), lambda: at[0])


# --- reckoning ---


async def test_nothing_above_the_budget_is_let_through_and_the_next_day_begins_anew() -> None:
    at = [10.5 * DAY_S]
    day = budget(1.0, at)
    day.check_budget(COIN_WEI, 0, "reward")
    day.record_spending(COIN_WEI * 7 // 10, 0)
    day.check_budget(COIN_WEI * 3 // 10, 0, "reward")
    with pytest.raises(BudgetSpent, match=r"0\.7 coins of 1 are signed for today, and the reward may cost 0\.4 coins"):
        day.check_budget(COIN_WEI * 4 // 10, 0, "reward")
    day.check_budget(COIN_WEI, COIN_WEI * 7 // 10, "reward")  # in the place of what is counted
    at[0] = 11.0 * DAY_S
    day.check_budget(COIN_WEI, 0, "reward")
    assert day.metrics() == {"day_spent_coins": 0.0, "day_coins_max": 1.0}


async def test_what_the_log_says_is_taken_up_and_what_was_signed_since_stays() -> None:
    at = [10.5 * DAY_S]
    day = budget(1.0, at)
    day.restore(9, COIN_WEI)
    assert day.spent_wei == 0, "that was yesterday"
    day.restore(10, COIN_WEI // 2)
    day.record_spending(COIN_WEI // 4, 0)
    day.restore(10, COIN_WEI // 2)
    assert day.spent_wei == COIN_WEI * 3 // 4


async def test_a_transaction_dearer_than_a_whole_day_is_told_as_that() -> None:
    with pytest.raises(BudgetSpent, match=r"may cost 2 coins, and chain\.fees\.day_coins_max is 1 for a whole day"):
        budget(1.0, [0.0]).check_budget(2 * COIN_WEI, 0, "vote")


async def test_without_a_bound_everything_is_let_through_and_counted() -> None:
    day = budget(0.0, [0.0])
    day.check_budget(10**6 * COIN_WEI, 0, "vote")
    day.record_spending(3 * COIN_WEI, 0)
    assert day.metrics() == {"day_spent_coins": 3.0}


async def test_of_one_nonce_the_dearest_counts() -> None:
    attempts = [
        SubmissionAttempt("0xa", 4, cost_wei="5"),
        SubmissionAttempt("0xb", 4, cost_wei="9"),
        SubmissionAttempt("0xc", 5, cost_wei="70"),
    ]
    assert [counted_cost_wei(attempts, nonce) for nonce in (4, 5, 6)] == [9, 70, 0]


# --- a node ---


async def test_a_submission_waits_for_the_next_day_and_goes_on_by_itself(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.chain.submitter.HELD_S", 0.02)
    at = [10.5 * DAY_S]
    day, config, account = budget(0.05, at), settings(ground), account_named(ground, "alice")
    day.restore(10, COIN_WEI // 20 - 1)  # as the log has it
    node = Node(ground, config, lambda calls: make_wallet(config, calls, account, day), "me", Places())
    name = wish(node, "register")
    await node.run(lambda: bool(node.of(CommandFailed)))
    reason = node.of(CommandFailed)[0].reason
    assert "0.05 coins of 0.05 are signed for today, and the register may cost" in reason and "00:00 UTC" in reason
    assert not node.of(SubmissionPrepared)
    at[0] += DAY_S
    await node.run(lambda: bool(node.of(SubmissionConfirmed)))
    (attempt,) = attempts_of(node, name)
    assert day.spent_wei == int(attempt.cost_wei) > 0


async def test_what_is_signed_costs_no_more_than_is_counted(ground: Ground, calls: RpcPool) -> None:
    account = account_named(ground, "alice")
    wallet = make_wallet(settings(ground), calls, account)
    before_wei = int(ground.say("eth_getBalance", account.address, "latest"), 16)
    prepared = await wallet.prepare_attempt("me", REGISTER, ())
    assert prepared is not None and wallet.budget.spent_wei == int(prepared.cost_wei)
    await wallet.send_attempt("me", REGISTER, prepared)
    ground.w3.eth.wait_for_transaction_receipt(HexStr(prepared.hash))
    paid_wei = before_wei - int(ground.say("eth_getBalance", account.address, "latest"), 16)
    assert 0 < paid_wei <= int(prepared.cost_wei)


async def test_a_lone_endpoint_that_hides_the_base_fee_from_the_first_look_has_nothing_signed(ground: Ground) -> None:
    """It asked for 196 gwei, which a transaction of before EIP-1559 pays in full."""
    account, endpoints = account_named(ground, "alice"), calls_through(ground, partial(hide_base_fee, ground))
    async with endpoints as (liar, calls), calls_to(liar.url) as wary:
        wary.has_base_fee = True  # as everybody has it who signs
        with pytest.raises(EndpointFailed, match="shows a block without a base fee"):
            await make_wallet(settings(ground), wary, account).prepare_attempt("me", REGISTER, ())
        with pytest.raises(EndpointFailed, match=r"chain\.fees\.legacy"):  # and even where nobody has said so
            await make_wallet(settings(ground), calls, account).prepare_attempt("me", REGISTER, ())
        wallet = make_wallet(settings(ground, legacy=True, day_coins_max=0.001), calls, account)
        with pytest.raises(BudgetSpent, match=r"chain\.fees\.day_coins_max is 0\.001"):
            await wallet.prepare_attempt("me", REGISTER, ())  # the last resort, where a price is paid in full


# --- a signer ---


async def test_a_signer_keeps_the_budget_over_a_restart_and_a_new_file(ground: Ground, tmp_path: Path) -> None:
    fees = FeesConfig(day_coins_max=0.003)
    async with seated(ground, tmp_path, fees=fees) as seat:
        await seat.signer.submit(SignerRequest("register", "Qm1"))
        first_wei = seat.signer.budget.spent_wei
        seat.audit._limit = 1
        seat.audit.append(AuditLine("2026-01-01T00:00:00+00:00", "stopped"))  # begins a new file
    assert (tmp_path / "audit.jsonl.1").exists()
    async with seated(ground, tmp_path, fees=fees) as seat:
        budget, served = seat.signer.budget, 1
        assert budget.spent_wei == first_wei > 0
        with pytest.raises(BudgetSpent, match=r"the day's budget, chain\.fees\.day_coins_max, is spent"):
            while served < 100:
                served += 1
                await seat.signer.submit(SignerRequest("register", f"Qm{served}"))
        assert budget.is_nearly_spent
        assert budget.spent_wei <= COIN_WEI * 3 // 1000 < budget.spent_wei + first_wei
