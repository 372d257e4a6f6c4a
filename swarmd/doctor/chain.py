"""Checks of the chain: its endpoints, the contract that keeps the rounds, and the account that pays."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import msgspec

from swarmd import errors
from swarmd.chain import endpoints
from swarmd.chain.coordinator import CoordinatorContract
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.fees import quote_gas_price
from swarmd.chain.keystore import load_account
from swarmd.chain.logs import BlockHeader
from swarmd.config import ChainConfig
from swarmd.core.values import utc_day_of
from swarmd.doctor.examination import Finding, Subject, error, in_thread, note, ok_finding, warning
from swarmd.doctor.node import read_peer_id
from swarmd.gas import (
    BUDGET_TOLD_SHARE,
    COIN_WEI,
    REGISTER_GAS,
    REWARD_GAS,
    ROUNDS_WANTED,
    format_coins,
    round_gas,
    rounds_paid,
)
from swarmd.http_server import is_loopback
from swarmd.secret_files import CREDENTIAL

CALL_S = 8.0  # timeout of each call
LAG_BLOCKS_MAX = 5  # behind the highest endpoint
STALE_S = 300.0  # age of the newest block at which a chain counts as stalled
AHEAD_S = 15.0  # a block's time may be ahead of this clock by this much
DENIED = re.compile(r"HTTP (401|403)|unauthori[sz]ed|invalid (api )?(key|project)", re.IGNORECASE)

# --- endpoints: each by itself, and all compared ---


class EndpointReplies(msgspec.Struct, frozen=True):
    """One endpoint's answers. `at`: time of its newest block, POSIX seconds."""

    url: str
    name: str
    chain_id: int = 0
    number: int = -1
    at: float = 0.0
    genesis: str = ""
    failure: str = ""
    throttled: bool = False


async def check_rpc(subject: Subject) -> list[Finding]:
    """Ask every endpoint for its chain, its head and its first block."""
    chain, data = subject.config_and_data[0].chain, subject.config_and_data[1]
    assert chain is not None
    try:
        urls = await in_thread(endpoints.read_endpoint_urls, chain.rpc, data.root)
    except errors.ConfigError as failure:
        return [error("rpc.url", "The endpoints cannot be read", failure.message, failure.fix)]
    seen = await asyncio.gather(*(_query_endpoint(url, CALL_S) for url in urls))
    heads = ", ".join(f"{each.name} at block {each.number}" for each in seen)
    return [*judge_endpoints(seen, chain.chain_id, time.time()), ok_finding(f"chain {chain.chain_id}: {heads}")]


async def _query_endpoint(url: str, call_s: float) -> EndpointReplies:
    endpoint, seen = endpoints.make_endpoint(url, call_s), EndpointReplies(url, endpoints.url_without_secrets(url))
    try:
        chain_id = await endpoints.read_endpoint_chain_id(endpoint)
        head = (await endpoint.call("eth_getBlockByNumber", ["latest", False], BlockHeader)).to_block_ref()
        genesis = await endpoint.call("eth_getBlockByNumber", ["0x0", False], BlockHeader)
    except endpoints.EndpointThrottled as failure:
        return msgspec.structs.replace(seen, failure=failure.message, throttled=True)
    except (errors.EndpointFailed, errors.RpcRefused) as failure:
        return msgspec.structs.replace(seen, failure=f"{seen.name}: {failure.message}")
    finally:
        await endpoint.close()
    return EndpointReplies(url, seen.name, chain_id, head.number, head.at, genesis.hash)


