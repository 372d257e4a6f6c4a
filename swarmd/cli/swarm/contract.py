"""The part of `swarmd swarm new` that is done on a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import typer

from swarmd.chain.blocks import Blocks
from swarmd.chain.endpoints import name_of
from swarmd.chain.fees import quote
from swarmd.chain.operator import (
    DEPLOY_GAS,
    Deployed,
    DeploymentPlan,
    Journal,
    OperatorTransactions,
    deploy,
)
from swarmd.chain.ports import RoundPolicy
from swarmd.cli.chain_access import confirm_chain, open_orders, reach
from swarmd.cli.node.directory import NewNode, OwnAccount
from swarmd.config import FeesConfig
from swarmd.errors import ChainError
from swarmd.gas import coins
from swarmd.manifest import Manifest, ManifestChain

if TYPE_CHECKING:
    from swarmd.cli.swarm.new import NewSwarmOptions

PEER_GAS = 50_000  # what one peer more on the allow-list takes, a little more than measured
SETTLE_LOOKS = 450  # for the blocks on top of the contract's, so far apart:
SETTLE_LOOK_S = 2.0


def create_contract(node: NewNode, wishes: NewSwarmOptions, manifest: Manifest, account: OwnAccount) -> ManifestChain:
    """Create the swarm's contract, or go on where an earlier run ended. Raises as
    `swarmd.chain.operator.deploy`."""
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
    blocks = Blocks(orders.caller, deployed.contract, 1)
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
