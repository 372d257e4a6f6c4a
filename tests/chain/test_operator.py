"""A contract of one's own: made once, however often the run that makes it is killed."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount
from web3 import Web3

from swarmd.chain.contract import encode_call
from swarmd.chain.coordinator import CoordinatorContract, RoundPolicy
from swarmd.chain.endpoints import RpcPool
from swarmd.chain.operator import (
    DeploymentPlan,
    OperatorTransactions,
    OrderJournal,
    allow_peers,
    deploy_coordinator,
    remove_bootnode,
    set_membership_open,
    set_round_policy,
)
from swarmd.config import FeesConfig
from swarmd.errors import ChainError, ChainMismatch, ConfigError, ManifestError, RpcRefused
from tests.chain.faults import Calls, Killed, Places
from tests.chain.grounds import CHAIN_ID, calls_to
from tests.contracts.chain import connect

pytestmark = pytest.mark.anyio

BOOTNODES = ("/ip4/192.0.2.1/tcp/1/p2p/12D3KooWa", "/ip4/192.0.2.2/tcp/1/p2p/12D3KooWb")
OPEN = DeploymentPlan(1, RoundPolicy(2, 300), BOOTNODES)
CLOSED = DeploymentPlan(3, RoundPolicy(0, 60), BOOTNODES[:1], members=("peer-a", "peer-b"))
TWO = DeploymentPlan(2, RoundPolicy(2, 300), BOOTNODES[:1])
STEPS = {OPEN: 4, TWO: 4, CLOSED: 7}  # transactions


class Bench:
    """A chain, and accounts that orders are given by."""

    def __init__(self, w3: Web3, rpc: RpcPool) -> None:
        self.w3 = w3
        self.rpc = rpc
        self.told: list[str] = []
        self.heard = anyio.Event()

    def say(self, method: str, *params: Any) -> Any:
        return self.w3.provider.make_request(method, list(params))["result"]  # type: ignore[arg-type]

    def account(self, coins: float = 1.0) -> LocalAccount:
        account: LocalAccount = Account.create()
        self.say("anvil_setBalance", account.address, hex(int(coins * 10**18)))
        return account

    def tell(self, line: str) -> None:
        self.told.append(line)
        self.heard.set()

    async def hear(self, words: str) -> None:
        """Wait until that has been told."""
        while not any(words in line for line in self.told):
            self.heard = anyio.Event()
            await self.heard.wait()

    def sent_by(self, account: LocalAccount) -> int:
        return self.w3.eth.get_transaction_count(account.address)

    def orders(
        self, account: LocalAccount, path: Path | None = None, caller: Any = None, **fees: float
    ) -> OperatorTransactions:
        """As a process that begins does it."""
        journal = OrderJournal(path)
        genesis = self.w3.eth.get_block(0)["hash"].to_0x_hex()
        journal.bind_to_account(CHAIN_ID, genesis, account.address)
        return OperatorTransactions(caller or self.rpc, account, FeesConfig(**fees), journal, self.tell)

    def mortal(self, dies_at: int, after: bool) -> Calls:
        """A caller that dies at its n-th request: before it is made, or when its answer has come."""
        return Calls(self.rpc, Places(2 * dies_at - 1 if after else 2 * dies_at - 2))


@pytest.fixture
async def bench(url: str) -> AsyncIterator[Bench]:
    async with calls_to(url, call_s=5.0) as calls:
        yield Bench(connect(url), calls)


async def matches(bench: Bench, contract: str, plan: DeploymentPlan) -> None:
    """The contract is as planned."""
    coordinator = CoordinatorContract(bench.rpc, contract)
    assert await coordinator.round_and_stage() == (0, 0)
    assert await coordinator.stage_count() == plan.stages
    assert await coordinator.round_policy() == plan.policy
    assert await coordinator.bootnodes() == plan.bootnodes
    assert await coordinator.is_membership_open() == (plan.members is None)
    expected = (True, True, plan.members is None)
    assert await coordinator.are_members(["peer-a", "peer-b", "peer-c"]) == expected


@pytest.mark.parametrize("plan", [OPEN, TWO, CLOSED], ids=["open", "two stages", "closed"])
async def test_it_is_made_as_planned(bench: Bench, plan: DeploymentPlan) -> None:
    account = bench.account()
    deployed = await deploy_coordinator(bench.orders(account), plan)
    await matches(bench, deployed.contract, plan)
    assert bench.sent_by(account) == len(deployed.receipts) == STEPS[plan]
    paid = 10**18 - bench.w3.eth.get_balance(account.address)
    assert sum(receipt.cost_wei for receipt in deployed.receipts) == paid
    assert bench.w3.eth.get_code(deployed.contract, deployed.from_block) != b""
    assert bench.w3.eth.get_code(deployed.contract, deployed.from_block - 1) == b""


async def dies_and_goes_on(bench: Bench, path: Path, plan: DeploymentPlan, dies_at: int, after: bool) -> bool:
    """Whether it was killed at that request; then it goes on, and sends each transaction once."""
    account = bench.account()
    try:
        await deploy_coordinator(bench.orders(account, path, bench.mortal(dies_at, after)), plan)
        return False
    except Killed:
        pass
    deployed = await deploy_coordinator(bench.orders(account, path), plan)
    assert bench.sent_by(account) == STEPS[plan], f"killed at request {dies_at}"
    await matches(bench, deployed.contract, plan)
    return True


@pytest.mark.parametrize(("after", "plan"), [(False, CLOSED), (True, OPEN)], ids=["before", "after"])
async def test_killed_at_a_request_it_goes_on_and_makes_nothing_twice(
    bench: Bench, tmp_path: Path, after: bool, plan: DeploymentPlan
) -> None:
    """At the first requests and a few others."""
    always = 4 * STEPS[plan]  # how many there are beyond is a matter of how often a receipt is asked for
    for dies_at in (1, 2, *sorted(random.Random(STEPS[plan]).sample(range(3, always), 5)), always):
        assert await dies_and_goes_on(bench, tmp_path / f"{dies_at}.json", plan, dies_at, after)


async def test_an_account_that_cannot_pay_is_told_what_it_needs(bench: Bench, tmp_path: Path) -> None:
    account, path = bench.account(0.0), tmp_path / "deploy.json"
    with pytest.raises(ChainError) as caught:
        await deploy_coordinator(bench.orders(account, path), OPEN)
    assert account.address in caught.value.message
    assert "Send it some" in caught.value.fix
    bench.say("anvil_setBalance", account.address, hex(10**18))
    await matches(bench, (await deploy_coordinator(bench.orders(account, path), OPEN)).contract, OPEN)


async def test_a_nonce_that_somebody_else_used(bench: Bench, tmp_path: Path) -> None:
    """The signed transaction never left; another one has its place."""
    account, path = bench.account(), tmp_path / "deploy.json"
    orders = bench.orders(account, path)
    dies_at = 1
    while not orders.has_attempts("implementation"):
        account = bench.account()
        path = tmp_path / f"{dies_at}.json"
        with pytest.raises(Killed):
            await deploy_coordinator(bench.orders(account, path, bench.mortal(dies_at, after=False)), OPEN)
        orders = bench.orders(account, path)
        dies_at += 1
    assert bench.sent_by(account) == 0
    transfer = {"to": account.address, "value": 0, "nonce": 0, "gas": 21000, "gasPrice": 2 * 10**9, "chainId": CHAIN_ID}
    bench.w3.eth.send_raw_transaction(account.sign_transaction(transfer).raw_transaction)
    deployed = await deploy_coordinator(orders, OPEN)
    assert bench.sent_by(account) == STEPS[OPEN] + 1
    assert any("another transaction took its place" in line for line in bench.told)
    await matches(bench, deployed.contract, OPEN)


async def mine_when_told(bench: Bench, words: str) -> None:
    with anyio.fail_after(20):
        await bench.hear(words)
    bench.say("evm_mine")


async def test_a_stuck_transaction_is_replaced_by_a_dearer_one(bench: Bench) -> None:
    account = bench.account()
    contract = (await deploy_coordinator(bench.orders(account), OPEN)).contract
    bench.say("evm_setAutomine", False)
    orders = bench.orders(account, stuck_s=0.3)
    policy = RoundPolicy(5, 5)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mine_when_told, bench, "trying again at")
        receipt = await set_round_policy(orders, CoordinatorContract(orders.rpc, contract), policy)
    assert receipt is not None
    assert bench.sent_by(account) == STEPS[OPEN] + 1
    assert await CoordinatorContract(orders.rpc, contract).round_policy() == policy
    bench.say("evm_setAutomine", True)


def troubled() -> Callable[[str, Any], Any]:
    """Answers are others once a transaction is under way: gas is too dear, and every other receipt is refused."""
    asked: list[str] = []

    def change(method: str, answer: Any) -> Any:
        under_way = "eth_sendRawTransaction" in asked
        asked.append(method)
        if under_way and method == "eth_getBlockByNumber":
            return answer | {"baseFeePerGas": hex(10**13)}
        if under_way and method == "eth_getTransactionReceipt" and asked.count(method) % 2:
            raise RpcRefused(-32000, "transaction indexing is in progress")
        return answer

    return change


async def test_what_is_under_way_is_waited_for_whatever_endpoints_say(bench: Bench) -> None:
    """Whoever was told that nothing came of it would order it again, and have the swarm moved on twice."""
    account = bench.account()
    contract = (await deploy_coordinator(bench.orders(account), OPEN)).contract
    bench.say("evm_setAutomine", False)
    orders = bench.orders(account, None, Calls(bench.rpc, change=troubled()), stuck_s=0.3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mine_when_told, bench, "gas costs 10000 gwei now")
        receipt = await orders.execute_order("advance", contract, encode_call("updateStageAndRound()"))
    assert receipt.name == "advance" and bench.sent_by(account) == STEPS[OPEN] + 1
    bench.say("evm_setAutomine", True)


async def test_a_transaction_that_was_dropped_is_sent_again(bench: Bench, tmp_path: Path) -> None:
    """By a reorganisation, after the journal was written: the same bytes go out once more."""
    account, path = bench.account(), tmp_path / "deploy.json"
    snapshot = bench.say("evm_snapshot")
    first = await deploy_coordinator(bench.orders(account, path), OPEN)
    bench.say("evm_revert", snapshot)
    assert bench.sent_by(account) == 0
    again = await deploy_coordinator(bench.orders(account, path), OPEN)
    assert again.contract == first.contract
    assert bench.sent_by(account) == STEPS[OPEN]


async def test_orders_do_only_what_is_needed(bench: Bench) -> None:
    account = bench.account()
    orders = bench.orders(account)
    coordinator = CoordinatorContract(orders.rpc, (await deploy_coordinator(orders, CLOSED)).contract)
    orders = bench.orders(account)
    assert await set_round_policy(orders, coordinator, CLOSED.policy) is None
    assert await remove_bootnode(orders, coordinator, "elsewhere") is None
    assert await allow_peers(orders, coordinator, ("peer-a",)) == []
    assert await allow_peers(orders, coordinator, ("peer-c",), allow=False) == []
    assert await set_membership_open(orders, coordinator, False) is None
    assert bench.sent_by(account) == STEPS[CLOSED]
    assert await remove_bootnode(orders, coordinator, BOOTNODES[0]) is not None
    assert await coordinator.bootnodes() == ()
    assert len(await allow_peers(orders, coordinator, ("peer-a", "peer-c"), allow=False)) == 1
    assert await coordinator.are_members(["peer-a", "peer-b"]) == (False, True)


async def test_a_price_above_the_bound_is_never_signed(bench: Bench) -> None:
    account = bench.account()
    with pytest.raises(ChainError, match="max_gwei"):
        await deploy_coordinator(bench.orders(account, max_gwei=1e-9), OPEN)
    assert bench.sent_by(account) == 0


async def test_a_journal_of_another_chain_or_account(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "deploy.json"
    account = bench.account()
    bench.orders(account, path)
    with pytest.raises(ChainMismatch, match="begun by the account"):
        bench.orders(bench.account(), path)
    with pytest.raises(ChainMismatch, match="another chain"):
        OrderJournal(path).bind_to_account(CHAIN_ID, "0x" + "1" * 64, account.address)
    assert path.stat().st_mode & 0o077 == 0


STEP = b'{"chain_id":1,"genesis":"","account":"","steps":{"a":[{"hash":"0x%s","nonce":0,"raw":"%s","fee_wei":"1"}]}}'
ODD_HASH, ODD_RAW = STEP % (b"12", b"0x12"), STEP % (64 * b"1", b"0x1z")


@pytest.mark.parametrize("content", [b"", b"{", b'{"chain_id": 1}', b"\xff", b"[]", ODD_HASH, ODD_RAW])
def test_a_damaged_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "deploy.json"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match="is damaged"):
        OrderJournal(path)


async def test_there_is_no_contract_for_four_stages(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="only of 1, 2 or 3"):
        await deploy_coordinator(bench.orders(bench.account()), DeploymentPlan(4, RoundPolicy(), ()))
