"""How a command reaches a swarm's contract, which endpoints, which account, what the chain is; and the part of
`swarmd swarm new` that is done on a chain.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec
import typer

from swarmd.chain.blocks import Blocks
from swarmd.chain.coordinator import Coordinator, chain_id_of
from swarmd.chain.endpoints import Rpc, check_url, name_of, read_urls
from swarmd.chain.fees import quote
from swarmd.chain.keystore import load_account
from swarmd.chain.operator import DEPLOY_GAS, Deployed, DeploymentPlan, Journal, OperatorTransactions, deploy
from swarmd.chain.ports import RoundPolicy
from swarmd.cli.directory import NewNode, OwnAccount, open_keystore
from swarmd.config import Config, FeesConfig, load_config
from swarmd.errors import ChainError, ChainMismatch, ConfigError
from swarmd.gas import coins
from swarmd.manifest import Manifest, ManifestChain, read_manifest
from swarmd.paths import CONFIG, NodeDirectory

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

    from swarmd.cli.new import NewSwarmOptions


CALL_S = 15.0  # every call to an endpoint ends within this
LOCAL_CHAINS = (1337, 31337)  # of development nodes; their coins are worth nothing


class ReachedChain(NamedTuple):
    """A chain that answers."""

    rpc: Rpc
    chain_id: int
    genesis: str

    @property
    def is_local(self) -> bool:
        return self.chain_id in LOCAL_CHAINS


@asynccontextmanager
async def reach(
    urls: Sequence[str], chain_id: int | None = None, fees: FeesConfig | None = None
) -> AsyncIterator[ReachedChain]:
    """The chain behind endpoints. Raises ChainMismatch where it is not `chain_id`, ChainError where no endpoint
    answers.

    With `fees` something is to be signed: an endpoint that shows a head without a base fee has failed, unless they say
    that the chain has none.
    """
    for url in urls:
        check_url(url)
    found = chain_id or await chain_id_of(urls)
    rpc = Rpc(urls, found, CALL_S)
    try:
        genesis = await Blocks(rpc, "", 1).at(0)
        rpc.has_base_fee = fees is not None and not fees.legacy
        if fees is not None:
            await rpc.learn_base_fee()
        yield ReachedChain(rpc, found, genesis.hash)
    finally:
        await rpc.close()


def confirm_chain(reached: ReachedChain, url: str, what: str, yes: bool) -> None:
    """Show the chain; ask before anything is paid for with coins that are worth something."""
    typer.echo(f"chain: {reached.chain_id} at {name_of(url)}")
    if reached.is_local or yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"chain {reached.chain_id} is not a local one: {what} costs real coins", "Add --yes")
    typer.confirm(f"{what} on chain {reached.chain_id}?", abort=True)


class Target(NamedTuple):
    """The swarm that a command is about, and what lies beside its manifest."""

    path: Path
    manifest: Manifest
    config: Config | None  # of the creator's own node, when the manifest lies in its directory

    @property
    def data(self) -> NodeDirectory:
        return NodeDirectory(self.path.parent / (self.config.data if self.config else "."))

    @property
    def chain(self) -> ManifestChain:
        """Raises ConfigError where the swarm has none."""
        if self.manifest.chain is None:
            raise ConfigError(
                f"the swarm {self.manifest.id} has no chain: its coordinator opens and closes the rounds",
                "`swarmd status` on the coordinator's node shows them",
            )
        return self.manifest.chain

    def urls(self, given: Sequence[str]) -> list[str]:
        """Endpoints: those given, else of the node beside the manifest, else the manifest's. Raises ConfigError."""
        if given:
            return list(given)
        if self.config is not None and self.config.chain is not None:
            return read_urls(self.config.chain.rpc, self.data.root)
        if not self.chain.rpc:
            raise ConfigError(
                "the manifest names no endpoint of the chain", f"Give --rpc URL of chain {self.chain.chain_id}"
            )
        return list(self.chain.rpc)

    def account(self, keystore: Path | None, passphrase: Path | None) -> LocalAccount:
        """The account that pays: the one given, else that of the node beside the manifest. Raises KeystoreError."""
        if keystore is not None:
            return open_keystore(keystore, passphrase)
        if self.config is None or self.config.chain is None:
            raise ConfigError("which account is to pay?", "Give --account KEYSTORE, and --passphrase-file FILE")
        chain = self.config.chain
        if passphrase is not None:
            chain = msgspec.structs.replace(chain, passphrase=str(passphrase.resolve()))
        return load_account(chain, self.data)


def find_target(path: Path) -> Target:
    """The manifest, and the configuration beside it if it is of the same swarm. Raises ManifestError, NotFoundError."""
    manifest = read_manifest(path)
    beside = path.parent / CONFIG
    config = load_config(beside) if beside.exists() else None
    return Target(path, manifest, config if config and config.swarm.id == manifest.id else None)


async def check_contract(rpc: Rpc, chain: ManifestChain, stages: int) -> Coordinator:
    """The swarm's contract. Raises ChainMismatch when there is none, or rounds there have other stages."""
    coordinator = Coordinator(rpc, chain.contract, chain.from_block)
    await coordinator.check()
    counted = await coordinator.stages()
    if counted != stages:
        raise ChainMismatch(
            f"the contract {chain.contract} has rounds of {counted} stages, the recipe has {stages}",
            "The manifest does not fit the contract: ask the swarm's creator",
        )
    return coordinator


