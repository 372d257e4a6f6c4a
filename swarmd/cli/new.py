"""`swarmd swarm new`: creates a swarm, on the DHT alone or with a contract: its first node and its manifest.

- Manifest and configuration are first made with a throw-away key, so that an error leaves nothing on disk and costs
  nothing on a chain.
- After an interruption the same call resumes. An existing manifest is never changed.
"""

import hashlib
import re
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import anyio
import msgspec
import typer

from swarmd.cli.directory import NodeCreator, OwnAccount
from swarmd.cli.handed_out import check_trainable, copy_file, options_for_manifest, pin_model, print_untried_reason
from swarmd.cli.options import Announce, PayerOptions, add_payer_options, check_multiaddrs
from swarmd.config import ChainConfig, ChainShards, Config, SwarmConfig, load_config
from swarmd.daemon.directory import SwarmIdentity, swarm_of_manifest
from swarmd.dht.identity.identity import generate_identity, load_identity
from swarmd.errors import ConfigError, ManifestError, SwarmMismatch
from swarmd.manifest import (
    FORMAT,
    HANDED_OUT,
    OWN_OPTIONS,
    TRAIN_STAGES,
    UINT32_MAX,
    Manifest,
    ManifestChain,
    ManifestRecipe,
    ManifestRounds,
    Membership,
    NodeChoice,
    Signature,
    make_config_text,
    make_node_config,
    read_manifest,
    recipe_of,
    render_manifest,
    sign_manifest,
    write_manifest,
)
from swarmd.paths import quote_for_shell
from swarmd.swarms.packages import list_function_paths, list_module_files
from swarmd.swarms.registry import check_kind, fill_in_default_tasks, find_kind, questions_file_of
from swarmd.swarms.truths import check_questions

LISTEN = "/ip4/0.0.0.0/tcp/38331"
STAGE_S = 300  # default stage length of a new swarm
DEFAULT_STAGES = SwarmConfig("any").stages
DEPTH = 2
DEPTH_MAX = 10_000  # blocks
ANY_HOST = {"/ip4/0.0.0.0/": "/ip4/127.0.0.1/", "/ip6/::/": "/ip6/::1/"}
LOOPBACK = ("/ip4/127.", "/ip6/::1/", "/dns/localhost/", "/dns4/localhost/")
SLUG_LENGTH = 40
SHARDS: ChainShards = 16  # default for a large swarm on a chain: for about 1,000 members
CREATOR = "creator"  # default name of the first node


RecipeFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Configuration with the recipe; default: the embedded model's.",
    ),
]
Invited = Annotated[bool, typer.Option("--invited", help="Only peers with an invitation take part.")]
WorkBits = Annotated[int, typer.Option(min=0, max=28, help="Proof of work: 2^N hashes; 0: none.")]
AverageWeights = Annotated[
    int,
    typer.Option(
        "--average-weights",
        min=0,
        metavar="N",
        help="With --closed or --invited: average weights every N rounds; 0: never.",
    ),
]
MinSubmissions = Annotated[
    int, typer.Option(min=0, max=UINT32_MAX, help="Reports after which anyone may advance; 0: off.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before paying on a chain that is not local.")]
Large = Annotated[
    bool,
    typer.Option("--large", help="On a chain, for hundreds of members: shard the records."),
]


StageSeconds = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=UINT32_MAX,
        help=f"Longest stage, {STAGE_S} or what --config needs. On a chain, anyone may advance then; 0: off.",
    ),
]


class NewSwarmOptions(NamedTuple):
    name: str
    base: Config  # supplies recipe and coordinator settings
    files: tuple[Path, ...]  # question file and modules that the recipe uses
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    bootnodes: tuple[str, ...]
    closed: bool
    members: tuple[str, ...]
    invited: bool
    work_bits: int
    large: bool
    average_weights: int
    paid_by: PayerOptions
    public_rpc: tuple[str, ...]
    min_submissions: int
    stage_s: int
    depth: int
    yes: bool


