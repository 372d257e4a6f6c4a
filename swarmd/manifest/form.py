"""What stands in a manifest, and the bounds of each value.

No key has a default, but `recipe.options`, `recipe.revision`, `average_weights_every` and what makes a task's
curriculum, which came later: a default that changes in a later version would change what an old file says. Keys mean
what they mean in a node's configuration (configs/reference.toml); `recipe` holds those that all nodes must have alike,
because they decide what is learnt or whether rollouts of one node are of use to another.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from swarmd.config import (
    GENERATIONS_MAX,
    INTEGER_MAX,
    Address,
    AtLeastOne,
    ChainShards,
    Config,
    Count,
    Name,
    NotNegative,
    Positive,
    Revision,
    Section,
    Share,
)
from swarmd.dht.addresses import is_address
from swarmd.dht.identity.identity import is_peer_id
from swarmd.dht.wire.records import PROTOCOL
from swarmd.errors import ManifestError, OtherVersion
from swarmd.training.models.source import AUTO

FORMAT = 1
TASKS_MAX = 64
BOOTNODES_MAX = 32
MEMBERS_MAX = 512
RPC_MAX = 8
TEXT_LENGTH_MAX = 256  # of an address or a URL
# Options of kinds that are each node's own: what keeps programs in, what they are given, whom a node calls, what it
# downloads, and what Python it imports. Whoever made a manifest has no say in that.
OWN_OPTIONS = (
    "sandbox",
    "own_limits",
    "judge",
    "judge_model",
    "judge_s",
    "download_bytes",
    "reward_funcs",
    "reward_weights",
    "reward_inputs",
)
DEPTH_MAX = 8  # tables in tables of a task's settings
UINT32_MAX = 2**32 - 1  # of the contract's policy
CREATED_AT_MAX = 253_402_300_799  # the last second of the year 9999

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_LENGTH_MAX)]
Title = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
SignatureText = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2}){64,1200}\Z")]  # 64 bytes, or with RSA some more
PolicyNumber = Annotated[int, msgspec.Meta(ge=0, le=UINT32_MAX)]
# a model that swarmd ships or gets, or a Hugging Face model id: a path would be another model on every machine
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
Model = Annotated[str, msgspec.Meta(pattern=rf"^(?!.*\.(?i:gguf)\Z){_PART}(/{_PART})?\Z")]
Members = Annotated[tuple[Text, ...], msgspec.Meta(max_length=MEMBERS_MAX)]


Membership = Literal["open", "allow-list", "invitation", "work"]


class ManifestTask(Section, frozen=True):
    """One task of the mixture."""

    name: Title
    weight: Positive
    config: dict[str, Any]
    curriculum: bool = False


class ManifestRecipe(Section, frozen=True):
    """What is trained and how, alike on every node; `digest` is the sha256 of all the rest in canonical form."""

    kind: Title
    stages: AtLeastOne
    model: Model
    steps: AtLeastOne
    questions: AtLeastOne
    generations: Annotated[int, msgspec.Meta(ge=2, le=GENERATIONS_MAX)]
    peer_questions: Count
    completion_tokens: AtLeastOne
    prompt_tokens: AtLeastOne
    temperature: Positive
    learning_rate: Positive
    beta: NotNegative
    clip_low: Positive
    clip_high: Positive
    format_reward: NotNegative
    share_groups: Count
    staleness_rounds: Count
    tasks: Annotated[tuple[ManifestTask, ...], msgspec.Meta(max_length=TASKS_MAX)]
    digest: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)  # of the kind; an empty one changes no digest
    revision: Revision = ""  # of the model; nor does an empty one of these


class Rounds(Section, frozen=True):
    """Who opens and closes the rounds of a swarm without a chain, and when; meanings as in `CoordinatorConfig`."""

    coordinator: Text  # peer id
    min_peers: AtLeastOne
    start_s: Positive
    stage_s: Positive
    quorum: Share
    rounds_max: Count


class ManifestChain(Section, frozen=True):
    """The contract that keeps the rounds; meanings as in `ChainConfig`, the policy's as in docs/CONTRACT.md."""

    chain_id: AtLeastOne
    contract: Address
    from_block: Count
    rpc: Annotated[tuple[Text, ...], msgspec.Meta(max_length=RPC_MAX)]  # hints: public endpoints, possibly none
    depth: Count
    min_submissions: PolicyNumber
    max_stage_s: PolicyNumber
    reward_scale: AtLeastOne
    winners: Annotated[int, msgspec.Meta(ge=0, le=100)]
    shards: ChainShards = 0


