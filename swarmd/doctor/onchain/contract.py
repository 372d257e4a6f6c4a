"""The contract that keeps the rounds, and the account that pays for what is submitted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import time

from swarmd.chain.coordinator import Coordinator
from swarmd.chain.endpoints.endpoint import read_urls
from swarmd.chain.endpoints.rpc import Rpc
from swarmd.chain.ethereum import Ethereum
from swarmd.chain.fees import quote
from swarmd.chain.keystore import load_account
from swarmd.config import ChainConfig
from swarmd.core.state import Chain
from swarmd.core.values import day_of
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.node.keys import read_key
from swarmd.doctor.onchain.seen import CALL_S
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import (
    ChainError,
    ChainMismatch,
    ConfigError,
    ContractRefused,
    GasTooDear,
    KeystoreError,
    LogDamaged,
    SwarmdError,
)
from swarmd.gas import (
    BUDGET_TOLD_SHARE,
    COIN_WEI,
    REGISTER_GAS,
    REWARD_GAS,
    ROUNDS_WANTED,
    coins,
    round_gas,
    rounds_paid,
)
from swarmd.secret_files import CREDENTIAL

CONTRACT_MISSING = FindingKind(
    "contract.missing",
    "error",
    "There is no such contract",
    "The node ends with code 80.",
    "Compare chain.contract and chain.chain_id with the swarm's manifest",
)
CONTRACT_STAGES = FindingKind(
    "contract.stages",
    "error",
    "The contract counts other stages",
    "Rounds there have another number of stages than this kind of swarm; the node ends with code 80.",
    "Compare [chain] and [swarm] with the swarm's manifest",
)
CONTRACT_PLAIN = FindingKind(
    "contract.plain",
    "note",
    "The contract has no round policy",
    "It is one of upstream's: only its stage manager moves the rounds on.",
)
CONTRACT_RESET = FindingKind(
    "contract.reset",
    "error",
    "The chain was reset, or is another one",
    "This node's log began on a chain with another first block. It ends with code 80 and signs nothing.",
    "See that chain.rpc is right; on a chain that was reset on purpose begin with an empty data directory",
)
CONTRACT_UNREAD = FindingKind(
    "contract.unread",
    "warning",
    "The contract could not be read",
    "The endpoints answer, but not to this.",
    "Try again; if it stays so, name another endpoint",
)
ACCOUNT_CLOSED = FindingKind(
    "account.keystore",
    "error",
    "The account's key cannot be used",
    "Nothing can be submitted; the node ends with code 65, 66 or 77.",
    "Correct chain.keystore and chain.passphrase, or restore the files from a copy",
)
ACCOUNT_POOR = FindingKind(
    "account.empty",
    "error",
    "The account cannot pay",
    "Registration, rewards and votes wait until it has coins. No restart is needed then.",
    "Send it coins",
)
ACCOUNT_LOW = FindingKind(
    "account.low",
    "warning",
    "The account will soon be unable to pay",
    "It has coins for a few rounds only, by the present price of gas.",
    "Send it coins",
)
ACCOUNT_BUDGET = FindingKind(
    "account.budget",
    "warning",
    "The day's budget of gas is too small, or nearly spent",
    "What it has no room for waits until 00:00 UTC; rewards of rounds that are over by then are lost.",
    "Raise chain.fees.day_coins_max and restart",
)
ACCOUNT_DEAR = FindingKind(
    "account.fees",
    "warning",
    "Gas is dearer than the configuration allows",
    "Submissions wait until it is cheaper.",
    "Wait, or raise chain.fees.max_gwei and restart",
)
ACCOUNT_FOREIGN = FindingKind(
    "account.registered",
    "error",
    "The peer id is registered to another account",
    "A registration is for ever: only that account can submit for this peer id. The node ends with code 80.",
    "Use the account that the evidence names; if its key is lost, begin with a new identity",
)
ACCOUNT_NEW = FindingKind(
    "account.unregistered",
    "note",
    "The peer id is not registered yet",
    "The node registers by itself when it runs, as soon as it may and can pay.",
)
ACCOUNT_BARRED = FindingKind(
    "account.allowed",
    "error",
    "The peer id is not on the allow-list",
    "The swarm is closed: the contract refuses registration, rewards and votes.",
    "Ask the swarm's creator for `swarmd swarm allow swarm.toml PEER`",
)


@asynccontextmanager
async def reached(subject: Subject) -> AsyncIterator[tuple[Rpc, Coordinator, ChainConfig]]:
    """The chain of a configuration. Raises ConfigError for endpoints that cannot be read."""
    config, data = subject.whole
    chain = config.chain
    assert chain is not None
    urls = await in_thread(read_urls, chain.rpc, data.root)
    rpc = Rpc(urls, chain.chain_id, min(CALL_S, chain.call_s))
    try:
        yield rpc, Coordinator(rpc, chain.contract, chain.from_block), chain
    finally:
        await rpc.close()


async def check_contract(subject: Subject) -> list[Finding]:
    """Is the contract there, does it count the same stages, and is the chain the one that the log began on?"""
    try:
        async with reached(subject) as (_, coordinator, chain):
            return await _examine_contract(subject, coordinator, chain)
    except ConfigError as error:
        return [CONTRACT_UNREAD.found(error.message, error.fix)]
    except ChainMismatch as error:
        return [CONTRACT_MISSING.found(error.message)]
    except (ChainError, ContractRefused) as error:
        return [CONTRACT_UNREAD.found(error.message)]


async def _examine_contract(subject: Subject, coordinator: Coordinator, chain: ChainConfig) -> list[Finding]:
    await coordinator.check()
    stages, wanted = await coordinator.stages(), subject.whole[0].swarm.stages
    found: list[Finding] = []
    if stages != wanted:
        found.append(
            CONTRACT_STAGES.found(f"{chain.contract} counts {stages} stages in a round, swarm.stages is {wanted}")
        )
    genesis, logged = (await coordinator.blocks.at(0)).hash, await _logged_genesis(subject)
    if logged and genesis != logged:
        found.append(CONTRACT_RESET.found(f"the chain begins with block {genesis}, the log began on {logged}"))
    if found:
        return found
    place = await coordinator.place()
    version = await coordinator.extensions()
    evidence = f"{chain.contract}: round {place[0]}, stage {place[1]} of {stages}, extensions {version}"
    plain = [CONTRACT_PLAIN.found(f"{chain.contract} has no extensionsVersion()")] if version == 0 else []
    return [well("contract", "Contract", evidence), *plain]


async def _logged_genesis(subject: Subject) -> str:
    known = await _logged_chain(subject)
    return known.genesis if known is not None else ""


async def _logged_chain(subject: Subject) -> Chain | None:
    """The chain as the log knows it."""
    try:
        state = await subject.state()
    except (LogDamaged, SwarmdError):
        return None  # the check of the log says so
    return state.chain if state is not None else None


async def check_account(subject: Subject) -> list[Finding]:
    """The account's key, its coins, and what the contract knows of this peer."""
    config = subject.whole[0]
    chain = config.chain
    assert chain is not None
    address, found = await _open_account(subject, chain)
    if subject.offline or chain.sender == "none":
        what = f"account {address}" if address else f'chain.sender is "{chain.sender}"'
        return found or [well("account", "Account", what)]
    try:
        async with reached(subject) as (rpc, coordinator, chain):
            found += await _examine_registration(subject, coordinator, address)
            if address and chain.sender == "wallet":
                found += await _examine_coins(subject, rpc, address)
    except (ConfigError, ChainMismatch, ChainError, ContractRefused) as error:
        found.append(CONTRACT_UNREAD.found(f"what the chain knows of the account could not be read: {error.message}"))
    if any(finding.severity != "note" for finding in found):
        return found
    return [well("account", "Account", f"{address or 'of the signer'}: can pay and submit"), *found]


