"""Exactly once, on a real chain, whatever breaks."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from eth_account.signers.local import LocalAccount
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.ports import Price
from swarmd.chain.senders import AccountSigner, SignedTransaction, Wallet
from swarmd.core.events import (
    CommandFailed,
    RegistrationLog,
    RewardLog,
    StageLog,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
    VoteLog,
)
from swarmd.core.values import SubmissionAttempt
from swarmd.errors import EndpointFailed
from tests.anvil import running_anvil
from tests.chain.faults import Node, account_named, attempts_of, nonce_of, settings, wallet_node
from tests.chain.grounds import Ground

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("endings")]

GWEI = 10**9
LOOKS = 40  # at a transaction that waits
LOGS = {"register": RegistrationLog, "reward": RewardLog, "winners": VoteLog, "advance": StageLog}
FOLLOW = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@pytest.fixture
def account(ground: Ground) -> LocalAccount:
    return account_named(ground, "alice")


def prepare(ground: Ground, account: LocalAccount, kind: str, peer: str = "me") -> None:
    """What has to be on the chain before a submission of this kind."""
    if kind in ("reward", "winners"):
        ground.say("anvil_impersonateAccount", account.address)
        ground.swarm.register(account.address, peer)
        ground.say("anvil_stopImpersonatingAccount", account.address)
    if kind == "advance":
        ground.swarm.send(ground.swarm.owner, "grantRole", ground.swarm.role("STAGE_MANAGER_ROLE"), account.address)


def wish(node: Node, kind: str) -> str:
    """Have a node want a submission of a kind."""
    fields: dict[str, Any] = {"reward": {"reward": -7}, "winners": {"winners": ("you", "me")}}.get(kind, {})
    return node.want(kind, **fields).submission  # type: ignore[arg-type]


def count(ground: Ground, kind: str) -> int:
    """Logs of what such a submission brings about."""
    return sum(isinstance(log, LOGS[kind]) for logs in ground.logs().values() for log in logs)


def check_once(ground: Ground, node: Node, name: str, kind: str) -> None:
    """Once in the log, and once on the chain."""
    assert len(node.of(SubmissionConfirmed, name)) == 1, node.story()
    assert count(ground, kind) == 1, node.story()


@contextmanager
def mining_by_hand(ground: Ground) -> Iterator[None]:
    """Transactions wait until a block is asked for."""
    ground.say("evm_setAutomine", False)
    yield
    ground.say("evm_setAutomine", True)


def mine_every(ground: Ground, node: Node, ticks: int) -> None:
    """A block every so many ticks."""
    node.on_tick = lambda: None if node.ticks % ticks else ground.say("evm_mine")


def outbid(ground: Ground, account: LocalAccount, prepared: SubmissionAttempt, content: bytes = b"") -> str:
    """Another process's transaction with the nonce of this attempt, for three times the price."""
    said = AccountSigner.decode_signed(prepared)
    price = Price(said.price.fee_wei * 3, (said.price.tip_wei or 0) * 3)
    other = AccountSigner(account, 31337).sign_transaction(
        SignedTransaction(said.nonce, price, 100_000, account.address, content)
    )
    return "0x" + other.raw.hex()


# --- deaths ---


@pytest.mark.parametrize(
    ("kind", "blocks"),
    [
        *((kind, "later") for kind in LOGS),
        ("reward", "at once"),
        *(pytest.param(kind, "at once", marks=pytest.mark.soak) for kind in LOGS if kind != "reward"),
    ],
)
async def test_a_death_at_any_place_neither_loses_nor_doubles(
    ground: Ground, account: LocalAccount, kind: str, blocks: str
) -> None:
    config = settings(ground, drive="manager")
    prepare(ground, account, kind)
    if blocks == "later":
        ground.say("evm_setAutomine", False)
    before, nonce = count(ground, kind), nonce_of(ground, account)
    start = ground.say("evm_snapshot")
    deaths = 0
    while True:
        node = wallet_node(ground, config, account, "me", deaths)
        if blocks == "later":
            mine_every(ground, node, 3)
        name = wish(node, kind)
        await node.run()
        check = f"died {node.places.names[deaths : deaths + 1]}: {node.story()}"
        assert count(ground, kind) == before + 1, check
        assert nonce_of(ground, account) == nonce + 1, check
        assert len(node.of(SubmissionConfirmed, name)) == 1, check
        assert not node.of(SubmissionLost) and not node.of(SubmissionRefused), check
        await node.stop()
        if node.lives == 1:
            break
        ground.say("evm_revert", start)
        start = ground.say("evm_snapshot")
        deaths += 1
    assert deaths > 20