@add_payer_options
def new(
    name: Annotated[str, typer.Argument(help="The swarm's name.")],
    directory: Annotated[Path, typer.Option("--dir", help="The first node's directory.")],
    paid_by: PayerOptions,
    config: RecipeFile = None,
    listen: Annotated[list[str] | None, typer.Option(help=f"Address to listen on; default: {LISTEN}.")] = None,
    announce: Announce = None,
    bootnode: Annotated[list[str] | None, typer.Option(help="Another bootnode, with /p2p/ and its peer id.")] = None,
    closed: Annotated[bool, typer.Option("--closed", help="Only peers on an allow-list take part.")] = False,
    member: Annotated[list[str] | None, typer.Option(help="Peer id for the allow-list.")] = None,
    invited: Invited = False,
    work_bits: WorkBits = 0,
    large: Large = False,
    average_weights: AverageWeights = 0,
    public_rpc: Annotated[list[str] | None, typer.Option(help="Endpoint for the manifest, if not --rpc.")] = None,
    min_submissions: MinSubmissions = 0,
    stage_seconds: StageSeconds = None,
    stages: Annotated[int | None, typer.Option(min=1, help="Stages of a round; the kind's without it.")] = None,
    depth: Annotated[int, typer.Option(min=0, max=DEPTH_MAX, help="Blocks on top of a confirmed block.")] = DEPTH,
    yes: Yes = False,
) -> None:
    """Create a swarm: the first node's identity and configuration, and a manifest for others.

    With --rpc, also create its contract. Run the same command again to continue after a failure.
    """
    base, files = _read_base_config(config, stages)
    options = NewSwarmOptions(
        name=name,
        base=base,
        files=files,
        listen=tuple(listen or (LISTEN,)),
        announce=tuple(announce or ()),
        bootnodes=tuple(bootnode or ()),
        closed=closed or bool(member),
        members=tuple(member or ()),
        invited=invited,
        work_bits=work_bits,
        large=large,
        average_weights=average_weights,
        paid_by=paid_by,
        public_rpc=tuple(public_rpc or ()),
        min_submissions=min_submissions,
        stage_s=default_stage_seconds(base) if stage_seconds is None else stage_seconds,
        depth=depth,
        yes=yes,
    )
    _check(options)
    node = NodeCreator(directory)
    _validate_files(node, options)
    with node.hold_lock():
        manifest = read_manifest(node.home.manifest) if node.home.manifest.exists() else None
        node.read_existing_config(_requested_swarm(node, options, manifest))
        if manifest is not None:
            _print_unchanged(node, options, manifest)
        else:
            manifest = _make_swarm(node, options)
    _print_next_steps(node, manifest)


def default_stage_seconds(base: Config) -> int:
    """A stage's default length for this swarm: half of what a slow node may train."""
    return max(STAGE_S, int(base.round.train_s / TRAIN_STAGES), int(base.coordinator.stage_s))


def _read_base_config(path: Path | None, stages: int | None) -> tuple[Config, tuple[Path, ...]]:
    """The configuration to start from, with its kind's number of stages, and the files that it names: questions,
    modules."""
    base = load_config(path) if path else Config(SwarmConfig("swarm"), role="coordinator")
    kind, swarm = find_kind(base.swarm.kind), base.swarm
    if stages not in (None, kind.stages):
        raise ConfigError(f"--stages {stages}: a round of {kind.name!r} has {kind.stages}", "Leave --stages out")
    if swarm.stages == DEFAULT_STAGES or stages is not None:
        swarm = msgspec.structs.replace(swarm, stages=kind.stages)
    check_kind(swarm)
    home = path.parent / base.data if path else Path()
    name = questions_file_of(swarm.options)
    shared = options_for_manifest(swarm.options, home)
    print_untried_reason(check_questions(swarm, base.training, home))
    swarm = fill_in_default_tasks(msgspec.structs.replace(swarm, options=shared))
    check_trainable(base.training, swarm)
    training = pin_model(base.training)
    modules = list_module_files(list_function_paths(swarm.options), home)
    return msgspec.structs.replace(base, swarm=swarm, training=training), (*([home / name] if name else []), *modules)


def _check(options: NewSwarmOptions) -> None:
    if not options.name.strip() or not options.name.isprintable():
        what = "has characters that cannot be shown" if options.name.strip() else "is blank"
        raise ManifestError(f"the name of the swarm {what}", "Give one, in UTF-8: it is what those who join are shown")
    rules = [options.closed, options.invited, options.work_bits > 0]
    if sum(rules) > 1 or (any(rules[1:]) and options.paid_by.rpc):
        raise ConfigError(
            "--closed, --invited and --work-bits exclude one another, and the last two a contract",
            "Choose one; on a chain the contract's registration and allow-list decide",
        )
    if not options.paid_by.rpc and (options.min_submissions or options.public_rpc or options.paid_by.account):
        raise ConfigError("--min-submissions, --public-rpc and --account are for a swarm on a chain", "Give --rpc URL")
    if not options.paid_by.rpc and options.stage_s == 0:
        raise ConfigError("--stage-seconds 0 is for a swarm on a chain: without one, a stage needs an end")
    if options.average_weights and (options.paid_by.rpc or not (options.closed or options.invited)):
        raise ConfigError(
            "--average-weights goes with --closed or --invited, and with no contract: elsewhere anybody could put "
            "anything into everybody's model",
            "Add one of them, or leave it out: a node may set training.average_weights_every for itself",
        )
    check_multiaddrs(options.listen, options.announce)