async def _open_account(subject: Subject, chain: ChainConfig) -> tuple[str, list[Finding]]:
    """The account's address, empty where it is not known, and what is wrong with its key."""
    if chain.sender != "wallet":
        return (chain.proxy.account if chain.sender == "proxy" else ""), []
    if any(named.startswith(CREDENTIAL) for named in (chain.keystore, chain.passphrase)):
        return "", []  # the check of secrets says so
    try:
        account = await in_thread(load_account, chain, subject.whole[1])
    except KeystoreError as error:
        return "", [ACCOUNT_CLOSED.found(error.message, error.fix)]
    return str(account.address), []


async def _examine_registration(subject: Subject, coordinator: Coordinator, address: str) -> list[Finding]:
    peer = subject.whole[0].dht.peer or await in_thread(read_key, subject)
    if not peer:
        return []
    (allowed,) = await coordinator.members([peer])
    if not allowed:
        fix = f"Ask the swarm's creator for `swarmd swarm allow swarm.toml {peer}`"
        return [ACCOUNT_BARRED.found(f"{coordinator.contract} does not have {peer} on its list", fix)]
    holder = await coordinator.eoa(peer)
    if not holder:
        return [ACCOUNT_NEW.found(f"{coordinator.contract} does not know {peer}")]
    if address and holder.lower() != address.lower():
        fix = f"Use the account {holder}; if its key is lost, begin with a new identity"
        return [ACCOUNT_FOREIGN.found(f"{peer} is registered to {holder}, this node has {address}", fix)]
    return []


async def _examine_coins(subject: Subject, rpc: Rpc, address: str) -> list[Finding]:
    """The balance, and the day's budget, against what rounds cost."""
    config = subject.whole[0]
    chain = config.chain
    assert chain is not None
    ethereum = Ethereum(rpc)
    balance = await ethereum.balance_wei(address)
    try:
        price = (await quote(ethereum, chain.fees)).fee_wei
    except GasTooDear as error:
        return [ACCOUNT_DEAR.found(error.message)]
    gas = round_gas(chain, config.swarm.stages)
    if scarce := await _examine_budget(subject, chain, price, gas):
        return [ACCOUNT_BUDGET.found(scarce)]
    evidence = f"{address} has {coins(balance)}, a round costs {coins(price * gas)} at most"
    fix = f"Send coins to {address} on chain {chain.chain_id}"
    if balance < price * max(REWARD_GAS, REGISTER_GAS):
        return [ACCOUNT_POOR.found(evidence, fix)]
    return [ACCOUNT_LOW.found(evidence, fix)] if rounds_paid(balance, price, gas) < ROUNDS_WANTED else []


async def _examine_budget(subject: Subject, chain: ChainConfig, price_wei: int, gas: int) -> str:
    """What is wrong with the day's budget, empty where it has room, or there is none."""
    most_wei = round(chain.fees.day_coins_max * COIN_WEI)
    if not most_wei:
        return ""
    if rounds_paid(most_wei, price_wei, gas) < ROUNDS_WANTED:
        cost = coins(price_wei * gas)
        return f"chain.fees.day_coins_max is {coins(most_wei)}, and a round may cost {cost} by the present price of gas"
    known = await _logged_chain(subject)
    if known is None or known.spent_day < day_of(time()) or int(known.spent_wei) < BUDGET_TOLD_SHARE * most_wei:
        return ""
    return f"{coins(int(known.spent_wei))} of {coins(most_wei)} are signed for today"
