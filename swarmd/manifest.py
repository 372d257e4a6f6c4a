"""A swarm's manifest: one signed TOML file with everything that a node must know to join. See docs/SWARMS.md.

- `read_manifest` parses a file strictly and verifies its digest and its signature; `make_config_text` makes a node's
  configuration from it and the node's own choices.
- Only keys that were added later have defaults (`recipe.options`, `recipe.revision`, `recipe.lora`,
  `average_weights_every`, a task's `curriculum`): changing a default would change the meaning of old files.
- Keys mean the same as in a node's configuration (configs/reference.toml). `recipe` holds those that must be equal on
  all nodes, because they decide what is learnt, or whether nodes can use each other's rollouts.
- Digest and signature are over the canonical form: msgpack with the keys of every map sorted, integers in their
  shortest form, floats of 64 bits. The signature covers everything in the manifest but the signature itself.
"""

import difflib
import hashlib
import math
import re
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomlkit
from tomlkit.items import Array, InlineTable, Item

from swarmd.config import (
    DIGEST,
    GENERATIONS_MAX,
    INTEGER_MAX,
    NUMBER_MAX,
    RPC_FORM,
    RPC_SCHEMES,
    Address,
    AtLeastOne,
    ChainShards,
    Config,
    Count,
    LoraConfig,
    Name,
    NotNegative,
    Positive,
    Revision,
    RoundConfig,
    Section,
    Share,
    describe_invalid,
    find_unknown_key,
    parse_config,
    usual_peer_questions,
)
from swarmd.core.values import Drive, Role
from swarmd.dht.identity.identity import Identity, is_peer_id
from swarmd.dht.identity.identity import verify as verify_signature
from swarmd.dht.wire.addresses import is_multiaddr
from swarmd.dht.wire.records import PROTOCOL
from swarmd.errors import LogWriteFailed, ManifestError, NotFoundError, OtherVersion, PathUnusable
from swarmd.file_kind import describe_file
from swarmd.files import advise_on_path_error, read_start, write_durably
from swarmd.toml_text import describe_line, parse_toml
from swarmd.training.models.source import AUTO, is_directory

FORMAT = 1
TASKS_MAX = 64
BOOTNODES_MAX = 32
MEMBERS_MAX = 512
RPC_MAX = 8
TEXT_LENGTH_MAX = 256  # of an address or a URL
# Options of kinds that each node sets for itself: how programs are confined, their limits, whom a node calls, and what
# it downloads. The manifest's creator does not decide these. Python packages named by a manifest are installed by each
# operator, see `swarmd.swarms.packages`.
OWN_OPTIONS = (
    "sandbox",
    "own_limits",
    "judge",
    "judge_model",
    "judge_s",
    "download_bytes",
    "openenv_url",
    "environment",
    "memory_bytes",
)
DEPTH_MAX = 8  # nesting of tables in a task's settings
UINT32_MAX = 2**32 - 1  # in the contract's policy
CREATED_AT_MAX = 253_402_300_799  # the last second of the year 9999

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_LENGTH_MAX)]
Title = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
SignatureText = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2}){64,1200}\Z")]  # 64 bytes; with RSA more
PolicyNumber = Annotated[int, msgspec.Meta(ge=0, le=UINT32_MAX)]
# A model that swarmd ships or downloads, a Hugging Face model id, or a directory distributed with the manifest: any
# other path could be a different model on each machine.
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
Model = Annotated[str, msgspec.Meta(pattern=rf"^(?!.*\.(?i:gguf)\Z)(\./{_PART}|{_PART}(/{_PART})?)\Z")]
HANDED_OUT = "./"  # prefix of such a directory's name
Members = Annotated[tuple[Text, ...], msgspec.Meta(max_length=MEMBERS_MAX)]


Membership = Literal["open", "allow-list", "invitation", "work"]


class ManifestTask(Section, frozen=True):
    name: Title
    weight: Positive
    config: dict[str, Any]
    curriculum: bool = False


class ManifestRecipe(Section, frozen=True):
    """What is trained and how, the same on every node; `digest` is the sha256 of the rest in canonical form."""

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
    learning_rate: Share
    beta: NotNegative
    clip_low: Positive
    clip_high: Positive
    format_reward: NotNegative
    share_groups: Count
    staleness_rounds: Count
    tasks: Annotated[tuple[ManifestTask, ...], msgspec.Meta(max_length=TASKS_MAX)]
    digest: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)  # of the kind; not in the digest if empty
    revision: Revision = ""  # of the model; not in the digest if empty
    lora: LoraConfig | None = None  # adapters; not in the digest if None