def open_orders(
    reached: ReachedChain, key: LocalAccount, fees: FeesConfig, journal: Journal | None = None
) -> OperatorTransactions:
    """Orders of an account, told on stdout. Raises ChainMismatch when the journal is of another chain or account."""
    journal = journal or Journal()
    journal.begin(reached.chain_id, reached.genesis, str(key.address))
    return OperatorTransactions(reached.rpc, key, fees, journal, typer.echo)


PEER_GAS = 50_000  # what one peer more on the allow-list takes, a little more than measured
SETTLE_LOOKS = 450  # for the blocks on top of the contract's, so far apart:
SETTLE_LOOK_S = 2.0


def create_contract(node: NewNode, wishes: NewSwarmOptions, manifest: Manifest, account: OwnAccount) -> ManifestChain:
    """Create the swarm's contract, or go on where an earlier run ended. Raises as
    `swarmd.chain.operator.transactions.deploy`."""
    return anyio.run(_create, node, wishes, manifest, account)


async def _create(node: NewNode, wishes: NewSwarmOptions, manifest: Manifest, account: OwnAccount) -> ManifestChain:
    policy = RoundPolicy(wishes.min_submissions, wishes.stage_s)
    members = manifest.members if wishes.closed else None
    plan = DeploymentPlan(manifest.recipe.stages, policy, manifest.bootnodes, members)
    journal = Journal(node.home.deployment)
    begun = journal.record is not None and bool(journal.record.steps)
    async with reach(wishes.paid_by.rpc, fees=wishes.paid_by.fees) as reached:
        confirm_chain(reached, wishes.paid_by.rpc[0], "creating the contract", wishes.yes or begun)
        orders = open_orders(reached, account.key, wishes.paid_by.fees, journal)
        if begun:
            typer.echo(f"going on with what {node.home.deployment} says")
        else:
            await _check_balance(orders, plan, wishes.paid_by.fees)
        deployed = await deploy(orders, plan)
        if not reached.is_local:
            deployed = await _settle(orders, plan, deployed, wishes.depth)
        _tell(deployed)
        return ManifestChain(
            chain_id=reached.chain_id,
            contract=deployed.contract,
            from_block=deployed.from_block,
            rpc=_hints(wishes),
            depth=wishes.depth,
            min_submissions=policy.min_submissions,
            max_stage_s=policy.max_stage_s,
            reward_scale=wishes.base.chain.reward_scale if wishes.base.chain else 1000,
            winners=wishes.base.chain.winners if wishes.base.chain else 1,
        )


async def _check_balance(orders: OperatorTransactions, plan: DeploymentPlan, fees: FeesConfig) -> None:
    """Told before the first step, not in the middle. Raises ChainError."""
    price = await quote(orders.chain, fees)
    needed_wei = (DEPLOY_GAS + PEER_GAS * len(plan.members or ())) * price.fee_wei
    balance_wei = await orders.balance_wei()
    typer.echo(f"balance: {coins(balance_wei)}; creating the contract costs up to about {coins(needed_wei)}")
    if balance_wei < needed_wei:
        raise ChainError(
            f"the account {orders.account} has {coins(balance_wei)}, less than the {coins(needed_wei)} needed",
            "Send it some, then run the same command again",
        )


async def _settle(orders: OperatorTransactions, plan: DeploymentPlan, deployed: Deployed, depth: int) -> Deployed:
    """Wait until the contract lies as deep as nodes ask for; a reorganisation may have moved it to another block."""
    last = max(receipt.block for receipt in deployed.receipts)
    blocks = Blocks(orders.rpc, deployed.contract, 1)
    typer.echo(f"waiting for {depth} blocks on top of block {last}")
    for _ in range(SETTLE_LOOKS):
        if (await blocks.head()).number >= last + depth:
            return await deploy(orders, plan)
        await anyio.sleep(SETTLE_LOOK_S)
    raise ChainError(
        f"block {last + depth} did not come within {SETTLE_LOOKS * SETTLE_LOOK_S:.0f} s", "Run the same command again"
    )


def _tell(deployed: Deployed) -> None:
    for receipt in deployed.receipts:
        typer.echo(f"  {receipt.name:<16} block {receipt.block:<10} gas {receipt.gas_used:>10,}")
    gas = sum(receipt.gas_used for receipt in deployed.receipts)
    cost = sum(receipt.cost_wei for receipt in deployed.receipts)
    typer.echo(f"contract: {deployed.contract}, created in block {deployed.from_block}; {gas:,} gas, {coins(cost)}")


def _hints(wishes: NewSwarmOptions) -> tuple[str, ...]:
    """Endpoints for the manifest, which everybody may read: none that may hold somebody's key."""
    if wishes.public_rpc:
        return wishes.public_rpc
    plain = tuple(url for url in wishes.paid_by.rpc if name_of(url) == url.rstrip("/"))
    if len(plain) < len(wishes.paid_by.rpc):
        typer.echo(
            "note: an endpoint's URL may hold a key and is not in the manifest; name a public one with --public-rpc"
        )
    return plain
