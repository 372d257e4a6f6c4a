"""Commands of `swarmd swarm` that change one: policy, bootnodes, membership, the next stage, and invitations.

- On a chain they are transactions to the swarm's contract, from an account that pays. Without one they change the
  manifest, which its creator signs again.
- Invitations need neither: the creator's node, or an invited one, signs them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
import tomlkit
import typer

from swarmd.cli.options import RULE, ManifestFile, PayerOptions, add_payer_options, locate_node, utc
from swarmd.config import Config, load_config
from swarmd.dht.identity.identity import Identity, is_peer_id, load_identity
from swarmd.dht.wire import invitations
from swarmd.dht.wire.invitations import make_invitation as sign_invitation
from swarmd.errors import ConfigError, ContractRefused
from swarmd.files import hold_directory_lock
from swarmd.gas import format_coins
from swarmd.manifest import (
    UINT32_MAX,
    Manifest,
    Membership,
    check_bootnode,
    sign_manifest,
    to_inline_toml,
    write_manifest,
)
from swarmd.paths import NodeDirectory

if TYPE_CHECKING:
    from swarmd.chain.coordinator import CoordinatorContract
    from swarmd.chain.operator import OperatorTransactions, OrderReceipt
    from swarmd.cli.contract import SwarmTarget

Job = Callable[["OperatorTransactions", "CoordinatorContract"], Awaitable[Any]]
Peers = Annotated[list[str], typer.Argument(metavar="PEER...", help="Peer ids.")]


def register_commands(app: typer.Typer) -> None:
    for verb in (advance, set_policy, add_bootnode, remove_bootnode, allow, disallow, open_swarm, close_swarm):
        app.command(verb.__name__.removesuffix("_swarm").replace("_", "-"))(add_payer_options(verb))


def advance(
    manifest: ManifestFile,
    paid_by: PayerOptions,
    as_manager: Annotated[
        bool, typer.Option("--as-manager", help="Whatever the policy says, as the swarm's stage manager.")
    ] = False,
) -> None:
    """Move the swarm on to its next stage, if its round policy allows it."""
    _change_contract(manifest, paid_by, partial(_advance_stage, as_manager))


async def _advance_stage(
    as_manager: bool, transactions: OperatorTransactions, coordinator: CoordinatorContract
) -> None:
    from swarmd.chain.contract import encode_call

    call = encode_call("updateStageAndRound()" if as_manager else "advance()")
    try:
        receipt = await transactions.execute_order("advance", coordinator.contract, call)
    except ContractRefused as refused:
        if as_manager or refused.code != "AdvanceNotAllowed":
            raise
        raise ContractRefused(
            refused.code,
            f"the round policy does not allow the next stage yet: {await _describe_next_advance(coordinator)}",
            "Wait until then; a stage manager may move the swarm on at any time, with --as-manager",
        ) from None
    _print_receipts(receipt)
    round, stage = await coordinator.round_and_stage()
    typer.echo(f"the swarm is at round {round}, stage {stage}")


async def _describe_next_advance(coordinator: CoordinatorContract) -> str:
    """Describe when anyone may move the swarm to its next stage."""
    policy = await coordinator.round_policy()
    if policy == (0, 0):
        return "it has no round policy, only a stage manager moves the swarm on"
    ways = []
    if policy.min_submissions:
        ways.append(f"at {policy.min_submissions} reports, there are {await coordinator.submission_count()}")
    if policy.max_stage_s:
        left_s = await coordinator.stage_opened_at() + policy.max_stage_s - (await coordinator.blocks.get_head()).at
        ways.append(f"in {left_s:.0f} s by the chain's clock" if left_s > 0 else "with the next block")
    return ", or ".join(ways)


def set_policy(
    manifest: ManifestFile,
    paid_by: PayerOptions,
    min_submissions: Annotated[
        int | None,
        typer.Option(min=0, max=UINT32_MAX, help="Reports after which anyone may advance; 0: off. Else as it is."),
    ] = None,
    stage_seconds: Annotated[
        int | None,
        typer.Option(min=0, max=UINT32_MAX, help="Seconds after which anyone may advance; 0: off. Else as it is."),
    ] = None,
) -> None:
    """Set when anybody may move the swarm on, as an owner of the contract."""
    from swarmd.chain import operator
    from swarmd.chain.ports import RoundPolicy

    async def change_policy(transactions: OperatorTransactions, coordinator: CoordinatorContract) -> None:
        now = await coordinator.round_policy()
        wanted = RoundPolicy(
            now.min_submissions if min_submissions is None else min_submissions,
            now.max_stage_s if stage_seconds is None else stage_seconds,
        )
        _print_receipts(await operator.set_round_policy(transactions, coordinator, wanted))
        typer.echo(f"policy: {wanted.min_submissions} reports or {wanted.max_stage_s} s; nodes follow the contract")

    _change_contract(manifest, paid_by, change_policy)


def add_bootnode(
    manifest: ManifestFile,
    address: Annotated[str, typer.Argument(help="A multiaddr that ends in /p2p/ and a peer id.")],
    paid_by: PayerOptions,
) -> None:
    """Add an address that new nodes join through: to the contract, or without a chain to the manifest."""
    from swarmd.chain import operator

    async def add_to_contract(transactions: OperatorTransactions, coordinator: CoordinatorContract) -> None:
        _print_receipts(await operator.add_bootnodes(transactions, coordinator, (address,)))

    def add_to_manifest(old: Manifest) -> Manifest:
        return msgspec.structs.replace(old, bootnodes=tuple(dict.fromkeys((*old.bootnodes, address))))

    check_bootnode(address)
    _change_contract_or_manifest(manifest, paid_by, add_to_contract, add_to_manifest)


def remove_bootnode(
    manifest: ManifestFile,
    address: Annotated[str, typer.Argument(help="As `swarmd swarm status` shows it.")],
    paid_by: PayerOptions,
) -> None:
    """Remove an address that new nodes join through."""
    from swarmd.chain import operator

    check_bootnode(address)

    async def remove_from_contract(transactions: OperatorTransactions, coordinator: CoordinatorContract) -> None:
        _print_receipts(await operator.remove_bootnode(transactions, coordinator, address))

    def remove_from_manifest(old: Manifest) -> Manifest:
        bootnodes = tuple(known for known in old.bootnodes if known != address)
        if not bootnodes:
            raise ConfigError("this is the only bootnode: nobody could join any more", "Add another one first")
        return msgspec.structs.replace(old, bootnodes=bootnodes)

    _change_contract_or_manifest(manifest, paid_by, remove_from_contract, remove_from_manifest)


def allow(manifest: ManifestFile, peers: Peers, paid_by: PayerOptions) -> None:
    """Put peers on the allow-list."""
    _change_members(manifest, paid_by, added=tuple(peers))


def disallow(manifest: ManifestFile, peers: Peers, paid_by: PayerOptions) -> None:
    """Take peers off the allow-list."""
    _change_members(manifest, paid_by, removed=tuple(peers))


def open_swarm(manifest: ManifestFile, paid_by: PayerOptions) -> None:
    """Let everybody take part. The allow-list stays for when the swarm is closed again."""
    _change_members(manifest, paid_by, open=True)


def close_swarm(manifest: ManifestFile, paid_by: PayerOptions) -> None:
    """Let only peers on the allow-list take part."""
    _change_members(manifest, paid_by, open=False)


def _change_members(
    path: Path,
    paid_by: PayerOptions,
    added: tuple[str, ...] = (),
    removed: tuple[str, ...] = (),
    open: bool | None = None,
) -> None:
    from swarmd.chain import operator

    for peer in (*added, *removed):
        if not is_peer_id(peer):
            raise ConfigError(f"{peer!r} is not a peer id", "`swarmd identity show` prints a node's")

    async def change_allow_list(transactions: OperatorTransactions, coordinator: CoordinatorContract) -> None:
        receipts = [await operator.become_membership_manager(transactions, coordinator)]
        if open is not None:
            receipts.append(await operator.set_membership_open(transactions, coordinator, open))
        receipts += await operator.allow_peers(transactions, coordinator, added)
        receipts += await operator.allow_peers(transactions, coordinator, removed, allow=False)
        _print_receipts(*receipts)
        if await coordinator.is_membership_open() and not open:
            typer.echo("note: the swarm is open to all; `swarmd swarm close` has only the allow-list take part")

    changed = _change_contract_or_manifest(
        path, paid_by, change_allow_list, partial(_with_members, added, removed, open)
    )
    if changed is not None:
        text = tomlkit.dumps({"dht": {"members": to_inline_toml(changed.members)}}).rstrip()
        typer.echo(f"every node needs this in its configuration, and a restart:\n\n{text}")


def _with_members(
    added: tuple[str, ...], removed: tuple[str, ...], open: bool | None, manifest: Manifest
) -> Manifest | None:
    """Change the allow-list of a manifest without a chain. Returns None if the swarm already is open and should be."""
    if manifest.membership == "open" and open is not False:
        if open:
            typer.echo("nothing to do: the swarm is open to all")
            return None
        raise ConfigError("the swarm is open to all, it has no allow-list", "`swarmd swarm close` makes it one")
    if manifest.membership in ("invitation", "work"):
        raise ConfigError(
            f'the swarm has no allow-list, its membership is "{manifest.membership}"',
            "`swarmd swarm invite PEER` admits a peer"
            if manifest.membership == "invitation"
            else "Anyone who does the proof of work may join",
        )
    members: tuple[str, ...] = ()
    if not open:
        wanted = dict.fromkeys((manifest.creator, *manifest.members, *added))
        members = tuple(peer for peer in wanted if peer not in removed or peer == manifest.creator)
    membership: Membership = "allow-list" if members else "open"
    return msgspec.structs.replace(manifest, membership=membership, members=members)


def _change_contract_or_manifest(
    path: Path, paid_by: PayerOptions, job: Job, change: Callable[[Manifest], Manifest | None]
) -> Manifest | None:
    """Change the swarm's contract with `job`, or without a chain its manifest with `change`. Returns the new
    manifest."""
    from swarmd.cli.contract import find_target

    if find_target(path).manifest.chain is not None:
        _change_contract(path, paid_by, job)
        return None
    with hold_directory_lock(path.parent):  # otherwise concurrent commands could lose a change
        target = find_target(path)
        changed = change(target.manifest)
        if changed is not None:
            _write_signed_manifest(target, changed)
        return changed


def _write_signed_manifest(target: SwarmTarget, manifest: Manifest) -> None:
    """Sign and write the changed manifest of a swarm without a chain."""
    if manifest == target.manifest:
        typer.echo("nothing to do: it is so already")
        return
    if target.config is None:
        raise ConfigError(
            "only the creator can change the manifest", f"Use the one beside the configuration of {manifest.creator}"
        )
    identity = load_identity(target.node_directory.root / target.config.dht.identity)
    write_manifest(target.path, sign_manifest(manifest, identity))
    typer.echo(f"{target.path}: signed again; hand it to those who are yet to join")


def _change_contract(manifest: Path, paid_by: PayerOptions, job: Job) -> None:
    from swarmd.cli.contract import check_contract, connect_chain, find_target, open_transactions

    target = find_target(manifest)
    chain = target.manifest_chain
    key = target.open_account(paid_by.account, paid_by.passphrase)

    async def run_job() -> None:
        async with connect_chain(target.endpoint_urls(paid_by.rpc), chain.chain_id, paid_by.fees) as reached:
            coordinator = await check_contract(reached.rpc, chain, target.manifest.recipe.stages)
            await job(open_transactions(reached, key, paid_by.fees), coordinator)

    anyio.run(run_job)


def _print_receipts(*receipts: OrderReceipt | None) -> None:
    done = [receipt for receipt in receipts if receipt is not None]
    for receipt in done:
        cost = f"{receipt.gas_used:,} gas, {format_coins(receipt.cost_wei)}"
        typer.echo(f"{receipt.name}: done in block {receipt.block}, {cost}")
    if not done:
        typer.echo("nothing to do: the contract has it so already")


DAY_S = 86400.0
DAYS_MAX = 36_500


def invite(
    peer: Annotated[str | None, typer.Argument(metavar="[PEER]", help="The guest's peer id.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help=RULE)] = None,
    days: Annotated[float, typer.Option(min=0, help="Days until it ends; 0: never.")] = 0.0,
    withdraw: Annotated[
        str, typer.Option(metavar="ID", help="Withdraw an invitation: its id, or all of its text.")
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the invitations made here.")] = False,
) -> None:
    """Print an invitation for a peer, signed by this node: the creator, or a peer that the creator invited.

    The guest joins with `swarmd join MANIFEST --identity KEY --invitation TEXT`. `--withdraw ID` takes one back, and
    all that its guest made: nodes that hear it refuse their records. The creator may withdraw any, others what they
    made.
    """
    if (peer is not None) + bool(withdraw) + listed != 1:
        fix = "swarmd swarm invite PEER, --list or --withdraw ID"
        raise ConfigError("name the peer to invite, or the invitation to withdraw, or ask for the list", fix)
    place = locate_node(directory)
    if place.config is None:
        raise ConfigError(
            "only a node of the swarm can invite, and there is no node here", "Name its directory: --dir DIR"
        )
    config = load_config(place.config)
    made = invitations.OwnInvitations(NodeDirectory(place.data).invitations)
    if listed:
        _print_invitations(made.read_all(), time.time())
        return
    if config.dht.admission != "invitation":
        raise ConfigError(
            f'dht.admission is "{config.dht.admission}": nobody needs an invitation in this swarm',
            "Guests join with `swarmd join MANIFEST`; `swarmd swarm new --invited` makes a swarm that asks for one",
        )
    identity = load_identity(place.data / config.dht.identity)
    if withdraw:
        _withdraw_invitation(made, withdraw, config.swarm.coordinator in ("", identity.peer_id))
    elif peer is not None:
        _make_invitation(made, config, identity, peer, days)


def _make_invitation(
    made: invitations.OwnInvitations, config: Config, identity: Identity, peer: str, days: float
) -> None:
    if days > DAYS_MAX:
        raise ConfigError(f"--days {days:g}: {DAYS_MAX} at most", "Leave it out for an invitation without an end")
    now = time.time()
    until = now + days * DAY_S if days else 0.0
    own = invitations.invitation_from_text(config.dht.invitation)
    creator = config.swarm.coordinator or identity.peer_id
    encoded = sign_invitation(identity, config.swarm.id, creator, peer, until, own)
    id_ = made.add_invitation(encoded, peer, until, now)
    typer.echo(invitations.invitation_to_text(encoded))
    typer.echo(f"`swarmd swarm invite --withdraw {id_}` takes it back", err=True)


def _withdraw_invitation(made: invitations.OwnInvitations, named: str, everybodys: bool) -> None:
    id_ = (
        invitations.parse_invitation_id(named)
        if len(named) <= 2 * invitations.ID_BYTES
        else invitations.encoded_invitation_id(invitations.invitation_from_text(named))
    )
    withdrawn = made.withdraw(id_, everybodys, time.time())
    whose = f"the invitation of {withdrawn.guest}" if withdrawn.guest else "the invitation"
    typer.echo(f"{withdrawn.id}: {whose} is withdrawn; this node tells the others while it runs")


def _print_invitations(made: tuple[invitations.IssuedInvitation, ...], now: float) -> None:
    for each in made:
        state = "withdrawn" if each.withdrawn_at is not None else "over" if each.is_expired(now) else "holds"
        until = f"until {utc(each.until)}" if each.until else "without an end"
        when = f"made {utc(each.made_at)}" if each.made_at is not None else "made elsewhere"
        typer.echo(f"{each.id}  {state:9}  {each.guest or '-'}  {when}, {until}")
    if not made:
        typer.echo("no invitation was made here", err=True)