class ManifestRounds(Section, frozen=True):
    """Who opens and closes the rounds of a swarm without a chain, and when; keys as in `CoordinatorConfig`."""

    coordinator: Text  # peer id
    min_peers: AtLeastOne
    start_s: Positive
    stage_s: Positive
    quorum: Share
    rounds_max: Count


class ManifestChain(Section, frozen=True):
    """The contract that keeps the rounds; keys as in `ChainConfig`, the policy's as in docs/CONTRACT.md."""

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
    """The creator's signature, see `swarmd.dht.identity.identity`, in lower-case hex."""

    by: Text  # peer id
    value: SignatureText


class Manifest(Section, frozen=True):
    """The whole file; it has either `rounds` or `chain`."""

    format: int
    id: Name
    name: Title
    created_at: Annotated[int, msgspec.Meta(ge=0, le=CREATED_AT_MAX)]  # POSIX seconds
    creator: Text  # peer id, also of the swarm's coordinator
    membership: Membership
    members: Members  # allow-list of a swarm without a chain; a contract keeps its own
    bootnodes: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=BOOTNODES_MAX)]
    recipe: ManifestRecipe
    signature: Signature
    rounds: ManifestRounds | None = None
    chain: ManifestChain | None = None
    work_bits: Annotated[int, msgspec.Meta(ge=0, le=28)] = 0  # with membership "work"
    protocol: AtLeastOne = 1  # version of the protocol that members speak
    average_weights_every: Count = 0  # rounds, unless a node says otherwise; 0: never


def recipe_of(config: Config) -> ManifestRecipe:
    """The recipe in a node's configuration, without `OWN_OPTIONS`; its digest is still empty.

    Raises ManifestError for what a manifest cannot hold: a GGUF file, or settings that are not plain values.
    """
    training, model = msgspec.structs.asdict(config.training), config.training.model
    # A directory is distributed under its last path component.
    shared_model = f"{HANDED_OUT}{Path(model).expanduser().resolve().name}" if is_directory(model) else model
    shared = {name: training[name] for name in ManifestRecipe.__struct_fields__ if name in training}
    swarm = config.swarm
    tasks = [msgspec.structs.asdict(task) for task in swarm.tasks]
    content = {
        **shared,
        "model": shared_model,
        "kind": swarm.kind,
        "stages": swarm.stages,
        "tasks": tasks,
        "options": {name: value for name, value in swarm.options.items() if name not in OWN_OPTIONS},
        "digest": "",
        "peer_questions": usual_peer_questions(config.training),  # "auto" is a choice of each node
        "lora": config.training.lora if config.training.lora.rank else None,
    }
    try:
        recipe = msgspec.convert(content, ManifestRecipe)
    except msgspec.ValidationError as error:
        if "$.model" in str(error):
            raise ManifestError(
                f"no manifest can name the model {model}",
                "Name a model directory that is there, a Hugging Face id, or swarmd's name for a model",
            ) from error
        raise ManifestError(f"the recipe cannot be shared: {error}", "Correct [training] and [swarm]") from error
    check_recipe(recipe)
    return recipe


def check_form(manifest: Manifest) -> None:
    """Check what the types cannot express. Raises ManifestError, which names the key."""
    if (manifest.rounds is None) == (manifest.chain is None):
        raise ManifestError("a manifest has either [rounds], for a swarm without a chain, or [chain]", _FETCH)
    _check_printable("name", manifest.name)
    if manifest.protocol != PROTOCOL:
        raise OtherVersion.from_numbers("the manifest", "protocol", manifest.protocol, PROTOCOL)
    if manifest.chain is not None and manifest.membership in ("invitation", "work"):
        raise ManifestError(
            "membership: on a chain the contract's registration and allow-list decide", 'Write membership = "open"'
        )
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
        _check_printable("chain.rpc", url)
        if not url.startswith(RPC_SCHEMES):
            raise ManifestError(f"chain.rpc: {url.split(':')[0]!r} is not a scheme of a chain's node", RPC_FORM)