class Signature(Section, frozen=True):
    """The creator's signature, as `swarmd.dht.identity.signatures` has it, in lower-case hex."""

    by: Text  # peer id
    value: SignatureText


class Manifest(Section, frozen=True):
    """The whole file; one of `rounds` and `chain` is there."""

    format: int
    id: Name
    name: Title
    created_at: Annotated[int, msgspec.Meta(ge=0, le=CREATED_AT_MAX)]  # POSIX seconds
    creator: Text  # peer id; also that of the swarm's coordinator node
    membership: Membership
    members: Members  # the allow-list of a swarm without a chain; a contract keeps its own
    bootnodes: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=BOOTNODES_MAX)]
    recipe: ManifestRecipe
    signature: Signature
    rounds: Rounds | None = None
    chain: ManifestChain | None = None
    work_bits: Annotated[int, msgspec.Meta(ge=0, le=28)] = 0  # with membership "work"
    protocol: AtLeastOne = 1  # version that members speak
    average_weights_every: Count = 0  # what its nodes average their weights by, unless one says otherwise; 0: none does


def recipe_of(config: Config) -> ManifestRecipe:
    """The recipe in a node's configuration, without `OWN_OPTIONS`; its digest is still empty.

    Raises:
        ManifestError: a value has no place in a manifest: a model's path, a task's settings that are no plain values.
    """
    training = msgspec.structs.asdict(config.training)
    shared = {name: training[name] for name in ManifestRecipe.__struct_fields__ if name in training}
    swarm = config.swarm
    tasks = [msgspec.structs.asdict(task) for task in swarm.tasks]
    content = {
        **shared,
        "kind": swarm.kind,
        "stages": swarm.stages,
        "tasks": tasks,
        "options": {name: value for name, value in swarm.options.items() if name not in OWN_OPTIONS},
        "digest": "",
    }
    try:
        recipe = msgspec.convert(content, ManifestRecipe)
    except msgspec.ValidationError as error:
        named = "A manifest names a model by its Hugging Face id, or by swarmd's name for it, not by its path"
        fix = named if "model" in str(error) else ""
        raise ManifestError(f"the recipe cannot be shared: {error}", fix) from error
    check_recipe(recipe)
    return recipe


def check_form(manifest: Manifest) -> None:
    """What the types alone do not say. Raises ManifestError naming the key."""
    if (manifest.rounds is None) == (manifest.chain is None):
        raise ManifestError("a manifest has either [rounds], for a swarm without a chain, or [chain]")
    _check_printable("name", manifest.name)
    if manifest.protocol != PROTOCOL:
        raise OtherVersion.of("the manifest", "protocol", manifest.protocol, PROTOCOL)
    if manifest.chain is not None and manifest.membership in ("invitation", "work"):
        raise ManifestError("membership: on a chain the contract's registration and allow-list decide")
    _check_peers("creator", (manifest.creator,))
    _check_peers("members", manifest.members)
    for bootnode in manifest.bootnodes:
        check_bootnode(bootnode)
    check_recipe(manifest.recipe)
    _check_averaging(manifest)
    if manifest.rounds is not None:
        _check_rounds(manifest, manifest.rounds)
    elif manifest.members:
        raise ManifestError("members: the contract keeps the allow-list of a swarm on a chain", "Leave it empty")
    for url in manifest.chain.rpc if manifest.chain else ():
        _check_endpoint(url)