@effort(max_examples=25, **FOLLOW)
@given(kind=st.sampled_from(list(LOGS)), deaths=st.lists(st.integers(0, 120), max_size=6), ticks=st.integers(1, 8))
async def test_many_deaths_neither_lose_nor_double(
    anyio_backend: str, kind: str, deaths: Sequence[int], ticks: int
) -> None:
    with running_anvil() as url:
        ground = Ground(url)
        account = account_named(ground, "alice")
        prepare(ground, account, kind)
        before, nonce = count(ground, kind), nonce_of(ground, account)
        with mining_by_hand(ground):
            node = wallet_node(ground, settings(ground, drive="manager"), account, "me", *deaths)
            mine_every(ground, node, ticks)
            wish(node, kind)
            await node.run()
            await node.stop()
        assert count(ground, kind) == before + 1
        assert nonce_of(ground, account) == nonce + 1


async def test_what_is_there_already_needs_no_transaction(ground: Ground, account: LocalAccount) -> None:
    for kind in ("register", "reward", "winners"):
        first = wallet_node(ground, settings(ground), account)
        name = wish(first, kind)
        await first.run()
        again = wallet_node(ground, settings(ground), account)
        wish(again, kind)
        await again.run()
        assert not again.of(SubmissionPrepared)
        assert len(again.of(SubmissionConfirmed, name)) == 1
    assert nonce_of(ground, account) == 3


async def test_nothing_leaves_before_it_is_in_the_log(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground), account)
    node.handing = False
    name = wish(node, "register")
    await node.run(lambda: len(node.of(SubmissionPrepared)) > 2)
    assert not node.of(SubmissionSent) and count(ground, "register") == 0
    assert len(set(attempts_of(node, name))) == 1, "the same attempt is told again, and no other is made"
    node.handing = True
    await node.run()
    check_once(ground, node, name, "register")


# --- nonces ---


async def test_a_nonce_that_another_process_took_is_made_good(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground, stuck_s=10), account)
    name = wish(node, "register")
    with mining_by_hand(ground):
        await node.run(lambda: bool(node.of(SubmissionSent)))
        ground.say("eth_sendRawTransaction", outbid(ground, account, attempts_of(node, name)[0]))
        ground.say("evm_mine")
        assert nonce_of(ground, account) == 1
    await node.run()
    check_once(ground, node, name, "register")
    assert len(node.of(SubmissionLost)) == 1
    assert [each.nonce for each in attempts_of(node, name)] == [0, 1]


async def test_two_nodes_on_one_account_both_get_through(ground: Ground, account: LocalAccount) -> None:
    config = settings(ground)
    nodes = [wallet_node(ground, config, account, f"peer {number}") for number in range(2)]
    for kind in ("register", "reward", "winners"):
        with mining_by_hand(ground):
            mine_every(ground, nodes[0], 10)
            names = [wish(node, kind) for node in nodes]
            await asyncio.gather(*(node.run(partial(all_done, nodes, names)) for node in nodes))
        assert count(ground, kind) == 2
    assert [node.codes() for node in nodes] == [[], []]


def all_done(nodes: Sequence[Node], names: Sequence[str]) -> bool:
    """Whether each node's submission has come to its end."""
    return all(node.is_done(name) for node, name in zip(nodes, names, strict=True))


# --- fees ---


async def test_a_stuck_transaction_is_replaced_by_a_dearer_one(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground, stuck_s=0.1), account)
    name = wish(node, "register")
    with mining_by_hand(ground):
        await node.run(lambda: bool(node.of(SubmissionSent)))
        ground.say("anvil_setNextBlockBaseFeePerGas", hex(50 * GWEI))
        ground.say("evm_mine")
        await node.run(lambda: len(node.of(SubmissionSent)) > 1)
        ground.say("evm_mine")
        await node.run()
    check_once(ground, node, name, "register")
    first, second = [AccountSigner.decode_signed(each) for each in attempts_of(node, name)[:2]]
    assert (first.nonce, second.nonce) == (0, 0)
    assert second.price.fee_wei >= first.price.fee_wei * 1.125
    assert (second.price.tip_wei or 0) >= (first.price.tip_wei or 0) * 1.125
    assert nonce_of(ground, account) == 1