def _check_averaging(manifest: Manifest) -> None:
    """Check that averaged weights have one architecture and come only from admitted peers. Raises ManifestError."""
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
            f'average_weights_every does not go with membership = "{manifest.membership}": anyone who comes could put '
            "anything into everybody's model",
            "Make a swarm with --closed or --invited; elsewhere a node sets training.average_weights_every for itself",
        )


def _check_rounds(manifest: Manifest, rounds: ManifestRounds) -> None:
    if rounds.coordinator != manifest.creator:
        raise ManifestError("rounds.coordinator is not the creator, whose node opens and closes the rounds", _FETCH)
    if bool(manifest.work_bits) != (manifest.membership == "work"):
        raise ManifestError(
            f'work_bits does not go with membership = "{manifest.membership}"', 'It goes with membership = "work" alone'
        )
    if bool(manifest.members) != (manifest.membership == "allow-list"):
        raise ManifestError(
            f'members does not go with membership = "{manifest.membership}"',
            'It goes with membership = "allow-list" alone',
        )


def _check_peers(key: str, peers: tuple[str, ...]) -> None:
    for peer in peers:
        if not is_peer_id(peer):
            raise ManifestError(f"{key}: {peer!r} is not a peer id", "`swarmd identity show` prints a node's")


def check_bootnode(address: str) -> None:
    """Raise ManifestError unless `address` is a multiaddr that ends in /p2p/<peer id>."""
    place, _, peer = address.rpartition("/p2p/")
    _check_printable("bootnodes", address)
    if not is_multiaddr(place) or not is_peer_id(peer):
        fix = "Write for example /ip4/192.0.2.1/tcp/38331/p2p/12D3Koo..."
        raise ManifestError(f"bootnodes: {address!r} is not the address of a node", fix)


def _check_printable(key: str, text: str) -> None:
    if not text.isprintable():
        raise ManifestError(
            f"{key}: {text!r} has characters that cannot be printed", "Leave out line breaks and control characters"
        )


def check_recipe(recipe: ManifestRecipe) -> None:
    """Check settings of a recipe that depend on each other, and the tasks' settings. Raises ManifestError."""
    if recipe.peer_questions >= recipe.questions:
        raise ManifestError(
            f"recipe.peer_questions ({recipe.peer_questions}) must be below recipe.questions ({recipe.questions})",
            "At least one question of every step is a node's own: make a swarm with fewer training.peer_questions",
        )
    for task in recipe.tasks:
        _check_printable("recipe.tasks", task.name)
        _check_plain(f"recipe.tasks: {task.name}", task.config, DEPTH_MAX)
    _check_plain("recipe.options", recipe.options, DEPTH_MAX)
    for name in OWN_OPTIONS:
        if name in recipe.options:
            raise ManifestError(
                f"recipe.options: {name} is for each node to set, no manifest sets it",
                "Do not join: it would decide what programs may do on this machine, or whom it calls",
            )
    _check_printable("recipe.kind", recipe.kind)
    if recipe.model.startswith(HANDED_OUT) and not recipe.revision.startswith(DIGEST):
        raise ManifestError(
            f"recipe.revision does not name the weights of {recipe.model}, a directory that is handed out",
            "Have `swarmd swarm new` make the manifest: it takes their digest",
        )


