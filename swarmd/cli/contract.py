"""How commands reach a swarm's contract, with which endpoints and account, and how one is created.

- Every endpoint must serve the chain that the manifest names. Commands ask before they spend real coins.
- Creating a contract takes several transactions. A journal beside the manifest records those that were sent, so that
  the same command resumes after an interruption and sends nothing twice.
"""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec
import typer

from swarmd.chain.blocks import RpcBlockReader
from swarmd.chain.coordinator import CoordinatorContract, read_chain_id
from swarmd.chain.endpoints import RpcPool, check_endpoint_url, read_endpoint_urls, url_without_secrets
from swarmd.chain.fees import quote_gas_price
from swarmd.chain.keystore import load_account
from swarmd.chain.operator import (
    DEPLOY_GAS,
    Deployment,
    DeploymentPlan,
    OperatorTransactions,
    OrderJournal,
    deploy_coordinator,
)
from swarmd.cli.directory import open_keystore
from swarmd.cli.options import PayerOptions
from swarmd.config import Config, FeesConfig, load_config
from swarmd.errors import ChainError, ChainMismatch, ConfigError
from swarmd.gas import format_coins
from swarmd.manifest import Manifest, ManifestChain, read_manifest
from swarmd.paths import CONFIG, NodeDirectory

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount


CALL_S = 15.0  # timeout of each call to an endpoint
LOCAL_CHAINS = (1337, 31337)  # chain ids of development nodes, whose coins are worthless


class ConnectedChain(NamedTuple):
    rpc: RpcPool
    chain_id: int
    genesis: str

    @property
    def is_local(self) -> bool:
        return self.chain_id in LOCAL_CHAINS


@asynccontextmanager
async def connect_chain(
    urls: Sequence[str], chain_id: int | None = None, fees: FeesConfig | None = None
) -> AsyncIterator[ConnectedChain]:
    """Connect to the chain behind endpoints. `fees`: given if something is to be signed; then an endpoint whose newest
    block has no base fee counts as failed, unless `fees.legacy` is set. Raises ChainMismatch if it is not the chain
    `chain_id`; ChainError if no endpoint answers."""
    for url in urls:
        check_endpoint_url(url)
    found = chain_id or await read_chain_id(urls)
    rpc = RpcPool(urls, found, CALL_S)
    try:
        genesis = await RpcBlockReader(rpc, "", 1).get_block(0)
        rpc.has_base_fee = fees is not None and not fees.legacy
        if fees is not None:
            await rpc.detect_base_fee()
        yield ConnectedChain(rpc, found, genesis.hash)
    finally:
        await rpc.close()


def confirm_chain(reached: ConnectedChain, url: str, what: str, yes: bool) -> None:
    """Show the chain and, unless it is a local one, ask before anything is paid for."""
    typer.echo(f"chain: {reached.chain_id} at {url_without_secrets(url)}")
    if reached.is_local or yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            f"chain {reached.chain_id} is not a local one: {what} costs real coins", "Add --yes if that is meant"
        )
    typer.confirm(f"{what} on chain {reached.chain_id}?", abort=True)


class SwarmTarget(NamedTuple):
    """The swarm that a command acts on, and the node beside its manifest."""

    path: Path
    manifest: Manifest
    config: Config | None  # configuration beside the manifest, if it is the creator's own node

    @property
    def node_directory(self) -> NodeDirectory:
        return NodeDirectory(self.path.parent / (self.config.data if self.config else "."))

    @property
    def manifest_chain(self) -> ManifestChain:
        """Raise ConfigError if the swarm has no chain."""
        if self.manifest.chain is None:
            raise ConfigError(
                f"the swarm {self.manifest.id} has no chain: its coordinator opens and closes the rounds",
                "`swarmd status` on the coordinator's node shows them",
            )
        return self.manifest.chain

    def endpoint_urls(self, given: Sequence[str]) -> list[str]:
        """The given endpoints, or else those of the node beside the manifest, or else the manifest's. Raises
        ConfigError."""
        if given:
            return list(given)
        if self.config is not None and self.config.chain is not None:
            return read_endpoint_urls(self.config.chain.rpc, self.node_directory.root)
        if not self.manifest_chain.rpc:
            raise ConfigError(
                "the manifest names no endpoint of the chain", f"Give --rpc URL of chain {self.manifest_chain.chain_id}"
            )
        return list(self.manifest_chain.rpc)

    def open_account(self, keystore: Path | None, passphrase: Path | None) -> "LocalAccount":
        """The paying account: the given one, or else that of the node beside the manifest. Raises KeystoreError."""
        if keystore is not None:
            return open_keystore(keystore, passphrase)
        if self.config is None or self.config.chain is None:
            raise ConfigError("which account is to pay?", "Give --account KEYSTORE, and --passphrase-file FILE")
        chain = self.config.chain
        if passphrase is not None:
            chain = msgspec.structs.replace(chain, passphrase=str(passphrase.resolve()))
        return load_account(chain, self.node_directory)