async def test_at_the_bound_it_waits_and_sends_the_same_again(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground, stuck_s=0.05, max_gwei=5.0), account)
    name = wish(node, "register")
    with mining_by_hand(ground):
        await node.run(lambda: bool(node.of(SubmissionSent)))
        ground.say("anvil_setNextBlockBaseFeePerGas", hex(50 * GWEI))
        ground.say("evm_mine")
        since = node.ticks
        await node.run(lambda: node.ticks > since + 60)
        for prepared in attempts_of(node, name):
            ground.say("anvil_dropTransaction", prepared.hash)
        await node.run(lambda: node.ticks > since + 70)
        assert not node.of(SubmissionIncluded) and not node.of(CommandFailed)
        assert all(int(each.fee_wei) <= 5 * GWEI for each in attempts_of(node, name))
        ground.say("anvil_setNextBlockBaseFeePerGas", hex(GWEI))
        mine_every(ground, node, 5)
        await node.run()
    check_once(ground, node, name, "register")


@pytest.mark.parametrize("kind", ["register", "reward"])
async def test_coins_that_come_are_noticed_before_it_is_ordered_again(
    ground: Ground, account: LocalAccount, kind: str
) -> None:
    prepare(ground, account, kind)
    account_named(ground, "alice", wei=1000)
    node = wallet_node(ground, settings(ground), account)
    node.retries = False
    name = wish(node, kind)
    await node.run(lambda: bool(node.of(CommandFailed)))
    looks = Counter[str]()

    async def count_calls(method: str, params: Sequence[Any]) -> None:
        looks[method] += 1

    node.act = count_calls
    await node.run(lambda: looks["eth_getBalance"] >= 3)
    assert set(looks) == {"eth_getBalance"}, "nothing else is asked until they have come"
    account_named(ground, "alice")
    await node.run()
    check_once(ground, node, name, kind)
    assert len(node.of(CommandFailed)) == 1


async def test_an_account_emptied_after_signing_is_named_too(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground), account)
    node.handing = False
    name = wish(node, "register")
    await node.run(lambda: bool(node.of(SubmissionPrepared)))
    account_named(ground, "alice", wei=5)
    node.handing = True
    await node.run(lambda: bool(node.of(CommandFailed)))
    assert f"the account {account.address} has 5e-18 coins" in node.of(CommandFailed)[0].reason
    account_named(ground, "alice")
    await node.run()
    check_once(ground, node, name, "register")
    assert len(set(attempts_of(node, name))) == 1


# --- reverted when mined ---


async def test_one_reverted_when_mined_is_judged_by_the_contract(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground, stuck_s=10), account)
    name = wish(node, "register")
    ground.swarm.send(ground.swarm.owner, "grantRole", ground.swarm.role("MEMBERSHIP_MANAGER_ROLE"), ground.swarm.owner)
    await cut_in(ground, node, ground.swarm.owner, "setMembershipOpen", False)
    await node.run()
    assert node.codes() == ["PeerNotAllowed"] and not node.of(SubmissionRefused)[0].permanent
    assert nonce_of(ground, account) == 1 and name in node.wanted


async def test_one_overtaken_by_another_account_stops_the_node(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground, stuck_s=10), account)
    wish(node, "register")
    await cut_in(ground, node, ground.swarm.bob, "registerPeer", "me")
    await node.run()
    (refused,) = node.of(SubmissionRefused)
    assert (refused.code, refused.permanent) == ("taken", True)
    assert ground.swarm.bob in refused.reason and account.address in refused.reason


def stingy_node(ground: Ground, account: LocalAccount, first_gas: int) -> Node:
    """A node whose first transaction has so little gas."""
    given = iter([first_gas])

    class Stingy(Wallet):
        async def estimate_gas_limit(self, *asked: Any) -> int:
            return next(given, None) or await super().estimate_gas_limit(*asked)

    config = settings(ground)
    return Node(
        ground, config, lambda calls: Stingy(config, EthereumClient(calls), AccountSigner(account, 31337, config.drive))
    )


async def test_one_reverted_for_want_of_gas_is_tried_again(ground: Ground, account: LocalAccount) -> None:
    node = stingy_node(ground, account, 40_000)
    name = wish(node, "register")
    await node.run()
    check_once(ground, node, name, "register")
    assert len(node.of(SubmissionLost)) == 1 and nonce_of(ground, account) == 2