def _check_plain(where: str, value: Any, depth: int) -> None:
    """Check that settings consist of texts, numbers, booleans, lists and tables, which all nodes encode alike."""
    if depth == 0:
        raise ManifestError(f"{where}: the settings are nested more than {DEPTH_MAX} deep", "Write them flatter")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_plain(where, key, depth)
            _check_plain(where, inner, depth - 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_plain(where, inner, depth - 1)
    elif isinstance(value, str):
        _check_printable(where, value.replace("\n", ""))  # a prompt may have several lines
    elif isinstance(value, int):
        if not -INTEGER_MAX <= value <= INTEGER_MAX:
            raise ManifestError(f"{where}: {value} has more than 64 bits", "Write a smaller number")
    elif not isinstance(value, float) or not math.isfinite(value):
        raise ManifestError(f"{where}: {value!r} is not a plain value", "Write a text, a finite number, true or false")


DOMAIN = b"swarmd-manifest-v1\x00"

_FETCH = "Get the file again from the swarm's creator"
_NAME_IT = "Name the swarm.toml that the swarm's creator handed out"
_encoder = msgspec.msgpack.Encoder(order="sorted")


def recipe_digest(recipe: ManifestRecipe) -> str:
    """The sha256 of the recipe without its digest, lower-case hex."""
    return hashlib.sha256(_encode_canonical(recipe, "digest")).hexdigest()


def signed_message(manifest: Manifest) -> bytes:
    return DOMAIN + _encode_canonical(manifest, "signature")


def _encode_canonical(value: msgspec.Struct, left_out: str) -> bytes:
    content: dict[str, Any] = msgspec.to_builtins(value)
    content.pop(left_out)
    return _encoder.encode(content)


def sign_manifest(manifest: Manifest, identity: Identity) -> Manifest:
    """Recompute the recipe's digest and sign the manifest as its creator.

    Raises ManifestError if the identity is not the creator's, or the manifest is malformed.
    """
    if identity.peer_id != manifest.creator:
        raise ManifestError(
            f"{identity.peer_id} is not the creator, {manifest.creator}: it cannot sign the manifest",
            "Use the creator's identity",
        )
    recipe = msgspec.structs.replace(manifest.recipe, digest=recipe_digest(manifest.recipe))
    sealed = msgspec.structs.replace(manifest, recipe=recipe)
    value = identity.sign(signed_message(sealed)).hex()
    sealed = msgspec.structs.replace(sealed, signature=Signature(identity.peer_id, value))
    check_form(sealed)
    try:
        return msgspec.convert(msgspec.to_builtins(sealed), Manifest)  # sign only what can be read back
    except msgspec.ValidationError as error:
        raise ManifestError(f"no manifest can say this: {error}", "Choose a value within these bounds") from error


def verify(manifest: Manifest) -> None:
    """Raise ManifestError unless the recipe matches its digest and the creator signed this manifest."""
    try:
        check_form(manifest)
    except ManifestError as error:
        raise ManifestError(error.message, _FETCH) from error
    if recipe_digest(manifest.recipe) != manifest.recipe.digest:
        raise ManifestError("the recipe does not have its digest: one of them was altered", _FETCH)
    if manifest.signature.by != manifest.creator:
        raise ManifestError(f"the creator is {manifest.creator}, but {manifest.signature.by!r} signed", _FETCH)
    value = bytes.fromhex(manifest.signature.value)
    if not verify_signature(manifest.creator, value, signed_message(manifest)):
        raise ManifestError("the signature is not the creator's: the manifest was altered after it was signed", _FETCH)


LINE_LENGTH = 80  # a longer list has each entry on its own line


def add_comment(value: Any, comment: str) -> Item:
    """A TOML item of the value, with a trailing comment unless that is empty."""
    item: Item = tomlkit.item(to_inline_toml(value))
    if comment:
        item.comment(comment)
    return item


def to_inline_toml(value: Any) -> Any:
    """Convert a value to TOML, with lists and tables inline."""
    if isinstance(value, dict):
        table: InlineTable = tomlkit.inline_table()
        for key, entry in value.items():
            table.add(key, to_inline_toml(entry))
        return table
    if isinstance(value, list | tuple):
        array: Array = tomlkit.array()
        for entry in value:
            array.append(to_inline_toml(entry))
        return array.multiline(len(array.as_string()) > LINE_LENGTH)
    return value


MANIFEST_BYTES_MAX = 64 * 1024

_HEAD = (
    "The manifest of a swarm. Whoever has it can join:",
    "    swarmd join FILE",
    "Its creator signed it: a change of any value makes it worthless. docs/SWARMS.md explains every key.",
)
_COMMENTS = {
    "creator": "peer id; its signature stands below",
    "members": "peer ids that may take part, in a swarm without a chain; a contract keeps its own list",
    "work_bits": "zero bits of the work that each identity does once",
    "protocol": "version of the protocol that members speak",
    "average_weights_every": "rounds between means of a node's weights and members', unless the node says otherwise",
    "bootnodes": "nodes to join through",
    "digest": "sha256 of the recipe in canonical form",
    "from_block": "the contract was created in this block",
    "rpc": "hints: public endpoints of the chain",
    "min_submissions": "reports of a stage after which anyone may advance; 0: off",
    "shards": "parts that records of a stage are divided into; 0 in a small swarm",
    "max_stage_s": "seconds of a stage after which anyone may advance; 0: off",
}


def read_manifest(path: Path) -> Manifest:
    """Read and verify a manifest. Raises NotFoundError, or ManifestError if it is unreadable or was altered."""
    try:
        raw = read_start(path, MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError as error:
        if found := re.match(r"(https?):/(?!/)", str(path)):  # as a path, a URL has lost a slash
            url = f"{found[1]}://{str(path)[found.end() :]}"
            fix = f"Fetch it first, for example with `curl -O {url}`, and name the file"
            raise NotFoundError(f"{url} is a URL, and a manifest is a file here", fix) from error
        near = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.toml")], n=1)
        fix = f"Did you mean {path.parent / near[0]}?" if near else "The swarm's creator has it"
        raise NotFoundError(f"there is no manifest {path}", fix) from error
    except IsADirectoryError as error:
        inner = path / "swarm.toml"
        fix = f"Name the file: {inner}" if inner.is_file() else _NAME_IT
        raise ManifestError(f"{path} is a directory, not a manifest", fix) from error
    except OSError as error:
        fix = advise_on_path_error(error, path) if isinstance(error, PermissionError) else _NAME_IT
        raise ManifestError(f"the manifest {path} cannot be read: {error.strerror}", fix) from error
    if len(raw) > MANIFEST_BYTES_MAX:
        fix = describe_file(path)[1] or _NAME_IT
        raise ManifestError(f"{path} is larger than a manifest may be, {MANIFEST_BYTES_MAX} bytes", fix)
    try:
        manifest = parse_manifest(raw.decode("utf-8-sig"))
        verify(manifest)
    except UnicodeDecodeError as error:
        what, use = describe_file(path)
        raise ManifestError(f"{path} is {what}, not a manifest: it is not UTF-8 text", use or _NAME_IT) from error
    except (ManifestError, OtherVersion) as error:
        raise type(error)(f"{path}: {error.message}", error.fix) from error
    return manifest


def parse_manifest(text: str) -> Manifest:
    """The manifest in a text, not verified yet. Raises ManifestError, which names the key."""
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise ManifestError(f"it is not valid TOML: {error}", describe_line(text, str(error))) from error
    if "format" not in tables and {"role", "training", "dht"} & tables.keys():
        raise ManifestError(
            "it is a node's configuration, not a manifest",
            "Name the swarm.toml that `swarmd swarm new` wrote beside it",
        )
    if "format" not in tables:
        has = f"it has {', '.join(list(tables)[:3])}, and no `format`" if tables else "it is empty"
        raise ManifestError(f"it is not a manifest: {has}", "Name the swarm.toml that the swarm's creator handed out")
    if tables["format"] != FORMAT:
        raise ManifestError(
            f"its format is {tables['format']!r}, this version of swarmd reads {FORMAT}",
            "Use a newer swarmd if the manifest is newer; otherwise the file is not a manifest",
        )
    if unknown := find_unknown_key(tables, Manifest):
        raise ManifestError(f"unknown key {unknown[0]!r}", unknown[1])
    try:
        return msgspec.convert(tables, Manifest)
    except msgspec.ValidationError as error:
        raise ManifestError(describe_invalid(error, Manifest)[0], _FETCH) from error
    except RecursionError as error:
        raise ManifestError("its tables are nested too deep", _FETCH) from error


def render_manifest(manifest: Manifest) -> str:
    """Render the manifest as TOML. Raises ManifestError if readers would refuse it as too large."""
    document = tomlkit.document()
    for line in _HEAD:
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    content = msgspec.to_builtins(manifest)
    signature = content.pop("signature")
    for key, value in (*content.items(), ("signature", signature)):
        if isinstance(value, dict):
            table = tomlkit.table()
            for inner, part in value.items():
                _add_key(table, inner, part)
            document.add(key, table)
        elif value is not None:
            _add_key(document, key, value)
    text = tomlkit.dumps(document)
    if len(text.encode("utf-8")) > MANIFEST_BYTES_MAX:
        raise ManifestError(f"the manifest would be larger than {MANIFEST_BYTES_MAX} bytes", "List fewer members")
    return text


def _add_key(place: Any, key: str, value: Any) -> None:
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value)) if key == "created_at" else ""
    place.add(key, add_comment(value, made or _COMMENTS.get(key, "")))


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the file atomically.

    Raises ManifestError if it would be too large, and PathUnusable.
    """
    text = render_manifest(manifest).encode("utf-8")
    try:
        write_durably(path, text)
    except LogWriteFailed as error:
        raise PathUnusable(error.message, "Make room for it, or its directory writable, and try again") from error


AVERAGED_WITH = ("coordinator", "credited")  # default of training.weights_from if the manifest enables averaging
TRAIN_STAGES = 2.0  # stage durations that a slow node may spend on training

_NODE_COMMENTS = {  # by dotted key
    "name": "shown to others on the leaderboard",
    "data": "log, rollouts, checkpoints and identity lie beside this file",
    "swarm.options": "settings of the kind",
    "swarm.coordinator": "peer id whose announcements count: the creator's node",
    "dht.listen": "port 0 takes any free one",
    "dht.announce": "addresses that others reach this node under, if not those above",
    "dht.bootstrap": "from the manifest, and from the contract where there is one",
    "dht.admission": "what others need to write",
    "dht.invitation": "this node's own; `swarmd swarm invite` makes them",
    "dht.members": "peer ids that may write; empty: everybody, or whom the contract admits",
    "dht.peer": "the identity must be this one; none is ever made in its place",
    "round.train_s": "longest a stage may train on this node",
    "coordinator.stage_s": "a stage's longest time",
    "training.offer_weights_every": "rounds; those who come late begin from them",
    "training.average_weights_every": "rounds, as the manifest has it; 0: this node's weights are its own alone",
    "training.weights_from": "whose weights are averaged with: several together can put anything into its model",
    "training.catch_up": "after rounds missed, begin from the coordinator's weights where they are better here",
    "chain.rpc": "best first; file:PATH names a file of one URL a line",
    "chain.from_block": "the contract was created in this block",
    "chain.keystore": "encrypted key of the account, relative to the data directory",
    "chain.passphrase": "file with its passphrase, likewise",
    "chain.drive": '"policy": this node advances the swarm when the contract allows it',
    "chain.stage_s": "a stage's longest time",
    "chain.proxy": "the signer that submits for this node",
}


class NodeChoice(msgspec.Struct, frozen=True):
    """A node's own choices for its configuration; keys as in `swarmd.config`."""

    peer: str
    name: str = ""
    role: Role = "follower"
    data: str = "."
    identity: str = ""  # path of its key file, if outside the data directory
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    announce: tuple[str, ...] = ()
    bootnodes: tuple[str, ...] = ()  # in addition to the manifest's
    invitation: str = ""  # if the swarm asks for one
    options: dict[str, Any] = {}  # keys of [swarm.options] that are not in the recipe
    training: dict[str, Any] = {}  # keys of [training] that are not in the recipe
    rpc: tuple[str, ...] = ()
    sender: Literal["wallet", "proxy", "none"] = "none"
    keystore: str = "account.json"
    passphrase: str = "account.pass"
    drive: Drive = "policy"
    signer: str = ""  # the signer proxy's URL; with the organisation and the account it signs for
    org: str = ""
    account: str = ""
    token: str = ""


