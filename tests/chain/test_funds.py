"""What is told of the account that pays: reckoned on the safe side, never older than it may be, never in the way."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.chain.ethereum import QUANTITY_MAX, EthereumClient
from swarmd.chain.fees import KEPT_S, BalanceMonitor
from swarmd.config import ChainConfig, FeesConfig, ProxyConfig
from swarmd.core.commands import WatchChain
from swarmd.core.events import CommandFailed
from swarmd.errors import ChainMismatch, EndpointFailed, RpcRefused
from swarmd.gas import (
    COIN_WEI,
    REGISTER_GAS,
    REWARD_GAS,
    ROUNDS_MAX,
    STEP_GAS,
    VOTE_GAS,
    WINNER_GAS,
    round_gas,
    rounds_paid,
)
from tests.chain.driver import ChainDriver
from tests.chain.grounds import Ground, ScriptedRpc

pytestmark = pytest.mark.anyio
GWEI = 10**9
ACCOUNT = "0xAcc0000000000000000000000000000000000001"
CHAIN = ChainConfig(
    ("http://127.0.0.1:1",), 31337, "0x" + "c" * 40, drive="never", fees=FeesConfig(tip_gwei=1.0, max_gwei=50.0)
)
ONE_COIN = hex(COIN_WEI)
ROUND_GAS = REWARD_GAS + VOTE_GAS


class Script(ScriptedRpc):
    """What it answers a test sets."""

    def __init__(self, balance: Any = ONE_COIN, base_wei: int = 2 * GWEI) -> None:
        super().__init__(self._answer)
        self.balance = balance
        self.base_wei = base_wei
        self.trouble: Exception | None = None

    def _answer(self, method: str, params: list[Any]) -> Any:
        if self.trouble is not None:
            raise self.trouble
        return {"eth_getBalance": self.balance, "eth_getBlockByNumber": {"baseFeePerGas": hex(self.base_wei)}}[method]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def watched(script: Script, clock: Callable[[], float] = monotonic, **fields: Any) -> BalanceMonitor:
    return BalanceMonitor(replace(CHAIN, **fields), 1, EthereumClient(script), ACCOUNT, clock)


# --- the arithmetic ---


def config(**fields: Any) -> ChainConfig:
    return ChainConfig(("http://127.0.0.1:1",), 1, "0x" + "c" * 40, **fields)


@pytest.mark.parametrize(
    ("chain", "stages", "gas"),
    [
        (config(drive="never", winners=0), 1, REWARD_GAS),
        (config(drive="never", winners=1), 1, REWARD_GAS + VOTE_GAS),
        (config(drive="policy", winners=1), 3, 3 * (REWARD_GAS + STEP_GAS) + VOTE_GAS),
        (config(drive="never", winners=10), 3, 3 * REWARD_GAS + VOTE_GAS + 9 * WINNER_GAS),
    ],
)
def test_a_round_costs_what_this_node_submits_in_it(chain: ChainConfig, stages: int, gas: int) -> None:
    assert round_gas(chain, stages) == gas


def test_gas_is_reckoned_a_little_above_what_was_measured() -> None:
    """The table of docs/CONTRACT.md, which another test holds against a run."""
    rows = {}
    for line in (Path(__file__).resolve().parents[2] / "docs" / "CONTRACT.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and cells[3].replace(",", "").isdigit():
            rows[cells[1]] = int(cells[3].replace(",", ""))
    step = max(rows["advance"], rows["updateStageAndRound, to a new round"])
    reckoned = {
        REGISTER_GAS: rows["registerPeer, the account's first"],
        REWARD_GAS: rows["submitReward, the peer's first"],
        VOTE_GAS: rows["submitWinners, 1 known winner"],
        VOTE_GAS + 9 * WINNER_GAS: rows["submitWinners, 10 known winners"],
        STEP_GAS: step,
    }
    assert all(measured <= gas <= 1.05 * measured for gas, measured in reckoned.items())


@given(st.integers(0, QUANTITY_MAX), st.integers(0, 10**14), st.integers(0, 10**8))
def test_so_many_rounds_can_be_paid_and_no_more(balance_wei: int, price_wei: int, gas: int) -> None:
    rounds = rounds_paid(balance_wei, price_wei, gas)
    assert 0 <= rounds <= ROUNDS_MAX and rounds * price_wei * gas <= balance_wei
    assert rounds == ROUNDS_MAX or (rounds + 1) * price_wei * gas > balance_wei


# --- looking ---


async def test_an_account_is_told_of_once_it_was_looked_at() -> None:
    script = Script(hex(5 * GWEI * ROUND_GAS * 40))  # a price of twice 2 gwei, and a tip of 1
    funds = watched(script)
    assert funds.metrics() == {}
    await funds.read_balance()
    assert funds.metrics() == {"balance_coins": 200e9 * ROUND_GAS / 1e18, "rounds_paid": 40.0}
    assert script.asked[0] == ("eth_getBalance", [ACCOUNT, "latest"])


async def test_gas_above_the_bound_counts_as_the_bound() -> None:
    script = Script(hex(50 * GWEI * ROUND_GAS * 7), base_wei=900 * GWEI)
    funds = watched(script)
    await funds.read_balance()
    assert funds.metrics()["rounds_paid"] == 7
    script.base_wei = 2 * GWEI
    await funds.read_balance()
    assert funds.metrics()["rounds_paid"] == 70


@pytest.mark.parametrize(
    "trouble",
    [EndpointFailed("no endpoint answers"), RpcRefused(-32601, "no such method"), ChainMismatch("another chain")],
    ids=["no answer", "refused", "another chain"],
)
async def test_what_was_seen_stays_for_a_while_when_nobody_answers(trouble: Exception) -> None:
    script, clock = Script(), Clock()
    funds = watched(script, clock)
    await funds.read_balance()
    seen = funds.metrics()
    script.trouble = trouble
    clock.now += KEPT_S
    await funds.read_balance()
    assert seen and funds.metrics() == seen
    clock.now += 0.1
    assert funds.metrics() == {}
    script.trouble = None
    await funds.read_balance()
    assert funds.metrics() == seen


@pytest.mark.parametrize("lie", ["-0x1", hex(2**256), "much", None, 7.5, {}, "0x" + "f" * 100_000])
async def test_an_endpoint_that_lies_is_not_believed(lie: Any) -> None:
    script = Script(lie)
    with pytest.raises(EndpointFailed, match="not a valid balance"):
        await EthereumClient(script).balance_wei(ACCOUNT)
    funds = watched(script)
    await funds.read_balance()
    assert funds.metrics() == {}


async def test_an_account_of_a_proxy_that_has_nothing_has_others_pay() -> None:
    script = Script("0x0")
    own, lent = watched(script), watched(script, sender="proxy", proxy=ProxyConfig(account=ACCOUNT))
    for funds in (own, lent):
        await funds.read_balance()
    assert own.metrics() == {"balance_coins": 0.0, "rounds_paid": 0.0} and lent.metrics() == {}
    script.balance = "0x1"
    await lent.read_balance()
    assert lent.metrics()["rounds_paid"] == 0


# --- on a chain ---


async def test_the_worker_tells_of_the_account_that_it_submits_from(ground: Ground, tmp_path: Path) -> None:
    alice = ground.swarm.alice
    ground.say("anvil_setBalance", alice, hex(COIN_WEI))
    proxy = ProxyConfig(account=alice)
    driver = ChainDriver(tmp_path / "node", ground.config(sender="proxy", drive="never", proxy=proxy))
    try:
        await driver.start()
        await driver.do(WatchChain("watch"))
        figures = await driver.expect_figure("rounds_paid")
        assert figures["balance_coins"] == 1 and figures["rounds_paid"] > 10
        assert driver.events and not driver.seen(CommandFailed)
        assert await driver.stop() == 0
    finally:
        await driver.clean()