def _validate_files(node: NodeCreator, options: NewSwarmOptions) -> None:
    """Make missing manifest and configuration with a throw-away key, before anything is written or paid for. Raises
    ConfigError, ManifestError."""
    if node.home.manifest.exists():
        return
    identity, recipe = generate_identity(), recipe_of(options.base)
    if options.paid_by.rpc:
        from swarmd.chain.operator import check_stage_count

        check_stage_count(recipe.stages)
    manifest = sign_manifest(_make_unsigned_manifest(options, recipe, identity.peer_id), identity)
    render_manifest(manifest)
    make_node_config(manifest, _make_node_choice(options, identity.peer_id))


def _requested_swarm(node: NodeCreator, options: NewSwarmOptions, manifest: Manifest | None) -> SwarmIdentity:
    """The swarm to create or to resume. Raises SwarmMismatch if the directory has another swarm's manifest."""
    # Peer id of the node in the directory; its manifest may be of a swarm that it joined.
    peer = load_config(node.home.config).dht.peer if node.home.config.exists() else ""
    if not peer and node.data.identity.exists():
        peer = load_identity(node.data.identity).peer_id
    peer = peer or (manifest.creator if manifest else "")
    asked = SwarmIdentity(swarm_id(options.name, peer), options.base.swarm.kind)
    if manifest is not None and swarm_of_manifest(manifest).differs_from(asked):
        raise SwarmMismatch(
            f"{node.home.manifest} is of the swarm {swarm_of_manifest(manifest)}, not of {asked}",
            "Name another directory with --dir: a directory belongs to one swarm",
        )
    return asked


def _make_swarm(node: NodeCreator, options: NewSwarmOptions) -> Manifest:
    _warn_if_local_only(options)
    identity = node.make_identity()
    manifest = _make_unsigned_manifest(options, recipe_of(options.base), identity.peer_id)
    choice = _make_node_choice(options, identity.peer_id)
    if options.paid_by.rpc:
        account = node.make_account(options.paid_by.account, options.paid_by.passphrase)
        chain = _create_contract(node, options, manifest, account)
        manifest = msgspec.structs.replace(manifest, chain=chain, rounds=None, members=())
        choice = _with_chain(node, options, choice, account)
    manifest = sign_manifest(manifest, identity)
    make_node_config(manifest, choice)
    for file in options.files:
        copy_file(file, node.data.root)
    node.write_private_file(node.home.config, make_config_text(manifest, choice))
    write_manifest(node.home.manifest, manifest)
    typer.echo(f"{node.home.manifest}: written, recipe {manifest.recipe.digest[:16]}")
    return manifest


def _create_contract(
    node: NodeCreator, options: NewSwarmOptions, manifest: Manifest, account: OwnAccount
) -> ManifestChain:
    """Create the contract; returns its manifest section. Raises ChainError."""
    from swarmd.chain.operator import DeploymentPlan
    from swarmd.chain.ports import RoundPolicy
    from swarmd.cli.contract import create_contract

    policy = RoundPolicy(options.min_submissions, options.stage_s)
    members = manifest.members if options.closed else None
    plan = DeploymentPlan(manifest.recipe.stages, policy, manifest.bootnodes, members)
    created = anyio.run(
        create_contract, plan, options.paid_by, account.key, node.home.deployment, options.depth, options.yes
    )
    given = options.base.chain or ChainConfig((), 1, "")
    return ManifestChain(
        chain_id=created.chain_id,
        contract=created.deployed.contract,
        from_block=created.deployed.from_block,
        rpc=_public_endpoints(options),
        depth=options.depth,
        min_submissions=policy.min_submissions,
        max_stage_s=policy.max_stage_s,
        reward_scale=given.reward_scale,
        winners=given.winners,
        shards=(given.shards or SHARDS) if options.large else 0,
    )


def _public_endpoints(options: NewSwarmOptions) -> tuple[str, ...]:
    """Endpoints for the manifest, which is public: none whose URL may contain a key."""
    from swarmd.chain.endpoints import url_without_secrets

    if options.public_rpc:
        return options.public_rpc
    plain = tuple(url for url in options.paid_by.rpc if url_without_secrets(url) == url.rstrip("/"))
    if len(plain) < len(options.paid_by.rpc):
        typer.echo(
            "note: an endpoint's URL may hold a key and is not in the manifest; name a public one with --public-rpc"
        )
    return plain