async def test_one_that_no_endpoint_takes_for_want_of_gas_is_signed_anew(ground: Ground, account: LocalAccount) -> None:
    """As after an endpoint's lie about the gas: what the log has would be refused for ever, and all behind it wait."""
    node = stingy_node(ground, account, 9_000)
    name = wish(node, "register")
    await node.run(timeout_s=20.0)
    check_once(ground, node, name, "register")
    first, second = (AccountSigner.decode_signed(each) for each in attempts_of(node, name))
    assert first.nonce == second.nonce == 0 and first.gas == 9_000 < second.gas
    assert second.price == first.price, "it replaces nothing that anybody has"
    assert len(node.of(CommandFailed)) == 1, "it is told once"


async def cut_in(ground: Ground, node: Node, sender: str, function: str, *arguments: Any) -> None:
    """Have the node send, and another's transaction mined before its one, in the same block."""
    with mining_by_hand(ground):
        await node.run(lambda: bool(node.of(SubmissionSent)))
        content = ground.swarm.call(function, *arguments).content
        request = {"from": sender, "to": ground.contract, "data": "0x" + content.hex(), "gas": hex(500_000)}
        tips = {"maxFeePerGas": hex(90 * GWEI), "maxPriorityFeePerGas": hex(80 * GWEI)}
        ground.say("eth_sendTransaction", request | tips)
        ground.say("evm_mine")


# --- reorganisations ---


@pytest.mark.parametrize("depth", [1, 3, 8])
async def test_a_reorganisation_that_drops_it_brings_the_same_bytes_back(
    ground: Ground, account: LocalAccount, depth: int
) -> None:
    ground.mine(10)
    node = wallet_node(ground, settings(ground, depth=depth, stuck_s=10), account)
    node.mines = False
    name = wish(node, "register")
    with mining_by_hand(ground):
        await node.run(lambda: bool(node.of(SubmissionSent)))
        ground.say("evm_mine")
        await node.run(lambda: bool(node.of(SubmissionIncluded)))
        block = node.of(SubmissionIncluded)[0].block
        ground.mine(depth - 1) if depth > 1 else None
        ground.say("anvil_reorg", depth, [])
        assert count(ground, "register") == 0
        assert not ground.say("txpool_content")["pending"]
        mine_every(ground, node, 4)
        await node.run()
    check_once(ground, node, name, "register")
    assert len(attempts_of(node, name)) == 1
    assert node.of(SubmissionConfirmed)[0].block.hash != block.hash


async def test_a_reorganisation_that_brings_another_transaction_of_the_nonce(
    ground: Ground, account: LocalAccount
) -> None:
    ground.mine(5)
    node = wallet_node(ground, settings(ground), account)
    node.mines = False
    name = wish(node, "register")
    await node.run(lambda: bool(node.of(SubmissionIncluded)))
    ground.say("anvil_reorg", 1, [[outbid(ground, account, attempts_of(node, name)[0]), 0]])
    assert count(ground, "register") == 0 and nonce_of(ground, account) == 1
    node.on_tick = ground.mine
    await node.run()
    check_once(ground, node, name, "register")
    assert len(node.of(SubmissionLost)) == 1


@pytest.mark.parametrize("depth", [1, 3, 8])
async def test_a_confirmed_one_that_is_dropped_is_prepared_once_and_included(
    ground: Ground, account: LocalAccount, depth: int
) -> None:
    """At the same price it is the same transaction, of which the log has kept the hash but not the bytes."""
    ground.mine(8)
    config = settings(ground, depth=depth - 1, max_gwei=1, tip_gwei=1, stuck_s=30)  # the bound is the price
    node = wallet_node(ground, config, account)
    name = wish(node, "register")
    await node.run()
    first = attempts_of(node, name)[0]
    ground.say("evm_setAutomine", False)
    ground.say("anvil_reorg", ground.height() - node.of(SubmissionIncluded)[0].block.number + 1, [])
    assert count(ground, "register") == 0
    again = wallet_node(ground, config, account)
    again.want("register", prepared=(replace(first, raw=b""),))
    again.on_tick = lambda: ground.say("evm_mine") if again.ticks == LOOKS else None
    await again.run(lambda: bool(again.of(SubmissionIncluded)))
    assert [each.prepared for each in again.of(SubmissionPrepared)] == [first], again.story()
    assert count(ground, "register") == 1


