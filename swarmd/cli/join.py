"""`swarmd join`: makes a node that is ready to run, from a manifest.

- Nothing that exists is changed. An existing configuration stays in force with its identity and account, and options
  that it overrules are named.
- The manifest, and all files that it names, are checked before anything is made.
- On a chain, the contract must be the one that the manifest describes. The node is registered at once if its account
  can pay, else it registers itself when it runs.
"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import anyio
import msgspec
import typer

from swarmd.animals import animal_name
from swarmd.cli import handed_out
from swarmd.cli.directory import NodeCreator, OwnAccount
from swarmd.cli.options import Announce, PayerOptions, add_payer_options, check_multiaddrs
from swarmd.config import Config, FeesConfig, SwarmConfig, TrainingConfig, check_name
from swarmd.daemon.directory import swarm_of_manifest
from swarmd.dht.identity.identity import is_peer_id, read_rl_swarm_name
from swarmd.dht.wire.invitations import invitation_from_text, require_invitation
from swarmd.errors import ChainError, ChainMismatch, ConfigError, ManifestError, OtherVersion
from swarmd.gas import format_coins
from swarmd.manifest import (
    BOOTNODES_MAX,
    Manifest,
    NodeChoice,
    check_bootnode,
    make_config_text,
    make_node_config,
    read_manifest,
    recipe_digest,
    recipe_of,
    write_manifest,
)
from swarmd.paths import quote_for_shell
from swarmd.swarms.options import DOWNLOAD_BYTES_MAX
from swarmd.swarms.registry import check_code, check_kind, find_reduced_limits
from swarmd.swarms.truths import check_questions

if TYPE_CHECKING:
    from swarmd.chain.coordinator import CoordinatorContract
    from swarmd.cli.contract import ConnectedChain


LISTEN = "/ip4/0.0.0.0/tcp/0"


class JoinOptions(NamedTuple):
    path: Path
    name: str
    identity: Path | None
    listen: tuple[str, ...]  # empty: `LISTEN`
    announce: tuple[str, ...]
    data: str
    paid_by: PayerOptions
    signer: str
    org: str
    signer_account: str
    token: str
    questions: Path | None  # path of the recipe's question file
    model: str  # the recipe's model: a name, or the path of its directory
    invitation: str


@add_payer_options
def join(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The swarm's manifest.")],
    paid_by: PayerOptions,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="The new node's directory; default: ./SWARM-ID.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name on the leaderboard.")] = "",
    creator: Annotated[str, typer.Option(metavar="PEER", help="Required peer id of the creator.")] = "",
    identity: Annotated[Path | None, typer.Option(help="Key file; default: a new one.")] = None,
    invitation: Annotated[str, typer.Option(metavar="TEXT", help="The output of `swarmd swarm invite`.")] = "",
    listen: Annotated[list[str] | None, typer.Option(help="Address to listen on; else any free port.")] = None,
    announce: Announce = None,
    data: Annotated[str, typer.Option(help="Data directory, relative to the configuration.")] = ".",
    signer: Annotated[str, typer.Option(metavar="URL", help="A signer proxy that submits for this node.")] = "",
    org: Annotated[str, typer.Option(help="The signer's organisation id for the account.")] = "",
    signer_account: Annotated[str, typer.Option(metavar="ADDRESS", help="The signer's account.")] = "",
    token: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="File with the signer's bearer token.")
    ] = "",
    download_bytes: Annotated[
        int, typer.Option(min=1, help="Most bytes of a data set on the Hub.")
    ] = DOWNLOAD_BYTES_MAX,
) -> None:
    """Check a manifest, and make a node of that swarm: identity, account if there is a chain, configuration, and a copy
    of the manifest beside it.

    On a chain, register the node at once if its account can pay. Nothing that exists is changed.
    """
    read = read_manifest(manifest)
    if creator and not is_peer_id(creator):
        raise ConfigError(
            f"--creator {creator!r} is not a peer id", "It begins with 12D3Koo: ask the swarm's creator for it"
        )
    if creator and creator != read.creator:
        raise ManifestError(
            f"{manifest} was created by {read.creator}, not by {creator}",
            "Do not join: ask that creator for its manifest",
        )
    root = directory or Path(read.id)
    existing = NodeCreator(root, data).read_existing_config(swarm_of_manifest(read))
    node = NodeCreator(root, existing.data if existing else data)
    check_code(_make_swarm_config(read), node.data.root, manifest.parent)
    if existing is None:
        handed_out.refuse_missing_files(read.recipe, manifest, node.data.root)
    options = JoinOptions(
        path=manifest,
        name=name,
        identity=identity,
        listen=tuple(listen or ()),
        announce=tuple(announce or ()),
        data=data,
        paid_by=paid_by,
        signer=signer,
        org=org,
        signer_account=signer_account,
        token=token,
        questions=handed_out.find_questions(read.recipe.options, manifest, node.data.root, download_bytes),
        model=existing.training.model
        if existing
        else handed_out.find_manifest_model(read.recipe, manifest, node.data.root),
        invitation=invitation,
    )
    _check(read, options)
    with node.hold_lock():
        typer.echo(f'swarm: "{read.name}", {read.id}, created by {read.creator}: valid')
        _make_node(node, read, options, existing)
    typer.echo(f"\nnext:  swarmd run --config {quote_for_shell(node.home.config)}")


def _check(manifest: Manifest, options: JoinOptions) -> None:
    swarm = _make_swarm_config(manifest)
    check_kind(swarm)
    if options.questions is not None:
        handed_out.print_untried_reason(check_questions(swarm, TrainingConfig(), options.questions.parent))
    check_name(options.name, "--name")
    check_multiaddrs(options.listen, options.announce)
    if manifest.chain is None and (options.paid_by.rpc or options.paid_by.account or options.signer):
        told = f"the swarm {manifest.id} has no chain: --rpc, --account and --signer have no use there"
        raise ConfigError(told, "Leave them out")
    if options.invitation and manifest.membership != "invitation":
        told = f"the swarm {manifest.id} asks for no invitation, so the one that was given is another swarm's"
        raise ConfigError(told, "Name the manifest of the swarm that it is for, or leave --invitation out")
    if options.signer and options.paid_by.account:
        raise ConfigError("both --signer and --account were given", "One of them submits for this node")
    if bool(options.signer) != bool(options.org):
        raise ConfigError("--signer and --org go together", "The signer knows accounts by their organisation id")
    if manifest.chain is not None and not (options.paid_by.rpc or manifest.chain.rpc):
        raise ConfigError(
            "the manifest names no endpoint of the chain", f"Give --rpc URL of chain {manifest.chain.chain_id}"
        )


def _make_swarm_config(manifest: Manifest) -> SwarmConfig:
    recipe = manifest.recipe
    return SwarmConfig(manifest.id, kind=recipe.kind, stages=recipe.stages, options=recipe.options)


def _make_node(node: NodeCreator, manifest: Manifest, options: JoinOptions, existing: Config | None) -> None:
    known = node.data.root / existing.dht.identity if existing else None  # key file named by an existing configuration
    identity = node.make_identity(known if known is not None and known.exists() else options.identity)
    if existing is not None and existing.dht.peer not in ("", identity.peer_id):
        raise ConfigError(
            f"{node.home.config} is of {existing.dht.peer}, the identity is {identity.peer_id}",
            "Give that node's identity, or another directory with --dir",
        )
    if manifest.chain is None and manifest.membership == "allow-list" and identity.peer_id not in manifest.members:
        _print_allow_list_note(options, identity.peer_id)
    if manifest.membership == "invitation":
        _check_invitation(node, manifest, options, identity.peer_id, existing)
    choice = NodeChoice(
        peer=identity.peer_id,
        name=_choose_node_name(identity.peer_id, options) if existing is None else options.name,
        data=options.data,
        identity=node.relative_name(options.identity) if options.identity else "",
        listen=options.listen or (LISTEN,),
        announce=options.announce,
        invitation=options.invitation,
        training={"model": options.model},
    )
    if manifest.chain is not None:
        choice = anyio.run(_join_chain, node, manifest, options, choice, existing)
    config = existing or make_node_config(manifest, choice)
    if options.questions is not None:
        handed_out.copy_file(options.questions, node.data.root)
    for cut in find_reduced_limits(existing.swarm if existing else _make_swarm_config(manifest)):
        typer.echo(f"note: {cut}")
    if manifest.average_weights_every:
        _warn_of_averaged_peers(node, config)
    _copy_manifest(node, manifest)
    written = node.write_private_file(node.home.config, make_config_text(manifest, choice))
    if not written and existing is not None and recipe_digest(recipe_of(existing)) != manifest.recipe.digest:
        typer.echo(f"note: the recipe in {node.home.config} is not the manifest's; this node may train something else")


def _copy_manifest(node: NodeCreator, manifest: Manifest) -> None:
    """Copy the manifest beside the configuration, where `swarmd doctor` compares them; an existing copy is kept."""
    path = node.home.manifest
    if not path.exists():
        write_manifest(path, manifest)
        typer.echo(f"{path}: written")
        return
    with contextlib.suppress(ManifestError, OtherVersion):
        if read_manifest(path) == manifest:
            return
    typer.echo(f"note: {path} differs from the one that was given, and is kept. Put the newer one in its place")


def _warn_of_averaged_peers(node: NodeCreator, config: Config) -> None:
    """Print the peers whose weights this node averages with its own."""
    training = config.training
    if training.average_weights_every:
        trusted = ", ".join(training.weights_from)
        typer.echo(
            f"note: this node averages its weights with those of others ({trusted}), as the swarm's manifest says."
        )
        typer.echo("Several of these together, or one among few, can put into its model what no question shows.")
        typer.echo("To keep them out, write")
        typer.echo(f"    average_weights_every = 0\ninto [training] of {node.home.config}")


def _choose_node_name(peer: str, options: JoinOptions) -> str:
    """Choose the node's name: the given one, or else the RL Swarm name of an imported identity. Prints both.

    RL Swarm's word lists are not shipped, so its name is known only if `swarmd identity import` recorded it.
    """
    if not peer.startswith("Qm"):  # RL Swarm's RSA keys give ids that start like this
        return options.name
    there = read_rl_swarm_name(options.identity, peer) if options.identity else ""
    name, own = options.name or there, animal_name(peer)
    said = f"{there} in RL Swarm" if there else "its name in RL Swarm is not known here"
    typer.echo(f"name: {name or own}; {said}, {own} by swarmd's own words")
    if not name:
        typer.echo(
            'note: to keep the name that it had there, put `name = "..."` at the top of the configuration, or join '
            "with --name; `swarmd identity import SWARM_PEM KEY --names name_utils.py` says which it is"
        )
    return name


def _check_invitation(
    node: NodeCreator, manifest: Manifest, options: JoinOptions, peer: str, existing: Config | None
) -> None:
    """Check the invitation; without one, say how to get it, and if the configuration is kept, where to put it. Raises
    ConfigError if the invitation is for another peer."""
    known = existing.dht.invitation if existing else options.invitation
    if options.invitation:
        require_invitation(invitation_from_text(options.invitation), manifest.id, manifest.creator, peer)
    elif not known and peer != manifest.creator:
        typer.echo("note: this swarm asks for an invitation. Its creator, or one whom the creator has invited, runs")
        typer.echo(f"    swarmd swarm invite {peer}")
        typer.echo(f'and what that prints goes into {node.home.config}, below [dht]: invitation = "..."')
    if options.invitation and options.invitation != known:
        typer.echo(f"note: {node.home.config} does not have this invitation. It counts once there stands, below [dht],")
        typer.echo(f'    invitation = "{options.invitation}"')


def _print_allow_list_note(options: JoinOptions, peer: str) -> None:
    typer.echo("note: this node is not on the swarm's allow-list yet. The swarm's creator must run")
    typer.echo(f"    swarmd swarm allow {quote_for_shell(options.path.name)} {peer}")


# --- the chain ---


async def _join_chain(
    node: NodeCreator, manifest: Manifest, options: JoinOptions, choice: NodeChoice, existing: Config | None
) -> NodeChoice:
    """Check the contract, make the account, and register. Returns the choice with the settings found."""
    from swarmd.chain.endpoints import read_endpoint_urls
    from swarmd.chain.keystore import load_account
    from swarmd.cli.contract import check_contract, connect_chain

    chain, known = manifest.chain, existing.chain if existing else None
    assert chain is not None
    urls = list(
        options.paid_by.rpc or (read_endpoint_urls(known.rpc, node.data.root) if known is not None else chain.rpc)
    )
    async with connect_chain(urls, chain.chain_id, options.paid_by.fees) as reached:
        coordinator = await check_contract(reached.rpc, chain, manifest.recipe.stages)
        typer.echo(f"chain: {chain.chain_id}, contract {chain.contract}: as the manifest says")
        (allowed,) = await coordinator.are_members([choice.peer])
        if not allowed:
            _print_allow_list_note(options, choice.peer)
        bootnodes = []
        for address in (await coordinator.bootnodes())[:BOOTNODES_MAX]:  # a contract accepts any text
            try:
                check_bootnode(address)
                bootnodes.append(address)
            except ManifestError as error:
                typer.echo(f"note: the contract has a bootnode that is not one: {error.message}")
        choice = msgspec.structs.replace(choice, rpc=node.store_endpoints(urls), bootnodes=tuple(bootnodes))
        registered_to = await coordinator.account_of_peer(choice.peer)
        if options.signer or (known is not None and known.sender != "wallet"):
            return _join_through_proxy(node, options, choice, registered_to)
        if known is not None:  # the existing configuration names the account
            account = OwnAccount(load_account(known, node.data), known.keystore, known.passphrase)
            typer.echo(f"account: {account.key.address}, kept from {known.keystore}")
        else:
            account = node.make_account(options.paid_by.account, options.paid_by.passphrase)
        await _register(reached, coordinator, account, choice.peer, registered_to, allowed, options.paid_by.fees)
        return msgspec.structs.replace(
            choice, sender="wallet", keystore=account.keystore, passphrase=account.passphrase
        )


def _join_through_proxy(node: NodeCreator, options: JoinOptions, choice: NodeChoice, registered_to: str) -> NodeChoice:
    known = registered_to or "nobody yet; the node registers through the signer when it runs"
    typer.echo(f"registered to: {known}")
    if registered_to and options.signer_account and registered_to.lower() != options.signer_account.lower():
        raise _other_account_error(choice.peer, registered_to, options.signer_account)
    return msgspec.structs.replace(
        choice,
        sender="proxy",
        signer=options.signer,
        org=options.org,
        account=options.signer_account,
        token=node.relative_name(Path(options.token)) if options.token else "",
    )


def _other_account_error(peer: str, holder: str, account: str) -> ChainMismatch:
    return ChainMismatch(
        f"the peer id {peer} is registered to the account {holder}, not to {account}",
        "Use that account, or make another identity: a registration is for ever",
    )


async def _register(
    reached: "ConnectedChain",
    coordinator: "CoordinatorContract",
    account: OwnAccount,
    peer: str,
    registered_to: str,
    allowed: bool,
    fees: FeesConfig,
) -> None:
    """Register the peer now if the account can pay; otherwise the node registers itself later."""
    from swarmd.chain.contract import encode_call
    from swarmd.cli.contract import open_transactions

    address = str(account.key.address)
    if registered_to:
        if registered_to != address:
            raise _other_account_error(peer, registered_to, address)
        typer.echo(f"registered: this node is, to {address}")
        return
    transactions = open_transactions(reached, account.key, fees)
    balance_wei = await transactions.chain.balance_wei(transactions.account)
    if balance_wei == 0 or not allowed:
        typer.echo(f"account: {address} has {format_coins(balance_wei)}{'' if balance_wei else ': send it some'}")
        typer.echo("the node registers by itself when it runs, as soon as it may and can pay")
        return
    try:
        receipt = await transactions.execute_order(
            "register", coordinator.contract, encode_call("registerPeer(string)", peer)
        )
    except ChainError as error:
        typer.echo(f"note: not registered yet: {error.message}")
        typer.echo("the node registers by itself when it runs, as soon as its account can pay")
        return
    typer.echo(f"registered: in block {receipt.block}, {receipt.gas_used:,} gas, {format_coins(receipt.cost_wei)}")