def find_target(path: Path) -> SwarmTarget:
    """The manifest, and the configuration beside it if it is of the same swarm. Raises ManifestError, NotFoundError."""
    manifest = read_manifest(path)
    beside = path.parent / CONFIG
    config = load_config(beside) if beside.exists() else None
    return SwarmTarget(path, manifest, config if config and config.swarm.id == manifest.id else None)


async def check_contract(rpc: RpcPool, chain: ManifestChain, stages: int) -> CoordinatorContract:
    """Verify the swarm's contract. Raises ChainMismatch if there is none, or its rounds have another number of
    stages."""
    coordinator = CoordinatorContract(rpc, chain.contract, chain.from_block)
    await coordinator.check_contract()
    counted = await coordinator.stage_count()
    if counted != stages:
        raise ChainMismatch(
            f"the contract {chain.contract} has rounds of {counted} stages, the recipe has {stages}",
            "The manifest does not fit the contract: get another from the swarm's creator",
        )
    return coordinator


def open_transactions(
    reached: ConnectedChain, key: "LocalAccount", fees: FeesConfig, journal: OrderJournal | None = None
) -> OperatorTransactions:
    """An account's transactions, reported on stdout. Raises ChainMismatch if the journal belongs to another account."""
    journal = journal or OrderJournal()
    journal.bind_to_account(reached.chain_id, reached.genesis, str(key.address))
    return OperatorTransactions(reached.rpc, key, fees, journal, typer.echo)


PEER_GAS = 50_000  # for each peer on the allow-list, slightly above the measured value
SETTLE_LOOKS = 450  # polls while waiting for confirmation
SETTLE_LOOK_S = 2.0  # between polls


class CreatedContract(NamedTuple):
    """A confirmed contract and its chain."""

    chain_id: int
    deployed: Deployment


async def create_contract(
    plan: DeploymentPlan, paid_by: PayerOptions, key: "LocalAccount", journal_file: Path, depth: int, yes: bool
) -> CreatedContract:
    """Create a swarm's contract, or resume from the journal of an earlier run. `depth`: blocks required on top of it,
    on a chain that is not local. `yes`: do not ask before paying. Raises ChainError if it cannot be paid for or was not
    mined, and whatever `swarmd.chain.operator.deploy_coordinator` raises."""
    journal = OrderJournal(journal_file)
    begun = journal.record is not None and bool(journal.record.steps)
    async with connect_chain(paid_by.rpc, fees=paid_by.fees) as reached:
        confirm_chain(reached, paid_by.rpc[0], "creating the contract", yes or begun)
        transactions = open_transactions(reached, key, paid_by.fees, journal)
        if begun:
            typer.echo(f"going on with what {journal_file} says")
        else:
            await _check_balance(transactions, plan, paid_by.fees)
        deployed = await deploy_coordinator(transactions, plan)
        if not reached.is_local:
            deployed = await _wait_for_depth(transactions, plan, deployed, depth)
        _print_deployment(deployed)
        return CreatedContract(reached.chain_id, deployed)


async def _check_balance(transactions: OperatorTransactions, plan: DeploymentPlan, fees: FeesConfig) -> None:
    """Check before the first step that the account can pay for all of them. Raises ChainError."""
    price = await quote_gas_price(transactions.chain, fees)
    needed_wei = (DEPLOY_GAS + PEER_GAS * len(plan.members or ())) * price.fee_wei
    balance_wei = await transactions.chain.balance_wei(transactions.account)
    typer.echo(
        f"balance: {format_coins(balance_wei)}; creating the contract costs up to about {format_coins(needed_wei)}"
    )
    if balance_wei < needed_wei:
        raise ChainError(
            f"the account {transactions.account} has {format_coins(balance_wei)}, less than the "
            f"{format_coins(needed_wei)} needed",
            "Send it some, then run the same command again",
        )


async def _wait_for_depth(
    transactions: OperatorTransactions, plan: DeploymentPlan, deployed: Deployment, depth: int
) -> Deployment:
    """Wait until the contract is as deep as nodes require. Returns its block, which a reorganisation may have
    changed."""
    last = max(receipt.block for receipt in deployed.receipts)
    blocks = RpcBlockReader(transactions.rpc, deployed.contract, 1)
    typer.echo(f"waiting for {depth} blocks on top of block {last}")
    for _ in range(SETTLE_LOOKS):
        if (await blocks.get_head()).number >= last + depth:
            return await deploy_coordinator(transactions, plan)
        await anyio.sleep(SETTLE_LOOK_S)
    raise ChainError(
        f"block {last + depth} did not come within {SETTLE_LOOKS * SETTLE_LOOK_S:.0f} s", "Run the same command again"
    )


def _print_deployment(deployed: Deployment) -> None:
    for receipt in deployed.receipts:
        typer.echo(f"  {receipt.name:<16} block {receipt.block:<10} gas {receipt.gas_used:>10,}")
    gas = sum(receipt.gas_used for receipt in deployed.receipts)
    cost = sum(receipt.cost_wei for receipt in deployed.receipts)
    typer.echo(
        f"contract: {deployed.contract}, created in block {deployed.from_block}; {gas:,} gas, {format_coins(cost)}"
    )