def make_node_config(manifest: Manifest, choice: NodeChoice) -> Config:
    """The configuration that `make_config_text` writes. Raises ConfigError if the choice does not fit."""
    return parse_config(make_config_text(manifest, choice), f"the configuration of {choice.peer}")


def make_config_text(manifest: Manifest, choice: NodeChoice) -> str:
    """A configuration file for a node of the swarm, with comments."""
    document = tomlkit.document()
    for line in (
        f'A node of the swarm "{manifest.name}", made from its manifest. Change what is this node\'s own: name,',
        "addresses, endpoints, device. What comes from the recipe is the same on every node.",
        "`swarmd config show` prints all other keys.",
        "",
        "    swarmd run --config config.toml",
    ):
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    for key, value in (("name", choice.name), ("role", choice.role), ("data", choice.data)):
        document.add(key, add_comment(value, _NODE_COMMENTS.get(key, "")))
    for name, (comment, content) in _tables(manifest, choice).items():
        document.add(name, _make_table(name, comment, content))
    return tomlkit.dumps(document)


def _tables(manifest: Manifest, choice: NodeChoice) -> dict[str, tuple[str, dict[str, Any]]]:
    """The file's tables in order, each with its comment."""
    recipe = msgspec.to_builtins(manifest.recipe)
    recipe.pop("digest")
    shared = {name: recipe.pop(name) for name in ("kind", "stages", "tasks", "options") if name in recipe}
    if choice.options:
        shared["options"] = {**shared.get("options", {}), **choice.options}
    coordinator = {} if choice.role == "coordinator" else {"coordinator": manifest.creator}
    stage_s = manifest.rounds.stage_s if manifest.rounds else float(manifest.chain.max_stage_s if manifest.chain else 0)
    tables = {
        "swarm": ("from the manifest", {"id": manifest.id, **coordinator, **shared}),
        "dht": ("", _dht_settings(manifest, choice)),
        "round": ("", {"train_s": min(max(RoundConfig().train_s, TRAIN_STAGES * stage_s), NUMBER_MAX)}),
    }
    if manifest.rounds is not None and choice.role == "coordinator":
        rounds = msgspec.to_builtins(manifest.rounds)
        rounds.pop("coordinator")
        tables["coordinator"] = ("how this node opens and closes the rounds", rounds)
    if manifest.chain is not None:
        tables["chain"] = ("from the manifest, but for endpoints and account", _chain_settings(manifest.chain, choice))
    training = recipe | _weights_settings(manifest, choice) | choice.training
    tables["training"] = ("the recipe; device, threads and seed are this node's own", training)
    return tables