def _check_averaging(manifest: Manifest) -> None:
    """Weights are averaged where all are of one architecture, and with those alone whom somebody has let in."""
    if not manifest.average_weights_every:
        return
    if manifest.recipe.model == AUTO:
        raise ManifestError(
            f'average_weights_every: with recipe.model = "{AUTO}" each node chooses its own model, and weights of '
            "different architectures have no mean",
            "Name one model, or leave average_weights_every out",
        )
    if manifest.chain is not None:
        raise ManifestError(
            "average_weights_every: on a chain nobody opens the rounds whose credit says whom to trust with a model",
            "Leave it out; a node sets training.average_weights_every and training.weights_from for itself",
        )
    if manifest.membership not in ("allow-list", "invitation"):
        raise ManifestError(
            f'average_weights_every does not go with membership = "{manifest.membership}": whoever comes could put '
            "anything into everybody's model",
            "Make a swarm with --closed or --invited; elsewhere a node sets training.average_weights_every for itself",
        )


def _check_rounds(manifest: Manifest, rounds: Rounds) -> None:
    if rounds.coordinator != manifest.creator:
        raise ManifestError("rounds.coordinator is not the creator", "The creator's node opens and closes the rounds")
    if bool(manifest.work_bits) != (manifest.membership == "work"):
        raise ManifestError(f'work_bits does not go with membership = "{manifest.membership}"')
    if bool(manifest.members) != (manifest.membership == "allow-list"):
        raise ManifestError(f'members does not go with membership = "{manifest.membership}"')


def _check_peers(key: str, peers: tuple[str, ...]) -> None:
    for peer in peers:
        if not is_peer_id(peer):
            raise ManifestError(f"{key}: {peer!r} is no peer id", "`swarmd identity show` prints a node's")


def check_bootnode(address: str) -> None:
    """A multiaddr that ends in /p2p/<peer id>. Raises ManifestError."""
    place, _, peer = address.rpartition("/p2p/")
    _check_printable("bootnodes", address)
    if not is_address(place) or not is_peer_id(peer):
        fix = "Write for example /ip4/192.0.2.1/tcp/38331/p2p/12D3Koo..."
        raise ManifestError(f"bootnodes: {address!r} is not the address of a node", fix)


def _check_endpoint(url: str) -> None:
    _check_printable("chain.rpc", url)
    if not url.startswith(("http://", "https://", "ws://", "wss://")):
        raise ManifestError(f"chain.rpc: {url.split(':')[0]!r} is no scheme that a chain's node is reached by")


def _check_printable(key: str, text: str) -> None:
    if not text.isprintable():
        raise ManifestError(f"{key}: {text!r} has characters that cannot be printed")


def check_recipe(recipe: ManifestRecipe) -> None:
    """The parts of a recipe that go together, and the tasks' settings. Raises ManifestError."""
    if recipe.peer_questions >= recipe.questions:
        raise ManifestError("recipe.peer_questions must be below recipe.questions")
    for task in recipe.tasks:
        _check_printable("recipe.tasks", task.name)
        _check_plain(f"recipe.tasks: {task.name}", task.config, DEPTH_MAX)
    _check_plain("recipe.options", recipe.options, DEPTH_MAX)
    for name in OWN_OPTIONS:
        if name in recipe.options:
            raise ManifestError(
                f"recipe.options: {name} is for each node to set, no manifest sets it",
                "Do not join: it would decide what programs may do on this machine, which ones run, or whom it calls",
            )
    _check_printable("recipe.kind", recipe.kind)


def _check_plain(where: str, value: Any, depth: int) -> None:
    """Settings are texts, numbers, truth values, and lists and tables of these: what every reader encodes alike."""
    if depth == 0:
        raise ManifestError(f"{where}: the settings are nested too deep")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_plain(where, key, depth)
            _check_plain(where, inner, depth - 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_plain(where, inner, depth - 1)
    elif isinstance(value, str):
        _check_printable(where, value.replace("\n", ""))  # a prompt has lines
    elif isinstance(value, int):
        _check_integer(where, value)
    elif not isinstance(value, float) or not math.isfinite(value):
        raise ManifestError(f"{where}: {value!r} is no plain value")


def _check_integer(where: str, value: int) -> None:
    if not -INTEGER_MAX <= value <= INTEGER_MAX:
        raise ManifestError(f"{where}: an integer of more than 64 bits")