def _make_unsigned_manifest(options: NewSwarmOptions, recipe: ManifestRecipe, peer: str) -> Manifest:
    rounds: dict[str, Any] = msgspec.structs.asdict(options.base.coordinator)
    rounds.pop("when_alone")  # a setting of the creator's node only
    rounds["stage_s"] = float(options.stage_s or STAGE_S)
    others: Membership = "invitation" if options.invited else "work" if options.work_bits else "open"
    return Manifest(
        format=FORMAT,
        id=swarm_id(options.name, peer),
        name=options.name,
        created_at=int(time.time()),
        creator=peer,
        membership="allow-list" if options.closed else others,
        members=tuple(dict.fromkeys((peer, *options.members))) if options.closed else (),
        bootnodes=bootnodes_of(options, peer),
        recipe=recipe,
        signature=Signature(peer, "0" * 128),
        rounds=ManifestRounds(coordinator=peer, **rounds),
        work_bits=options.work_bits,
        average_weights_every=options.average_weights,
    )


def swarm_id(name: str, peer: str) -> str:
    """A swarm id that is valid in DHT keys, and differs between creators."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:SLUG_LENGTH] or "swarm"
    return f"{slug}-{hashlib.sha256(peer.encode()).hexdigest()[:8]}"


def bootnodes_of(options: NewSwarmOptions, peer: str) -> tuple[str, ...]:
    """Addresses of the first node and further bootnodes. Raises ConfigError if the port is not fixed."""
    places = _dialable_addresses(options)
    if any(re.search(r"/(tcp|udp)/0(/|$)", place) for place in places):
        raise ConfigError("others need a fixed port to join through: --listen has port 0", f"Give --listen {LISTEN}")
    return (*(f"{place}/p2p/{peer}" for place in places), *options.bootnodes)


def _warn_if_local_only(options: NewSwarmOptions) -> None:
    """Warn if no other machine could join."""
    if all(place.startswith(LOOPBACK) for place in _dialable_addresses(options)) and not options.bootnodes:
        typer.echo(
            "note: the manifest has an address on this machine only, so only nodes on it can join. For others, give "
            "--announce with the address that they reach this machine under, such as /ip4/192.0.2.1/tcp/38331"
        )


def _print_unchanged(node: NodeCreator, options: NewSwarmOptions, manifest: Manifest) -> None:
    """Say that nothing was changed, and how to add a public address to the manifest of a swarm first tried on one
    machine."""
    typer.echo(f'{node.home.manifest}: the swarm "{manifest.name}" is there already, nothing was changed')
    for place in options.announce:
        address = f"{place}/p2p/{manifest.creator}"
        if manifest.chain is None and address not in manifest.bootnodes:
            typer.echo(
                f"note: for others to join under {place}, put it into dht.announce of {node.home.config}, and run\n"
                f"    swarmd swarm add-bootnode {quote_for_shell(node.home.manifest)} {address}"
            )


def _dialable_addresses(options: NewSwarmOptions) -> tuple[str, ...]:
    """Addresses that others can dial, unlike 0.0.0.0."""
    places = options.listen
    for any_host, loopback in ANY_HOST.items():
        places = tuple(re.sub(rf"^{re.escape(any_host)}", loopback, address) for address in places)
    return options.announce or places


def _make_node_choice(options: NewSwarmOptions, peer: str) -> NodeChoice:
    own = msgspec.to_builtins(options.base.training)  # settings that differ from the defaults
    training = {key: value for key, value in own.items() if key not in ManifestRecipe.__struct_fields__}
    if recipe_of(options.base).model.startswith(HANDED_OUT):
        training["model"] = options.base.training.model
    return NodeChoice(
        peer=peer,
        name=(options.base.name if options.base.role == "coordinator" else "") or CREATOR,
        role="coordinator",
        listen=options.listen,
        announce=options.announce,
        options={key: value for key, value in options.base.swarm.options.items() if key in OWN_OPTIONS},
        training=training,
    )


def _with_chain(node: NodeCreator, options: NewSwarmOptions, choice: NodeChoice, account: OwnAccount) -> NodeChoice:
    return msgspec.structs.replace(
        choice,
        rpc=node.store_endpoints(list(options.paid_by.rpc)),
        sender="wallet",
        keystore=account.keystore,
        passphrase=account.passphrase,
        drive="policy" if options.stage_s or options.min_submissions else "manager",
    )


def _print_next_steps(node: NodeCreator, manifest: Manifest) -> None:
    typer.echo("")
    typer.echo(f'swarm: "{manifest.name}", {manifest.id}, created by {manifest.creator}')
    typer.echo(f"run its first node:  swarmd run --config {quote_for_shell(node.home.config)}")
    questions = questions_file_of(manifest.recipe.options)
    handed = f"{node.home.manifest}" + (f" and {node.data.root / questions}" if questions else "")
    for file in list_module_files(list_function_paths(manifest.recipe.options), node.data.root):
        handed += f" and {file}"
    if manifest.recipe.model.startswith(HANDED_OUT):
        handed += f" and the directory {load_config(node.home.config).training.model}"
    typer.echo(f"others join with:    swarmd join {node.home.manifest.name}      (hand them {handed})")
