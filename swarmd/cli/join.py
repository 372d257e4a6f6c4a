"""`swarmd join`: from a manifest to a node that is ready to run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import anyio
import msgspec
import typer

from swarmd.animals import animal_name
from swarmd.cli.directory import NewNode, OwnAccount
from swarmd.cli.models import find_model
from swarmd.cli.options import MAX_GWEI, Account, Announce, Endpoints, MaxGwei, PassphraseFile, Payer, payer
from swarmd.cli.questions import copy_questions, find_questions, tell_untried
from swarmd.config import ChainConfig, Config, SwarmConfig, TrainingConfig, check_name
from swarmd.daemon.directory import swarm_of_manifest
from swarmd.dht.identity.identity import is_peer_id, known_name
from swarmd.dht.wire.addresses import is_address, suggest_address
from swarmd.dht.wire.invitations import must_be_invited, read_invitation
from swarmd.errors import ChainError, ChainMismatch, ConfigError, ManifestError, OtherVersion
from swarmd.manifest import (
    BOOTNODES_MAX,
    Manifest,
    NodeChoice,
    check_bootnode,
    config_of,
    node_text,
    read_manifest,
    recipe_digest,
    recipe_of,
    write_manifest,
)
from swarmd.paths import quoted
from swarmd.swarms.options import DOWNLOAD_BYTES_MAX
from swarmd.swarms.registry import check_kind, check_questions, find_cuts_of

if TYPE_CHECKING:
    from swarmd.chain.coordinator import Coordinator
    from swarmd.cli.contract import ReachedChain
    from swarmd.config import FeesConfig


LISTEN = "/ip4/0.0.0.0/tcp/0"


class JoinOptions(NamedTuple):
    """What the command line asks for."""

    path: Path
    name: str
    identity: Path | None
    listen: tuple[str, ...]  # empty: LISTEN
    announce: tuple[str, ...]
    data: str
    paid_by: Payer
    signer: str
    org: str
    signer_account: str
    token: str
    questions: Path | None  # file that the recipe trains on, wherever it lies
    model: str  # that the recipe names, or where its directory lies
    invitation: str


def join(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The file that the swarm's creator handed out.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="The new node's directory; ./SWARM-ID without it.")
    ] = None,
    name: Annotated[str, typer.Option(help="Shown to others on the leaderboard.")] = "",
    creator: Annotated[
        str, typer.Option(metavar="PEER", help="Peer id that must have created the swarm, if you know it.")
    ] = "",
    identity: Annotated[Path | None, typer.Option(help="A key file to use; else one is made.")] = None,
    invitation: Annotated[str, typer.Option(metavar="TEXT", help="What `swarmd swarm invite` printed for you.")] = "",
    listen: Annotated[list[str] | None, typer.Option(help="Address to listen on; else any free port.")] = None,
    announce: Announce = None,
    data: Annotated[str, typer.Option(help="Data directory, relative to the configuration.")] = ".",
    rpc: Endpoints = None,
    account: Account = None,
    passphrase_file: PassphraseFile = None,
    signer: Annotated[str, typer.Option(metavar="URL", help="A signer proxy that submits for this node.")] = "",
    org: Annotated[str, typer.Option(help="Organisation id that the signer knows the account under.")] = "",
    signer_account: Annotated[str, typer.Option(metavar="ADDRESS", help="The signer's account, if you know it.")] = "",
    token: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="File with the signer's bearer token.")
    ] = "",
    max_gwei: MaxGwei = MAX_GWEI,
    download_bytes: Annotated[
        int, typer.Option(min=1, help="Of a data set that the manifest names on the Hub, at most.")
    ] = DOWNLOAD_BYTES_MAX,
) -> None:
    """Check a manifest, and make a node of that swarm: identity, account where there is a chain, configuration, and a
    copy of the manifest beside it.

    On a chain, register the node at once if its account can pay. Nothing that exists is changed.
    """
    read = read_manifest(manifest)
    if creator and not is_peer_id(creator):
        raise ConfigError(f"--creator {creator!r} is no peer id", "The creator's begins with 12D3Koo: ask them for it")
    if creator and creator != read.creator:
        raise ManifestError(f"{manifest} was created by {read.creator}, not by {creator}", "Do not join")
    root = directory or Path(read.id)
    existing = NewNode(root, data).existing(swarm_of_manifest(read))
    node = NewNode(root, existing.data if existing else data)
    wishes = JoinOptions(
        path=manifest,
        name=name,
        identity=identity,
        listen=tuple(listen or ()),
        announce=tuple(announce or ()),
        data=data,
        paid_by=payer(rpc, account, passphrase_file, max_gwei),
        signer=signer,
        org=org,
        signer_account=signer_account,
        token=token,
        questions=find_questions(read.recipe.options, manifest, node.data.root, download_bytes),
        model=existing.training.model if existing else find_model(read.recipe, manifest, node.data.root),
        invitation=invitation,
    )
    _check(read, wishes)
    with node.held():
        typer.echo(f'swarm: "{read.name}", {read.id}, created by {read.creator}: valid')
        _make(node, read, wishes, existing)
    typer.echo(f"\nnext:  swarmd run --config {quoted(node.home.config)}")


def _check(manifest: Manifest, wishes: JoinOptions) -> None:
    swarm = _swarm_of(manifest)
    check_kind(swarm)
    if wishes.questions is not None:
        tell_untried(check_questions(swarm, TrainingConfig(), wishes.questions.parent))
    check_name(wishes.name, "--name")
    for address in (*wishes.listen, *wishes.announce):
        if not is_address(address):
            raise ConfigError(f"{address!r} is no address", suggest_address(address))
    if manifest.chain is None and (wishes.paid_by.rpc or wishes.paid_by.account or wishes.signer):
        told = f"the swarm {manifest.id} has no chain: --rpc, --account and --signer mean nothing there"
        raise ConfigError(told, "Leave them out")
    if wishes.signer and wishes.paid_by.account:
        raise ConfigError("both --signer and --account were given", "One of them submits for this node")
    if bool(wishes.signer) != bool(wishes.org):
        raise ConfigError("--signer and --org go together", "The signer knows accounts by their organisation id")
    if manifest.chain is not None and not (wishes.paid_by.rpc or manifest.chain.rpc):
        raise ConfigError(
            "the manifest names no endpoint of the chain", f"Give --rpc URL of chain {manifest.chain.chain_id}"
        )


def _swarm_of(manifest: Manifest) -> SwarmConfig:
    recipe = manifest.recipe
    return SwarmConfig(manifest.id, kind=recipe.kind, stages=recipe.stages, options=recipe.options)


def _make(node: NewNode, manifest: Manifest, wishes: JoinOptions, existing: Config | None) -> None:
    known = node.data.root / existing.dht.identity if existing else None  # that a configuration made earlier names
    identity = node.identity(known if known is not None and known.exists() else wishes.identity)
    if existing is not None and existing.dht.peer not in ("", identity.peer_id):
        raise ConfigError(f"{node.home.config} is of {existing.dht.peer}, the identity is {identity.peer_id}")
    if manifest.chain is None and manifest.membership == "allow-list" and identity.peer_id not in manifest.members:
        _say_closed(wishes, identity.peer_id)
    if manifest.membership == "invitation":
        _check_invited(node, manifest, wishes, identity.peer_id, existing)
    choice = NodeChoice(
        peer=identity.peer_id,
        name=_name_of(identity.peer_id, wishes) if existing is None else wishes.name,
        data=wishes.data,
        identity=node.name_of(wishes.identity) if wishes.identity else "",
        listen=wishes.listen or (LISTEN,),
        announce=wishes.announce,
        invitation=wishes.invitation,
        training={"model": wishes.model},
    )
    if manifest.chain is not None:
        choice = anyio.run(_join_chain, node, manifest, wishes, choice, existing)
    config = existing or config_of(manifest, choice)
    if wishes.questions is not None:
        copy_questions(wishes.questions, node.data.root)
    for cut in find_cuts_of(existing.swarm if existing else _swarm_of(manifest)):
        typer.echo(f"note: {cut}")
    if manifest.average_weights_every:
        _warn_averaged(node, config)
    _keep_manifest(node, manifest)
    written = node.write(node.home.config, node_text(manifest, choice))
    if existing is not None:
        _tell_ignored(node, existing, wishes)
    if not written and existing is not None and recipe_digest(recipe_of(existing)) != manifest.recipe.digest:
        typer.echo(f"note: the recipe in {node.home.config} is not the manifest's; this node may train something else")


def _keep_manifest(node: NewNode, manifest: Manifest) -> None:
    """Lay the manifest beside the configuration, where `swarmd doctor` compares the two; one that is there stays."""
    path = node.home.manifest
    if not path.exists():
        write_manifest(path, manifest)
        typer.echo(f"{path}: written")
        return
    with contextlib.suppress(ManifestError, OtherVersion):
        if read_manifest(path) == manifest:
            return
    typer.echo(f"note: {path} is another one than was given, and is kept. Put the newer one in its place")


def _tell_ignored(node: NewNode, existing: Config, wishes: JoinOptions) -> None:
    """Name the options that were given and have no effect, as the configuration that is kept says otherwise."""
    data = "" if wishes.data == "." else wishes.data
    asked: list[tuple[str, object, str, object]] = [  # option, what was given, the key, what stands there
        ("--name", wishes.name, "name", existing.name),
        ("--identity", wishes.identity, "dht.identity", Path(existing.dht.identity)),
        ("--listen", wishes.listen, "dht.listen", existing.dht.listen),
        ("--announce", wishes.announce, "dht.announce", existing.dht.announce),
        ("--data", Path(data) if data else None, "data", Path(existing.data)),
    ]
    if existing.chain is not None:
        asked += _asked_of_chain(node, existing.chain, wishes)
    ignored = [f"{option} ({key})" for option, given, key, kept in asked if given and not _same(node, given, kept)]
    if ignored:
        typer.echo(f"note: without effect, as {node.home.config} says otherwise: {', '.join(ignored)}. Change it there")


def _asked_of_chain(node: NewNode, chain: ChainConfig, wishes: JoinOptions) -> list[tuple[str, object, str, object]]:
    from swarmd.chain.endpoints import read_urls

    payer, proxy = wishes.paid_by, chain.proxy
    return [
        ("--rpc", payer.rpc, "chain.rpc", tuple(read_urls(chain.rpc, node.data.root))),
        ("--account", payer.account, "chain.keystore", Path(chain.keystore)),
        ("--passphrase-file", payer.passphrase, "chain.passphrase", Path(chain.passphrase)),
        ("--signer", wishes.signer, "chain.proxy.url", proxy.url if chain.sender == "proxy" else ""),
        ("--org", wishes.org, "chain.proxy.org", proxy.org),
        ("--signer-account", wishes.signer_account.lower(), "chain.proxy.account", proxy.account.lower()),
        ("--token-file", Path(wishes.token) if wishes.token else None, "chain.proxy.token", Path(proxy.token)),
    ]


def _same(node: NewNode, given: object, kept: object) -> bool:
    """Whether two values are one: what is given lies where one is, what a configuration names in the data directory."""
    if isinstance(given, Path) and isinstance(kept, Path):
        return given == kept or given.resolve() == (node.data.root / kept).resolve()
    return given == kept


def _warn_averaged(node: NewNode, config: Config) -> None:
    """Say whom the node lets into its model."""
    training = config.training
    if training.average_weights_every:
        trusted = ", ".join(training.weights_from)
        typer.echo(
            f"note: this node averages its weights with those of others ({trusted}), as the swarm's manifest says."
        )
        typer.echo("Each of these can put into its model what no question shows. To keep them out, write")
        typer.echo(f"    average_weights_every = 0\ninto [training] of {node.home.config}")


def _name_of(peer: str, wishes: JoinOptions) -> str:
    """The name to go by: the one given, else the one that an identity from RL Swarm has there. Says both.

    RL Swarm makes its names of words that swarmd does not ship, so that only a note of `swarmd identity import` tells.
    """
    if not peer.startswith("Qm"):  # RL Swarm's have RSA keys, and only their ids begin so
        return wishes.name
    there = known_name(wishes.identity, peer) if wishes.identity else ""
    name, own = wishes.name or there, animal_name(peer)
    said = f"{there} in RL Swarm" if there else "its name in RL Swarm is not known here"
    typer.echo(f"name: {name or own}; {said}, {own} by swarmd's own words")
    if not name:
        typer.echo(
            'note: to keep the name that it had there, put `name = "..."` at the top of the configuration, or join '
            "with --name; `swarmd identity import SWARM_PEM KEY --names name_utils.py` says which it is"
        )
    return name


def _check_invited(node: NewNode, manifest: Manifest, wishes: JoinOptions, peer: str, existing: Config | None) -> None:
    """Raises ConfigError where the invitation is not one of this peer. Without one, say how to come by it, and where a
    configuration that is kept does not have it, where it goes."""
    known = existing.dht.invitation if existing else wishes.invitation
    if wishes.invitation:
        must_be_invited(read_invitation(wishes.invitation), manifest.id, manifest.creator, peer)
    elif not known and peer != manifest.creator:
        typer.echo("note: this swarm asks for an invitation. Its creator, or one whom the creator has invited, runs")
        typer.echo(f"    swarmd swarm invite {peer}")
        typer.echo(f'and what that prints goes into {node.home.config}, below [dht]: invitation = "..."')
    if wishes.invitation and wishes.invitation != known:
        typer.echo(f"note: {node.home.config} does not have this invitation. It counts once there stands, below [dht],")
        typer.echo(f'    invitation = "{wishes.invitation}"')


def _say_closed(wishes: JoinOptions, peer: str) -> None:
    typer.echo("note: this node is not on the swarm's allow-list yet. The swarm's creator must run")
    typer.echo(f"    swarmd swarm allow {quoted(wishes.path.name)} {peer}")


# --- the chain ---


async def _join_chain(
    node: NewNode, manifest: Manifest, wishes: JoinOptions, choice: NodeChoice, existing: Config | None
) -> NodeChoice:
    """Check the contract, make the account, register; returns the choice with what was found."""
    from swarmd.chain.endpoints import read_urls
    from swarmd.chain.keystore import load_account
    from swarmd.cli.contract import check_contract, reach

    chain, known = manifest.chain, existing.chain if existing else None
    assert chain is not None
    urls = list(wishes.paid_by.rpc or (read_urls(known.rpc, node.data.root) if known is not None else chain.rpc))
    async with reach(urls, chain.chain_id, wishes.paid_by.fees) as reached:
        coordinator = await check_contract(reached.rpc, chain, manifest.recipe.stages)
        typer.echo(f"chain: {chain.chain_id}, contract {chain.contract}: as the manifest says")
        (allowed,) = await coordinator.members([choice.peer])
        if not allowed:
            _say_closed(wishes, choice.peer)
        bootnodes = []
        for address in (await coordinator.bootnodes())[:BOOTNODES_MAX]:  # a contract takes any text
            try:
                check_bootnode(address)
                bootnodes.append(address)
            except ManifestError as error:
                typer.echo(f"note: the contract has a bootnode that is none: {error.message}")
        choice = msgspec.structs.replace(choice, rpc=node.endpoints(urls), bootnodes=tuple(bootnodes))
        registered_to = await coordinator.eoa(choice.peer)
        if wishes.signer or (known is not None and known.sender != "wallet"):
            return _through_proxy(node, wishes, choice, registered_to)
        if known is not None:  # a configuration made earlier names the account
            account = OwnAccount(load_account(known, node.data), known.keystore, known.passphrase)
            typer.echo(f"account: {account.key.address}, kept from {known.keystore}")
        else:
            account = node.account(wishes.paid_by.account, wishes.paid_by.passphrase)
        await _register(reached, coordinator, account, choice.peer, registered_to, allowed, wishes.paid_by.fees)
        return msgspec.structs.replace(
            choice, sender="wallet", keystore=account.keystore, passphrase=account.passphrase
        )


def _through_proxy(node: NewNode, wishes: JoinOptions, choice: NodeChoice, registered_to: str) -> NodeChoice:
    known = registered_to or "nobody yet; the node registers through the signer when it runs"
    typer.echo(f"registered to: {known}")
    if registered_to and wishes.signer_account and registered_to.lower() != wishes.signer_account.lower():
        raise _taken(choice.peer, registered_to, wishes.signer_account)
    return msgspec.structs.replace(
        choice,
        sender="proxy",
        signer=wishes.signer,
        org=wishes.org,
        account=wishes.signer_account,
        token=node.name_of(Path(wishes.token)) if wishes.token else "",
    )


def _taken(peer: str, holder: str, account: str) -> ChainMismatch:
    return ChainMismatch(
        f"the peer id {peer} is registered to the account {holder}, not to {account}",
        "Use that account, or make another identity: a registration is for ever",
    )


async def _register(
    reached: ReachedChain,
    coordinator: Coordinator,
    account: OwnAccount,
    peer: str,
    registered_to: str,
    allowed: bool,
    fees: FeesConfig,
) -> None:
    """Register the peer to the account now if it can pay; the node does so by itself later."""
    from swarmd.chain.contract import encode_call
    from swarmd.cli.contract import open_orders
    from swarmd.gas import coins

    address = str(account.key.address)
    if registered_to:
        if registered_to != address:
            raise _taken(peer, registered_to, address)
        typer.echo(f"registered: this node is, to {address}")
        return
    orders = open_orders(reached, account.key, fees)
    balance_wei = await orders.balance_wei()
    if balance_wei == 0 or not allowed:
        typer.echo(f"account: {address} has {coins(balance_wei)}{'' if balance_wei else ': send it some'}")
        typer.echo("the node registers by itself when it runs, as soon as it may and can pay")
        return
    try:
        receipt = await orders.carry_out("register", coordinator.contract, encode_call("registerPeer(string)", peer))
    except ChainError as error:
        typer.echo(f"note: not registered yet: {error.message}")
        typer.echo("the node registers by itself when it runs, as soon as its account can pay")
        return
    typer.echo(f"registered: in block {receipt.block}, {receipt.gas_used:,} gas, {coins(receipt.cost_wei)}")