def _weights_settings(manifest: Manifest, choice: NodeChoice) -> dict[str, Any]:
    """Settings for sharing weights: the coordinator offers its own, and nodes that fall behind fetch them.

    If the manifest enables averaging, all nodes offer their weights, and trust members that have credit.
    """
    if manifest.rounds is None:
        return {}
    content: dict[str, Any] = {} if choice.role == "coordinator" else {"catch_up": "weights"}
    if choice.role == "coordinator" or manifest.average_weights_every:
        content["offer_weights_every"] = 1
    if manifest.average_weights_every:
        content["average_weights_every"] = manifest.average_weights_every
        content["weights_from"] = list(AVERAGED_WITH)
    return content


def _dht_settings(manifest: Manifest, choice: NodeChoice) -> dict[str, Any]:
    others = [a for a in (*manifest.bootnodes, *choice.bootnodes) if not a.endswith(f"/p2p/{choice.peer}")]
    content: dict[str, Any] = {
        "listen": list(choice.listen),
        "announce": list(choice.announce),
        "bootstrap": list(dict.fromkeys(others)),
        "members": list(manifest.members),
        "peer": choice.peer,
    }
    if manifest.membership in ("invitation", "work"):
        content["admission"] = manifest.membership
    if manifest.membership == "work":
        content["work_bits"] = manifest.work_bits
    own = {"invitation": choice.invitation, "identity": choice.identity}
    return content | {key: value for key, value in own.items() if value}