def judge_endpoints(seen: Sequence[EndpointReplies], chain_id: int, now: float) -> Iterator[Finding]:
    """Compare all endpoints' answers and report findings."""
    for each in seen:
        if each.failure:
            yield _failure_finding(each)
        elif each.chain_id != chain_id:
            evidence = f"{each.name} is of chain {each.chain_id}, chain.chain_id is {chain_id}"
            fix = "Name endpoints of chain.chain_id, or correct chain.chain_id"
            yield error("rpc.chain-id", "An endpoint is of another chain", evidence, fix)
    good = [each for each in seen if not each.failure and each.chain_id == chain_id]
    if not good:
        evidence = "; ".join(f"{each.name}: {each.failure or 'another chain'}" for each in seen)
        fix = "Name an endpoint that works in chain.rpc, best first; until then the node trains and submits nothing"
        yield error("rpc.none", "No endpoint can be used", evidence, fix)
        return
    if len({each.genesis for each in good}) > 1:
        evidence = ", ".join(f"{each.name}: {each.genesis}" for each in good)
        fix = "Take those of a test chain, or of a chain that was reset, out of chain.rpc"
        yield error("rpc.genesis", "Endpoints are of different chains with one id", evidence, fix)
    foremost = max(good, key=lambda each: each.number)
    for each in good:
        if foremost.number - each.number > LAG_BLOCKS_MAX:
            evidence = f"{each.name} is at block {each.number}, {foremost.name} at {foremost.number}"
            fix = "Put it last in chain.rpc, or take it out"
            yield warning("rpc.lag", "An endpoint is behind the others", evidence, fix)
    age_s = now - foremost.at
    if age_s < -AHEAD_S:
        evidence = f"block {foremost.number} is {-age_s:.0f} s ahead of this clock"
        fix = "Set the clock right: `timedatectl set-ntp true`; a test chain may have a clock of its own"
        yield warning("rpc.ahead", "The newest block is from the future", evidence, fix)
    if age_s > STALE_S and not is_loopback(urlsplit(foremost.url).hostname or ""):
        evidence = f"block {foremost.number} of {foremost.name} is {age_s:.0f} s old"
        fix = "Look at the chain's status page; name another endpoint"
        yield warning("rpc.stale", "No new blocks come", evidence, fix)


def _failure_finding(seen: EndpointReplies) -> Finding:
    if DENIED.search(seen.failure):
        fix = "Get a valid key from the provider, and put the URL into a private file that chain.rpc names as file:PATH"
        return warning("rpc.denied", "An endpoint refuses to serve", seen.failure, fix)
    if seen.throttled:
        fix = "Name further endpoints in chain.rpc, or raise the quota; a higher chain.poll_s asks less often"
        return warning("rpc.throttled", "An endpoint serves too few requests", seen.failure, fix)
    fix = "Check its address, or name another one in chain.rpc"
    return warning("rpc.unreachable", "An endpoint does not answer", seen.failure, fix)


# --- contract and account ---


async def check_account(subject: Subject) -> list[Finding]:
    """The account's key; and if the chain may be asked, the contract, what it knows of this peer, and the coins."""
    config, data = subject.config_and_data
    chain = config.chain
    assert chain is not None
    address, found = await _open_account(subject, chain)
    if subject.offline:
        return [*found, ok_finding(f"account {address}" if address else f'chain.sender is "{chain.sender}"')]
    try:
        rpc = endpoints.RpcPool(
            await in_thread(endpoints.read_endpoint_urls, chain.rpc, data.root), chain.chain_id, CALL_S
        )
    except errors.ConfigError:
        return found  # `check_rpc` reports it
    try:
        coordinator = CoordinatorContract(rpc, chain.contract, chain.from_block)
        found += await _examine_contract(subject, coordinator, chain)
        if chain.sender != "none":
            found += await _examine_registration(subject, coordinator, address)
        if address and chain.sender == "wallet":
            found += await _examine_coins(subject, rpc, address)
    except errors.ChainMismatch as failure:
        fix = "Compare chain.contract and chain.chain_id with the swarm's manifest"
        found.append(error("contract.missing", "There is no such contract", failure.message, fix))
    except (errors.ChainError, errors.ContractRefused) as failure:
        fix = "Try again; if it stays so, name another endpoint"
        found.append(warning("contract.unread", "The contract could not be read", failure.message, fix))
    finally:
        await rpc.close()
    return found


async def _open_account(subject: Subject, chain: ChainConfig) -> tuple[str, list[Finding]]:
    """Open the account. Returns its address, empty if unknown, and findings about its key."""
    if chain.sender != "wallet":
        return (chain.proxy.account if chain.sender == "proxy" else ""), []
    if any(named.startswith(CREDENTIAL) for named in (chain.keystore, chain.passphrase)):
        return "", []  # systemd passes the credential only to the service
    try:
        account = await in_thread(load_account, chain, subject.config_and_data[1])
    except errors.KeystoreError as failure:
        fix = failure.fix or "Correct chain.keystore and chain.passphrase, or restore the files from a copy"
        return "", [error("account.keystore", "The account's key cannot be used", failure.message, fix)]
    return str(account.address), []