async def test_a_registration_found_on_the_chain_and_dropped_is_made(ground: Ground, account: LocalAccount) -> None:
    ground.mine(3)
    prepare(ground, account, "reward")
    node = wallet_node(ground, settings(ground), account)
    node.mines = False
    name = wish(node, "register")
    await node.run(lambda: bool(node.of(SubmissionIncluded)))
    assert not node.of(SubmissionPrepared)
    ground.say("anvil_reorg", 1, [])
    node.on_tick = ground.mine
    await node.run()
    check_once(ground, node, name, "register")
    assert len(node.of(SubmissionPrepared)) == 1


# --- refusals ---


@pytest.mark.parametrize("kind", ["register", "reward", "winners"])
async def test_a_peer_of_another_account_stops_the_node(ground: Ground, kind: str) -> None:
    ground.swarm.register(ground.swarm.bob, "me")
    node = wallet_node(ground, settings(ground), account_named(ground, "alice"))
    wish(node, kind)
    await node.run()
    (refused,) = node.of(SubmissionRefused)
    assert (refused.code, refused.permanent) == ("taken", True)
    assert not node.of(SubmissionPrepared)


async def test_an_unregistered_peer_waits_for_its_registration(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground), account)
    name = wish(node, "reward")
    await node.run(lambda: bool(node.of(CommandFailed)))
    assert "not registered" in node.of(CommandFailed)[0].reason
    prepare(ground, account, "reward")
    await node.run()
    check_once(ground, node, name, "reward")


# --- moving the contract on ---


async def test_the_policy_is_waited_for(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground, drive="policy"), account)
    node.want("advance")
    await node.run(lambda: bool(node.of(CommandFailed)))
    assert "the round policy does not allow" in node.of(CommandFailed)[0].reason.lower()
    ground.swarm.send(ground.swarm.owner, "setRoundPolicy", 0, 1)
    ground.swarm.wait(5)
    await node.run()
    assert node.of(SubmissionConfirmed) and ground.swarm.place() == (1, 0)


@pytest.mark.parametrize("drive", ["policy", "manager"])
async def test_a_contract_that_has_moved_on_is_left_alone(ground: Ground, account: LocalAccount, drive: str) -> None:
    prepare(ground, account, "advance")
    ground.swarm.move_on()
    node = wallet_node(ground, settings(ground, drive=drive), account)
    node.want("advance")
    await node.run()
    assert node.codes() == ["moved-on"] and nonce_of(ground, account) == 0
    assert ground.swarm.place() == (1, 0)


async def test_a_step_under_way_is_withdrawn_when_somebody_else_makes_it(ground: Ground, account: LocalAccount) -> None:
    prepare(ground, account, "advance")
    node = wallet_node(ground, settings(ground, drive="manager", stuck_s=10), account)
    moved = asyncio.Event()

    async def hold(method: str, params: Sequence[Any]) -> None:
        if node.of(SubmissionSent):  # else it may send the same bytes again just when they have been dropped
            await moved.wait()

    node.act = hold
    node.want("advance")
    with mining_by_hand(ground):
        await node.run(lambda: bool(node.of(SubmissionSent)))
        sent = attempts_of(node, "advance/0/0")[0].hash
        assert ground.say("anvil_dropTransaction", sent) == sent
    ground.swarm.move_on()
    moved.set()
    with mining_by_hand(ground):
        await node.run(lambda: len(node.of(SubmissionSent)) > 1)
        ground.say("evm_mine")
        await node.run()
    assert node.codes() == ["moved-on"]
    assert ground.swarm.place() == (1, 0) and nonce_of(ground, account) == 1


async def test_a_missing_role_is_said(ground: Ground) -> None:
    node = wallet_node(ground, settings(ground, drive="manager"), account_named(ground, "alice"))
    node.want("advance")
    await node.run()
    assert node.codes() == ["OnlyStageManager"]
    assert "STAGE_MANAGER_ROLE" in node.of(SubmissionRefused)[0].reason


# --- the rest ---


async def test_endpoints_that_fail_for_a_while_lose_nothing(ground: Ground, account: LocalAccount) -> None:
    node = wallet_node(ground, settings(ground), account)
    calls = 0

    async def fail(method: str, params: Sequence[Any]) -> None:
        nonlocal calls
        calls += 1
        if calls % 20 < 10:
            raise EndpointFailed("no endpoint answers")

    node.act = fail
    name = wish(node, "register")
    await node.run()
    check_once(ground, node, name, "register")
    assert calls > 20 and nonce_of(ground, account) == 1