def _chain_settings(chain: ManifestChain, choice: NodeChoice) -> dict[str, Any]:
    content: dict[str, Any] = {
        "rpc": list(choice.rpc),
        **{key: getattr(chain, key) for key in ("chain_id", "contract", "from_block", "depth")},
        "sender": choice.sender,
    }
    if choice.sender == "wallet":
        content |= {"keystore": choice.keystore, "passphrase": choice.passphrase}
    content["drive"] = choice.drive
    if chain.max_stage_s:
        content["stage_s"] = min(float(chain.max_stage_s), NUMBER_MAX)
    content |= {"reward_scale": chain.reward_scale, "winners": chain.winners}
    if chain.shards:
        content["shards"] = chain.shards
    if choice.sender == "proxy":
        proxy = {"url": choice.signer, "org": choice.org, "account": choice.account, "token": choice.token}
        content["proxy"] = {key: value for key, value in proxy.items() if value}
    return content


def _make_table(name: str, comment: str, content: dict[str, Any], nests: bool = True) -> Any:
    """A TOML table; its sub-tables get their own headers if `nests`, deeper ones are inline."""
    table = tomlkit.table()
    if comment:
        table.comment(comment)
    for key, value in sorted(content.items(), key=lambda item: nests and isinstance(item[1], dict)):
        about = _NODE_COMMENTS.get(f"{name}.{key}", "")
        inner = _make_table(f"{name}.{key}", about, value, False) if nests and isinstance(value, dict) else None
        table.add(key, inner or add_comment(value, about))
    return table