async def _examine_contract(subject: Subject, coordinator: CoordinatorContract, chain: ChainConfig) -> list[Finding]:
    await coordinator.check_contract()
    stages, wanted = await coordinator.stage_count(), subject.config_and_data[0].swarm.stages
    found = []
    if stages != wanted:
        evidence = f"{chain.contract} counts {stages} stages in a round, swarm.stages is {wanted}"
        fix = "Compare [chain] and [swarm] with the swarm's manifest"
        found.append(error("contract.stages", "The contract counts other stages", evidence, fix))
    state = await in_thread(lambda: subject.state)
    genesis, logged = (await coordinator.blocks.get_block(0)).hash, state.chain.genesis if state and state.chain else ""
    if logged and genesis != logged:
        evidence = f"the chain begins with block {genesis}, the log began on {logged}"
        fix = "See that chain.rpc is right; on a chain that was reset on purpose begin with an empty data directory"
        found.append(error("contract.reset", "The chain was reset, or is another one", evidence, fix))
    round, stage = await coordinator.round_and_stage()
    version = await coordinator.extensions_version()
    return [*found, ok_finding(f"{chain.contract}: round {round}, stage {stage} of {stages}, extensions {version}")]


async def _examine_registration(subject: Subject, coordinator: CoordinatorContract, address: str) -> list[Finding]:
    peer = subject.config_and_data[0].dht.peer or await in_thread(read_peer_id, subject)
    if not peer:
        return []
    (allowed,) = await coordinator.are_members([peer])
    if not allowed:
        evidence = f"{coordinator.contract} does not have {peer} on its list"
        fix = f"Ask the swarm's creator for `swarmd swarm allow swarm.toml {peer}`"
        return [error("account.allowed", "The peer id is not on the allow-list", evidence, fix)]
    holder = await coordinator.account_of_peer(peer)
    if not holder:
        fix = "Nothing: the node registers by itself when it runs, as soon as it can pay"
        evidence = f"{coordinator.contract} does not know {peer}"
        return [note("account.unregistered", "The peer id is not registered yet", evidence, fix)]
    if address and holder.lower() != address.lower():
        evidence = f"{peer} is registered to {holder}, this node has {address}"
        fix = f"Use the account {holder}; if its key is lost, begin with a new identity"
        return [error("account.registered", "The peer id is registered to another account", evidence, fix)]
    return []


async def _examine_coins(subject: Subject, rpc: endpoints.RpcPool, address: str) -> list[Finding]:
    """Compare the balance, and the day's budget, with the cost of a few rounds."""
    config = subject.config_and_data[0]
    chain, ethereum = config.chain, EthereumClient(rpc)
    assert chain is not None
    balance = await ethereum.balance_wei(address)
    try:
        price = (await quote_gas_price(ethereum, chain.fees)).fee_wei
    except errors.GasTooDear as failure:
        fix = "Wait, or raise chain.fees.max_gwei and restart"
        return [warning("account.fees", "Gas is dearer than the configuration allows", failure.message, fix)]
    gas = round_gas(chain, config.swarm.stages)
    if scarce := await in_thread(_describe_budget_problem, subject, chain, price, gas):
        fix = "Raise chain.fees.day_coins_max and restart; what it has no room for waits until 00:00 UTC"
        return [warning("account.budget", "The day's budget of gas is too small, or nearly spent", scarce, fix)]
    evidence = f"{address} has {format_coins(balance)}, a round costs {format_coins(price * gas)} at most"
    fix = f"Send coins to {address} on chain {chain.chain_id}"
    if balance < price * max(REWARD_GAS, REGISTER_GAS):
        return [error("account.empty", "The account cannot pay", evidence, fix)]
    if rounds_paid(balance, price, gas) < ROUNDS_WANTED:
        return [warning("account.low", "The account will soon be unable to pay", evidence, fix)]
    return []


def _describe_budget_problem(subject: Subject, chain: ChainConfig, price_wei: int, gas: int) -> str:
    """Describe an insufficient daily budget; empty if it suffices or is not set."""
    most_wei = round(chain.fees.day_coins_max * COIN_WEI)
    if not most_wei:
        return ""
    if rounds_paid(most_wei, price_wei, gas) < ROUNDS_WANTED:
        cost = format_coins(price_wei * gas)
        limit = format_coins(most_wei)
        return f"chain.fees.day_coins_max is {limit}, and a round may cost {cost} by the present price of gas"
    known = subject.state.chain if subject.state else None
    if (
        known is None
        or known.spent_day < utc_day_of(time.time())
        or int(known.spent_wei) < BUDGET_TOLD_SHARE * most_wei
    ):
        return ""
    return f"{format_coins(int(known.spent_wei))} of {format_coins(most_wei)} are signed for today"
