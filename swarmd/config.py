"""A node's configuration: one TOML file, checked strictly, every key documented in configs/.

- Unknown keys, wrong types and values out of range are errors that name the key and its line. Settings that depend on
  each other are checked as well (`check_combined_settings`).
- `make_core_settings` gives the settings that the core depends on; every start writes them into the log.
"""

import difflib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec

from swarmd.bounds import DECODE_ERRORS, WORD_MAX, WORD_MIN
from swarmd.core import values
from swarmd.errors import ConfigError, NotFoundError
from swarmd.file_kind import OTHER, describe_file
from swarmd.files import advise_on_path_error
from swarmd.toml_text import check_name_lengths, describe_line, find_line_of_message, parse_toml, read_toml

if TYPE_CHECKING:
    from apprise import Apprise


NUMBER_MAX = 1e9  # some 30 years in seconds; finite, so every wait ends
Positive = Annotated[float, msgspec.Meta(gt=0, le=NUMBER_MAX)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
INTEGER_MAX = 2**63 - 1  # what msgpack and every database can store
GENERATIONS_MAX = 64  # completions of a group that peers accept
Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]
# A type's description says how to write a text that must match a pattern; the error for a bad one quotes it.
_HEX = "as 0x and 40 hex digits, the address that `swarmd swarm status` shows"
Address = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{40}\Z", description=_HEX)]
OptionalAddress = Annotated[str, msgspec.Meta(pattern=r"^(0x[0-9a-fA-F]{40})?\Z", description=_HEX)]
DIGEST = "sha256:"  # prefix of a digest of weights, given in place of a revision
_REVISION = "as a branch, tag or commit of the Hub, or as sha256: and 64 hex digits"
Revision = Annotated[
    str,
    msgspec.Meta(pattern=rf"^([A-Za-z0-9][A-Za-z0-9._/-]{{0,127}}|{DIGEST}[0-9a-f]{{64}})?\Z", description=_REVISION),
]
_INVITATION = "as `swarmd swarm invite` printed it, all of it"
InvitationText = Annotated[str, msgspec.Meta(max_length=400, pattern=r"^[A-Za-z0-9_=-]*\Z", description=_INVITATION)]
ChainShards = Literal[0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
_NAME = "as up to 64 letters, digits, points, - and _, a letter or digit first"
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z", description=_NAME)]
_TRUSTED = 'as "coordinator", "credited" or a peer id'
TrustedPeer = Annotated[
    str,
    msgspec.Meta(pattern=r"^(coordinator|credited|[1-9A-HJ-NP-Za-km-z]{32,128})\Z", description=_TRUSTED),
]

AUTO = "auto"
AUTO_PARTS = 4  # one group in this many comes from peers until their cost is known
SenderKind = Literal["wallet", "proxy", "none"]
Tracker = Literal["tensorboard", "wandb", "trackio"]
Device = Literal["auto", "cpu", "cuda", "mps", "xpu"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Optimizer = Literal["adamw", "adamw_8bit"]
PeerLoss = Literal["positive", "success-gated"]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all tables of a configuration, and of structs of `swarm.options`: frozen, and refuses unknown keys."""


class TaskConfig(Section, frozen=True):
    """`[[swarm.tasks]]`: one task of the mixture, its weight and settings, and whether its level follows results."""

    name: str
    weight: Positive = 1.0
    config: dict[str, Any] = {}
    curriculum: bool = False  # move through the task's levels as the results improve or worsen


class SwarmConfig(Section, frozen=True):
    """Which swarm this node belongs to and what is trained there."""

    id: Name
    coordinator: str = ""  # its peer id; empty on the coordinator itself
    kind: str = "digits"  # see swarmd.swarms.registry
    stages: AtLeastOne = 1  # in a round; must be what the kind has
    tasks: tuple[TaskConfig, ...] = ()  # empty: the kind's own mixture
    options: dict[str, Any] = {}  # settings of the kind, which checks them itself


class DhtConfig(Section, frozen=True):
    """The node's place in the DHT."""

    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    announce: tuple[str, ...] = ()  # multiaddrs for others, if those to listen on cannot be reached from outside
    bootstrap: tuple[str, ...] = ()  # multiaddrs with /p2p/<peer id>; dialled until one answers
    client_mode: bool = False  # dial only: behind a NAT without a relay
    auto_relay: bool = False
    poll_s: Positive = 5.0  # between polls of the DHT, a fall-back for pushed hints
    gather_peers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 32  # most to fetch from, if sharded
    record_s: Annotated[float, msgspec.Meta(ge=5, le=3600)] = 900.0  # a record's lifetime; renewed three times in it
    memory_bytes_max: Annotated[int, msgspec.Meta(ge=2**25, le=2**40)] = 2**29  # network worker; p2pd: half
    members: tuple[str, ...] = ()  # peer ids that may write; empty: all
    admission: Literal["open", "invitation", "work"] = "open"  # what other peers need to write
    work_bits: Annotated[int, msgspec.Meta(ge=0, le=28)] = 16  # zero bits of a proof of work
    invitation: InvitationText = ""  # this node's invitation, as `swarmd swarm invite` prints it
    identity: str = "identity.key"  # relative to the data directory
    peer: str = ""  # peer id that the identity must have; if set, no identity is generated


class RoundConfig(Section, frozen=True):
    """How this node behaves in rounds; keys mean the same as in `swarmd.core.events.Settings`."""

    behind: values.BehindPolicy = "finish-stage"
    train_s: Positive = 600.0


class CoordinatorConfig(Section, frozen=True):
    """How the coordinator opens and closes stages; keys as in `swarmd.core.values.CoordinatorSettings`."""

    min_peers: AtLeastOne = 1
    start_s: Positive = 60.0
    stage_s: Positive = 300.0
    quorum: Share = 1.0
    rounds_max: Count = 0
    when_alone: values.AlonePolicy = "hold"


class ProxyConfig(Section, frozen=True):
    """A signer proxy that submits for this node: RL Swarm's login server or `swarmd signer`."""

    url: str = "http://127.0.0.1:3000/api"
    org: str = ""  # organisation id of the account at the proxy
    account: OptionalAddress = ""  # the account's address, if known, to recognise this node's own registration
    token: str = ""  # bearer token: a file, relative to the data directory, or credential:NAME


class FeesConfig(Section, frozen=True):
    """What a transaction may cost. Nothing above these bounds is ever signed."""

    max_gwei: Positive = 200.0  # highest price per unit of gas, tip included
    tip_gwei: NotNegative = 1.0  # priority fee, on chains with EIP-1559
    stuck_s: Positive = 60.0  # a transaction that is not mined by then is replaced with a higher fee
    day_coins_max: NotNegative = 0.0  # the most to sign for in a UTC day, in the chain's coin; 0: no bound
    legacy: bool = False  # the chain has no base fee (before EIP-1559)


class ChainConfig(Section, frozen=True):
    """The contract that keeps the rounds, and how to reach it."""

    rpc: tuple[str, ...]  # ws(s), http(s) URLs of one chain, best first; or file:PATH, credential:NAME (one a line)
    chain_id: AtLeastOne
    contract: Address
    from_block: Count = 0  # block in which the contract was created
    depth: Count = 2  # blocks on top of a block before it counts as confirmed
    finality: Literal["depth", "safe", "finalized"] = "depth"  # confirmation: depth, or the chain's own tags
    poll_s: Positive = 2.0  # between polls if there is no subscription
    sender: SenderKind = "wallet"
    keystore: str = "account.json"  # encrypted key of the account, relative to the data directory, or credential:NAME
    passphrase: str = "account.pass"  # file that holds its passphrase, likewise
    drive: values.Drive = "policy"
    stage_s: Positive = 300.0
    reward_scale: AtLeastOne = 1000
    winners: Annotated[int, msgspec.Meta(ge=0, le=100)] = 1
    votes: values.Votes = "judged"
    shards: ChainShards = 0  # DHT keys that the records of a stage, and memberships, are spread over; from the manifest
    fees: FeesConfig = FeesConfig()
    proxy: ProxyConfig = ProxyConfig()


class LoraConfig(Section, frozen=True):
    """Low-rank adapters in place of training all weights (extra `lora`)."""

    rank: Count = 0  # 0: no adapters
    alpha: AtLeastOne = 16
    targets: tuple[str, ...] = ()  # names of layers; empty: chosen by the architecture


class VllmConfig(Section, frozen=True):
    """Generation by vLLM: in the trainer's process (extra `vllm`), or by a server; see docs/MODELS.md."""

    mode: Literal["off", "auto", "colocate", "server"] = "off"  # auto: colocate if it can be used on a CUDA device
    url: str = "http://127.0.0.1:8000"  # of `vllm serve`, in server mode


class ReferenceConfig(Section, frozen=True):
    """Where the KL term's reference log-probabilities come from, if beta is above 0."""

    url: str = ""  # of `swarmd reference-server`; empty: a copy of the first weights in this process
    token: str = ""  # bearer token: a file, relative to the data directory, or credential:NAME


class TrainingConfig(Section, frozen=True):
    """`[training]`: the model and how GRPO trains it. Lengths are in tokens, rewards and weights plain numbers."""

    model: str = "embedded"  # shipped, "smollm2", "auto", a Hugging Face model id, a model directory or GGUF file
    revision: Revision = ""  # branch, tag or commit on the Hub; of a directory sha256:DIGEST of its weights; empty: any
    pool: tuple[str, ...] = ()  # candidates for "auto": a category of the table, ids, directories; empty: "general"
    device: Device = "auto"
    dtype: Dtype = "auto"
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    quantization: Literal["none", "8bit", "4bit"] = "none"  # bitsandbytes; only together with adapters
    lora: LoraConfig = LoraConfig()
    vllm: VllmConfig = VllmConfig()
    reference: ReferenceConfig = ReferenceConfig()
    memory_bytes_max: Count = 0  # of the trainer, swap included; above it the process is replaced; 0: no bound
    processes: AtLeastOne = 1  # trainer processes, one for each accelerator, through accelerate
    accelerate: str = ""  # ddp, fsdp, zero2, zero3 (configs/accelerate/), or an accelerate file; empty: ddp
    threads: Count = 0  # torch threads; 0: one for small models, else torch's default
    steps: AtLeastOne = 40  # optimiser steps in a stage
    questions: AtLeastOne = 16  # questions (groups) in a step
    generations: Annotated[int, msgspec.Meta(ge=2, le=GENERATIONS_MAX)] = 8  # completions of a question (G)
    overlap: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0  # steps generated ahead, with the previous weights
    own_questions: Count = 0  # own groups generated in a step; 0: as many as peers' groups leave room for
    own_questions_max: Count = 0  # upper bound when own groups have zero variance; 0: `own_questions`
    peer_questions: Count | Literal["auto"] = 4  # peers' groups in a step at most; auto: by their cost
    warm_up: Literal["none", "form"] = "none"  # form: before the first step, train the model on the answer format
    completion_tokens: AtLeastOne = 10
    prompt_tokens: AtLeastOne = 512
    temperature: Positive = 1.0
    learning_rate: Share = 3e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Count = 10  # optimiser steps, over all stages, of learning-rate warm-up
    schedule_steps: Count = 0  # optimiser steps, over all stages, until a decaying learning rate reaches its end
    optimizer: Optimizer = "adamw"
    beta: NotNegative = 0.0  # KL weight; 0 needs no reference model
    clip_low: Positive = 0.2
    clip_high: Positive = 0.28
    format_reward: NotNegative = 0.2
    peer_loss: PeerLoss = "positive"  # success-gated: peers' groups only for questions that this node always fails
    peer_floor: Share = 0.1  # mask peers' tokens less likely here than this share of exp(-entropy)
    replay_questions: Count = 0  # earlier groups that may replace those with zero variance, at most
    micro_questions: Count = 0  # groups in one forward and backward pass at most; 0: as many as fit into memory
    gradient_checkpointing: Literal["auto", "on", "off"] = "auto"
    share_groups: Count = 16  # groups of a stage published for peers
    staleness_rounds: Count = 1  # peers' rollouts older than this are refused; 0: suits rounds of several stages
    held_out_questions: Count = 64  # per task, for the evaluation after a stage; 0 for none
    held_out_every: AtLeastOne = 1  # rounds between evaluations
    offer_weights_every: Count = 0  # rounds between offers of the weights to peers; 0 for none
    catch_up: Literal["none", "weights"] = "none"  # after an absence: continue from a peer's weights if they are better
    average_weights_every: Count = 0  # rounds between tries to average own weights with peers'; 0: never
    weights_from: tuple[TrustedPeer, ...] = ("coordinator",)  # "credited": peers with credit; or peer ids
    seed: Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)] = 0


class HubConfig(Section, frozen=True):
    """Pushing the model to the Hugging Face Hub."""

    repo: str = ""  # "user/name", or "user/" to derive the name from model and node; empty: nothing is pushed
    every: AtLeastOne = 1  # rounds between pushes
    token: str = ""  # file with the token, relative to the data directory, or credential:NAME


class ResultsConfig(Section, frozen=True):
    """Where a node's metrics and models go besides its log."""

    trackers: tuple[Tracker, ...] = ("tensorboard",)  # all write below the data directory, never to the network
    hub: HubConfig = HubConfig()


class WorkersConfig(Section, frozen=True):
    """Supervision of the worker processes."""

    silent_s: Positive = 60.0  # a worker that answers no ping for this long is killed and restarted
    restarts_max: AtLeastOne = 8  # failures with outside causes, such as the OOM killer, do not count
    stop_s: Positive = 10.0  # longest time for an orderly stop


class StorageConfig(Section, frozen=True):
    """Bounds on what the node keeps on disk."""

    # Whatever the bound, the log keeps its newest events and one snapshot of the state.
    log_bytes_max: Annotated[int, msgspec.Meta(ge=1024 * 1024, le=INTEGER_MAX)] = 2 * 1024 * 1024 * 1024
    blob_bytes_max: AtLeastOne = 512 * 1024 * 1024
    free_bytes_min: Count = 32 * 1024 * 1024  # below this, plus room for a checkpoint, the node pauses; 0: never


class WebConfig(Section, frozen=True):
    """The node's page, HTTP API and metrics, served by the web process."""

    listen: str = ""  # HOST:PORT; empty: nothing is served
    token: str = ""  # bearer token: a file, or credential:NAME; needed where other machines reach the address
    hosts: tuple[str, ...] = ()  # further host names that requests may use, as behind a proxy


class NotifyConfig(Section, frozen=True):
    """Messages when a node's health changes, once for each change."""

    urls: tuple[str, ...] = ()  # of services that Apprise knows; file:PATH or credential:NAME holds one a line
    command: tuple[str, ...] = ()  # program and arguments; the message comes on stdin
    after_s: Positive = 60.0  # a change is reported if it lasts this long
    heartbeat_url: str = ""  # pinged every minute while healthy, <url>/fail if not; file:PATH, credential:NAME


class LogsConfig(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"  # auto: text on a terminal, JSON otherwise


class Config(Section, frozen=True):
    """The whole file."""

    swarm: SwarmConfig
    name: str = ""  # shown to others; the peer id is what counts
    role: values.Role = "follower"
    data: str = "data"  # directory of log, blobs, checkpoints, identity; relative to the file
    dht: DhtConfig = DhtConfig()
    round: RoundConfig = RoundConfig()
    coordinator: CoordinatorConfig = CoordinatorConfig()
    chain: ChainConfig | None = None  # absent: a swarm without a chain
    training: TrainingConfig = TrainingConfig()
    results: ResultsConfig = ResultsConfig()
    workers: WorkersConfig = WorkersConfig()
    storage: StorageConfig = StorageConfig()
    web: WebConfig = WebConfig()
    notify: NotifyConfig = NotifyConfig()
    logs: LogsConfig = LogsConfig()


def load_config(path: Path) -> Config:
    """Read and check a configuration file. Raises NotFoundError, or ConfigError whose message names the key."""
    return parse_config(read_config_text(path), str(path))


def read_config_text(path: Path) -> str:
    """A configuration file's text, not parsed yet. Raises NotFoundError and ConfigError as `load_config`."""
    try:
        text = read_toml(path)
        check_name_lengths(text)
        return text
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no configuration file {path}", "`swarmd init` makes a node with one") from error
    except IsADirectoryError as error:
        fix = f"Name the file: {path / 'config.toml'}"
        raise NotFoundError(f"{path} is a directory, not a configuration file", fix) from error
    except OSError as error:
        fix = advise_on_path_error(error, path) or "Name a regular file that you may read"
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}", fix) from error
    except ValueError as error:
        what, use = describe_file(path)
        if what != OTHER:
            fix = use or "Name a node's config.toml; `swarmd init` makes a node with one"
            raise ConfigError(f"{path} is {what}, not a node's configuration", fix) from error
        fix = "Name a text file in UTF-8, or save it as one: editors of Windows have other ways"
        raise ConfigError(f"the configuration file {path} cannot be read: {error}", fix) from error


def parse_config(text: str, origin: str) -> Config:
    """Parse and check configuration text; `origin` names it in errors. Raises ConfigError as `load_config` does."""
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{origin} is not valid TOML: {error}", describe_line(text, str(error))) from error
    if {"format", "signature"} <= tables.keys():
        raise ConfigError(
            f"{origin} is the manifest of a swarm, not a node's configuration",
            f"`swarmd join {origin} --dir DIR` makes a node of that swarm, with DIR/config.toml",
        )
    keys = Config.__struct_fields__
    if tables and not any(difflib.get_close_matches(each, keys, n=1) for each in tables):
        raise ConfigError(
            f"{origin} is not a node's configuration: it has {', '.join(list(tables)[:3])}, and none of swarmd's keys",
            "Name a node's config.toml; `swarmd init` makes a node with one",
        )
    try:
        if unknown := find_unknown_setting(tables):
            raise ConfigError(*unknown)
        config = msgspec.convert(tables, Config)
        check_combined_settings(config)
    except (ConfigError, msgspec.ValidationError) as error:
        wrong = (
            describe_invalid(error, Config)
            if isinstance(error, msgspec.ValidationError)
            else (error.message, error.fix)
        )
        line = find_line_of_message(text, wrong[0])
        raise ConfigError(f"{origin}{f', line {line}' if line else ''}: {wrong[0]}", wrong[1]) from error
    return config


def describe_invalid(error: msgspec.ValidationError, kind: Any, where: str = "") -> tuple[str, str]:
    """Turn a validation error into what is wrong, as "training.steps: Expected `int` >= 1", and the fix.

    Args:
        kind: the struct that was being decoded.
        where: dotted name of its table in the file.
    """
    reason, _, path = str(error).partition(" - at `$")
    key = f"{where}{path.removesuffix('`')}".lstrip(".")
    if missing := re.search(r"missing required field `(.*)`", reason):
        full = f"{key}.{missing[1]}".lstrip(".")
        if full == "swarm":
            fix = 'Write the table [swarm] with its id, as id = "my-swarm"; `swarmd init` makes a whole configuration'
        else:
            taken = ": `swarmd join MANIFEST` writes this table as the swarm has it" if key == "chain" else ""
            fix = f"Write {missing[1]} = ... below [{key}]{taken}"
        return f"{full} is missing", fix
    message = f"{key}: {reason}" if key else reason
    fix = advise_value(message.removeprefix(f"{where}."), kind)
    return re.sub("Expected `str` matching regex.*", "it is not of the right form", message), fix


UNITS = {
    "quorum": "as a share, 0.8 for 80 %",
    "_s": "in seconds",
    "_bytes": "in bytes",
    "_bytes_min": "in bytes",
    "_bytes_max": "in bytes",
}


def advise_value(message: str, kind: Any) -> str:
    """How to write the key that a msgspec message starts with: one of its allowed values, or an example."""
    key, _, reason = message.partition(": ")
    hint, name, field = kind, "", None
    for name in re.sub(r"\[[^]]*\]", "", key).split("."):
        inner = find_struct_type(hint)
        field = next((each for each in msgspec.structs.fields(inner) if each.name == name), None) if inner else None
        if field is None:
            return ""
        hint = field.type
    if reason.startswith("Expected `object`, got `array`"):
        return f"There is one such table: write [{key}], with single brackets"
    if reason.startswith("Expected `object`"):
        where = "write {KEY = VALUE}" if key.endswith("]") else f"set the keys in it, as {key}.KEY"
        return f"{key} is a table: {where}"
    if reason.startswith("Invalid enum value"):
        values = _list_literal_values(hint)
        other = "" if field is None or field.default in values else f", or a value like {field.default}"
        return f"Choose one of {', '.join(map(str, values))}{other}"
    unit = next((f", {words}" for ending, words in UNITS.items() if name.endswith(ending)), "")
    if reason.startswith("Expected `str` matching regex"):
        form = _describe_form(hint)
        return form and f"Write it {form}"
    if field is None or field.default == () or not isinstance(field.default, int | float | str | tuple):
        forms = {
            "Expected `str`, got": f'in quotes: {name} = "..."',
            "Expected `str | null`, got": f'in quotes: {name} = "..."',
            "Expected `int`, got `str`": f"without quotes: {name} = 1",
            "Expected `float`, got `str`": "without quotes, as 1.0",
            "Expected `array`, got `str`": f'as a list: {name} = ["..."]',
        }
        return next((f"Write it {form}" for start, form in forms.items() if reason.startswith(start)), "")
    example = {"dht.listen": ["/ip4/0.0.0.0/tcp/38331"]}.get(key, field.default)
    return f"Write it like this{unit}: {name} = {json.dumps(example)}"


def _describe_form(hint: Any) -> str:
    """How to write a text that must match a pattern, from its type or its list's item type; empty if neither says."""
    described = getattr(msgspec.inspect.type_info(hint), "item_type", msgspec.inspect.type_info(hint))
    return str((getattr(described, "extra_json_schema", None) or {}).get("description", ""))


def _list_literal_values(hint: Any) -> list[Any]:
    """The values of a Literal, which may be inside a union or a list."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [value for part in get_args(hint) for value in _list_literal_values(part)]


_LOSS = "The loss is always GRPO's: clip_low, clip_high and beta shape it, peer_loss says which tokens of peers count"
_SAMPLING = (
    "Completions are drawn from all tokens: temperature alone shapes that, because GRPO needs their probabilities"
)
ELSEWHERE = {  # other trainers' names for keys of [training], and the key here or why there is none
    "batch_size": "questions",
    "bf16": "dtype",
    "epochs": "steps",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "fp16": "dtype",
    "gradient_accumulation_steps": "micro_questions",
    "kl_coef": "beta",
    "loss": _LOSS,
    "loss_type": _LOSS,
    "lr": "learning_rate",
    "lr_scheduler_type": "schedule",
    "max_completion_length": "completion_tokens",
    "max_new_tokens": "completion_tokens",
    "max_prompt_length": "prompt_tokens",
    "max_steps": "steps",
    "model_name_or_path": "model",
    "num_generations": "generations",
    "num_train_epochs": "steps",
    "optim": "optimizer",
    "output_dir": "A node keeps everything in its directory: name that with `data` above the first table",
    "per_device_train_batch_size": "micro_questions",
    "report_to": "Write trackers = [...] below [results]",
    "top_k": _SAMPLING,
    "top_p": _SAMPLING,
}


def find_unknown_key(table: Mapping[str, Any], kind: type, where: str = "") -> tuple[str, str] | None:
    """The first key in a table, or in the tables inside it, that its struct does not have: its full name and the fix.

    `where` is the table's own name with a dot behind it, empty for a whole file.
    """
    hints = get_type_hints(kind)
    for key, value in table.items():
        full = f"{where}{key}"
        if key not in hints:
            called = ELSEWHERE.get(key, "")
            if " " in called:
                return full, called
            near = [called] if called in hints else difflib.get_close_matches(str(key), hints, n=1)
            return full, f"Did you mean {where}{near[0]}?" if near else f"Valid keys here: {', '.join(sorted(hints))}"
        inner = find_struct_type(hints[key])
        rows = enumerate(value) if isinstance(value, list | tuple) else ()
        for place, part in {f"{full}.": value, **{f"{full}[{index}].": row for index, row in rows}}.items():
            if inner is not None and isinstance(part, Mapping) and (found := find_unknown_key(part, inner, place)):
                return found
    return None


def find_unknown_setting(tables: dict[str, Any]) -> tuple[str, str] | None:
    """What is wrong with the first unknown key, and the fix: the nearest known key, or the table it belongs to."""
    found = find_unknown_key(tables, Config)
    if found is None:
        return None
    full, fix = found
    key = full.rpartition(".")[2]
    if not fix.startswith("Did you mean") and (elsewhere := find_paths(key)):
        fix = f"It belongs elsewhere: {' or '.join(elsewhere)}"
    if key != full and key in (hints := get_type_hints(Config)):
        fix = f"{key} is in no table: write " + (
            f"[{key}]" if find_struct_type(hints[key]) else "it above the first table"
        )
    return f"unknown key {full!r}", fix


def find_paths(name: str) -> list[str]:
    """Dotted names of all settings called `name`, as "training.model"."""
    return [path for path in _list_key_paths(Config) if path.endswith(f".{name}")]


def _list_key_paths(kind: type, where: str = "") -> Iterator[str]:
    """Dotted names of all keys of a struct and its nested structs."""
    for key, hint in get_type_hints(kind).items():
        inner = find_struct_type(hint)
        if inner is not None:
            yield from _list_key_paths(inner, f"{where}{key}.")
        else:
            yield f"{where}{key}"


def find_struct_type(hint: Any) -> type[msgspec.Struct] | None:
    """The struct type in a type hint: itself, or inside a union or list; None for a table of free keys."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    origin = get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return None
    structs = [found for part in get_args(hint) if (found := find_struct_type(part)) is not None]
    return structs[0] if len(structs) == 1 else None


def encode(config: Config) -> bytes:
    """The configuration as msgpack, for a worker's `Start` message."""
    return msgspec.msgpack.encode(config)


def decode(encoded: bytes) -> Config:
    """Decode what `encode` made. Raises ConfigError for anything else."""
    try:
        return msgspec.msgpack.decode(encoded, type=Config)
    except DECODE_ERRORS as error:
        raise ConfigError(f"the worker got an unreadable configuration: {error}") from error


NAME_LENGTH_MAX = 64  # characters, as in swarmd.dht, which would take long to import


def check_combined_settings(config: Config) -> None:
    """Raise ConfigError if settings contradict each other."""
    for key, value in iterate_values(config):
        if isinstance(value, str) and "\0" in value:  # the one character that no path or address has
            raise ConfigError(f"{key} has a NUL character in it", "Write it without")
        if isinstance(value, int) and not WORD_MIN <= value <= WORD_MAX:  # in a kind's options
            raise ConfigError(f"{key} is an integer of more than 64 bits", "Write a smaller one")
    if config.role == "follower" and not config.swarm.coordinator and config.chain is None:
        raise ConfigError(
            "a follower needs swarm.coordinator, the peer id of the swarm's coordinator",
            "The coordinator prints it at start, and `swarmd status` shows it",
        )
    if config.role == "follower" and not config.dht.bootstrap:
        raise ConfigError(
            "a follower needs dht.bootstrap, the address of at least one node of the swarm",
            "`swarmd join MANIFEST` writes it; the coordinator's `swarmd status` shows its address",
        )
    if config.chain is not None:
        _check_chain(config.chain)
    check_name(config.name, "name")
    _check_training(config.training)
    training = config.training
    if config.swarm.stages == 1 and not training.staleness_rounds and training.peer_questions:
        raise ConfigError(
            "training.staleness_rounds is 0, and swarm.stages 1: peers' rollouts are a round old when they "
            "are there, so none would ever be taken",
            "Set training.staleness_rounds to 1 or more; to train on none of peers', set training.peer_questions to 0",
        )


def iterate_values(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value of a configuration with its key, as training.steps or swarm.tasks[1].weight."""
    if isinstance(value, Section):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from iterate_values(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, tuple | list):
        for index, inner in enumerate(value):
            yield from iterate_values(inner, f"{key}[{index}]")
    else:
        yield key, value


def check_name(name: str, key: str) -> None:
    """Raise ConfigError for a name that peers refuse in a membership; `key` names the setting or option."""
    if len(name) > NAME_LENGTH_MAX:
        raise ConfigError(
            f"{key}: the name has {len(name)} characters, and peers take {NAME_LENGTH_MAX} at most",
            "Choose a shorter one",
        )
    if not name.isprintable():
        raise ConfigError(
            f"{key}: {name!r} has characters that cannot be printed, and peers refuse it",
            "Leave out line breaks, control characters and what joins emoji",
        )


def check_notify(notify: NotifyConfig) -> None:
    """Raise ConfigError if Apprise does not know a URL. Not checked on loading: a node can run without it."""
    for number, url in enumerate(notify.urls, 1):
        if not url.startswith(("file:", "credential:")):
            open_service(url, f"notify.urls, entry {number}")
    if notify.heartbeat_url and not notify.heartbeat_url.startswith(("file:", "credential:")):
        check_heartbeat_url(notify.heartbeat_url)


def check_heartbeat_url(url: str) -> None:
    """Raise ConfigError, which does not show the URL, unless it is an HTTP URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fix = "Write the ping URL of a check, as https://hc-ping.com/UUID; or file:PATH, credential:NAME that holds it"
        raise ConfigError("notify.heartbeat_url is not an http or https URL", fix)


def open_service(url: str, key: str) -> "Apprise":
    """The Apprise service of a URL. Raises ConfigError, which does not show the URL, if Apprise does not know it.

    Importing Apprise takes half a second and 45 MiB, so it happens only here.
    """
    import apprise

    # Apprise's log lines may contain the URL.
    log = logging.getLogger("apprise")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    asset = apprise.AppriseAsset(
        app_id="swarmd", async_mode=False, storage_mode="memory", default_service_retry=2, default_service_wait=2.0
    )
    plugin = apprise.Apprise.instantiate(url, asset=asset)
    if not isinstance(plugin, apprise.NotifyBase):
        raise ConfigError(
            f"{key} is not a URL that Apprise knows",
            "See https://appriseit.com/services; a webhook is jsons://host/path, a file of URLs file:PATH",
        )
    return apprise.Apprise(plugin, asset=asset)


def usual_peer_questions(training: TrainingConfig) -> int:
    """Peers' groups in a step at most, before anything is known about their cost."""
    if isinstance(training.peer_questions, int):
        return training.peer_questions
    return max(training.questions // AUTO_PARTS, 1)


def make_peer_slots(training: TrainingConfig) -> values.PeerSlots | None:
    """Bounds within which a node chooses how many groups of a step are peers'; None if the number is configured.

    Each trainer process keeps at least one group of this node's own.
    """
    if training.peer_questions != AUTO:
        return None
    ranks = training.processes
    at_most = ranks * (training.questions // ranks - 1 - -(-training.replay_questions // ranks))
    return values.PeerSlots(training.questions, min(usual_peer_questions(training), at_most), at_most)


def _check_peer_questions(training: TrainingConfig) -> None:
    if training.peer_questions == AUTO and training.peer_loss == "success-gated":
        raise ConfigError(
            'training.peer_questions = "auto" does not go with training.peer_loss = "success-gated": peers\' questions '
            "are answered here first, so their groups are never cheaper than own ones",
            "Set training.peer_questions to a number",
        )


def _check_training(training: TrainingConfig) -> None:
    _check_peer_questions(training)
    peers = usual_peer_questions(training)
    if peers + training.replay_questions >= training.questions:
        raise ConfigError(
            f"training.peer_questions ({peers}) and training.replay_questions "
            f"({training.replay_questions}) together must be below training.questions ({training.questions})",
            f"Set training.questions to {peers + training.replay_questions + 1} or more: at least "
            "one question of every step is this node's own",
        )
    if training.questions % training.processes:
        raise ConfigError(
            f"training.questions ({training.questions}) must be a multiple of training.processes "
            f"({training.processes})",
            f"Set training.questions to {-(-training.questions // training.processes) * training.processes}",
        )
    own = training.questions // training.processes
    others = sum(-(-each // training.processes) for each in (peers, training.replay_questions))
    if others >= own:  # each process rounds its parts up
        raise ConfigError(
            f"training.processes ({training.processes}) leaves each process {own} of training.questions "
            f"({training.questions}), and its shares of training.peer_questions ({peers}) and "
            f"training.replay_questions ({training.replay_questions}), rounded up, take {others}",
            f"Set training.questions to {(others + 1) * training.processes} or more, or fewer processes",
        )
    for key, url in (("vllm", training.vllm.url), ("reference", training.reference.url)):
        if url and not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"training.{key}.url: {url!r} is not an HTTP address", f'Write it as url = "http://{url}"'
            )
    if training.warm_up != "none" and (training.processes > 1 or training.vllm.mode != "off"):
        raise ConfigError(
            'training.warm_up needs training.processes = 1 and training.vllm.mode = "off"',
            "Let the node train its first stage like this, and set them then",
        )
    if training.quantization != "none" and not training.lora.rank:
        raise ConfigError(
            f"training.quantization = {training.quantization!r} needs adapters to train",
            "Set training.lora.rank, for example to 16",
        )
    if training.vllm.mode == "server" and training.processes > 1:
        raise ConfigError(
            f'training.vllm.mode = "server" goes with one process, training.processes is {training.processes}',
            'Set training.vllm.mode = "colocate", or training.processes = 1',
        )
    _check_overlap(training)
    names_commit = bool(training.revision) and not training.revision.startswith(DIGEST)
    if training.revision and (training.model == "auto" or (training.model == "embedded" and names_commit)):
        raise ConfigError(
            f"training.revision does not go with training.model = {training.model!r}",
            "Name a model of the Hub, or leave the revision out",
        )
    if training.schedule != "constant" and not training.schedule_steps:
        raise ConfigError(
            f"training.schedule = {training.schedule!r} needs training.schedule_steps",
            "Set it to the optimiser steps of the node's life: rounds times training.steps",
        )
    if not training.weights_from and (training.catch_up != "none" or training.average_weights_every):
        raise ConfigError(
            "training.weights_from is empty, so there is nobody whose weights may be taken",
            'Name "coordinator", "credited" or peer ids, or set training.catch_up to "none" and '
            "training.average_weights_every to 0",
        )


def _check_overlap(training: TrainingConfig) -> None:
    if not training.overlap:
        return
    # Copies of bitsandbytes' quantized layers were seen to compute different numbers.
    unfit = training.processes > 1 or training.quantization != "none" or training.vllm.mode in ("auto", "colocate")
    if unfit:
        raise ConfigError(
            'training.overlap goes with training.processes = 1, training.quantization = "none", and '
            'training.vllm.mode = "off" or "server"',
            "Set training.overlap = 0, or these",
        )
    if training.vllm.mode == "server" and training.temperature != 1:
        raise ConfigError(
            f"training.overlap goes with a vLLM server only at training.temperature = 1, it is {training.temperature}: "
            "a server reports the probabilities before the temperature, and older ones have to be corrected for",
            "Set training.overlap = 0",
        )


def _check_chain(chain: ChainConfig) -> None:
    if not chain.rpc:
        raise ConfigError("chain.rpc names no endpoint", "Give the URL of at least one node of the chain")
    for number, url in enumerate(chain.rpc, 1):
        if not url.startswith((*RPC_SCHEMES, "file:", "credential:")):
            raise ConfigError(f"chain.rpc: entry {number} is not the URL of a chain's node", RPC_FORM)
    if chain.sender == "proxy" and not chain.proxy.org:
        fix = 'Write org = "..." below [chain.proxy], as the signer knows it, or chain.sender = "wallet"'
        raise ConfigError('chain.sender is "proxy", but chain.proxy.org is missing', fix)
    if chain.shards and chain.votes != "judged":
        raise ConfigError(
            f'chain.votes is "{chain.votes}", but with chain.shards nobody reads the reports of all',
            'Set chain.votes to "judged"',
        )


RPC_SCHEMES = ("http://", "https://", "ws://", "wss://")
RPC_FORM = "Write it as https://host/path, http://host:port or wss://host/path"

CATCH_UP_ROUNDS = 3  # rounds missed in a row that count as an absence
SHARD_MEMBERS = 64  # about how many members' records of a stage share a DHT key


def make_core_settings(config: Config, peer: str) -> values.Settings:
    """The settings that decide the core's behaviour, for `NodeStarted`."""
    coordinating = config.role == "coordinator"
    own = values.CoordinatorSettings(**msgspec.structs.asdict(config.coordinator), shard_members=SHARD_MEMBERS)
    return values.Settings(
        peer=peer,
        swarm=config.swarm.id,
        role=config.role,
        coordinator=peer if coordinating else config.swarm.coordinator,
        name=config.name,
        stages=config.swarm.stages,
        behind=config.round.behind,
        train_s=config.round.train_s,
        restarts_max=config.workers.restarts_max,
        coordination=own if coordinating and config.chain is None else None,
        chain=None if config.chain is None else _make_chain_settings(config.chain),
        kind=config.swarm.kind,
        contract="" if config.chain is None else contract_name(config.chain.chain_id, config.chain.contract),
        catch_up_rounds=CATCH_UP_ROUNDS if _catches_up_from_peers(config) else 0,
        average_rounds=config.training.average_weights_every if _can_change_weights(config) else 0,
        peer_slots=make_peer_slots(config.training),
    )


def needs_peer_weights(config: Config) -> bool:
    """Whether this node fetches peers' weights, to catch up after an absence or to average with its own."""
    return _catches_up_from_peers(config) or (config.training.average_weights_every > 0 and _can_change_weights(config))


def _catches_up_from_peers(config: Config) -> bool:
    """Whether it continues from a peer's weights after an absence. The coordinator cannot be absent from a round."""
    follows = config.role != "coordinator" or config.chain is not None
    return config.training.catch_up == "weights" and follows and _can_change_weights(config)


def _can_change_weights(config: Config) -> bool:
    """Whether the trainer can replace its weights between steps: one process, with an evaluation to compare them by."""
    return config.training.processes == 1 and config.training.held_out_questions > 0


def contract_name(chain_id: int, address: str) -> str:
    """A contract as in `Settings.contract`: "CHAIN_ID:address", the address in lower case."""
    return f"{chain_id}:{address.lower()}"


def _make_chain_settings(chain: ChainConfig) -> values.ChainSettings:
    sends = chain.sender != "none"
    return values.ChainSettings(
        sends=sends,
        drive=chain.drive if chain.sender == "wallet" else "never",  # a signer proxy cannot send this transaction
        stage_s=chain.stage_s,
        reward_scale=chain.reward_scale,
        winners=chain.winners if sends else 0,
        votes=chain.votes,
    )
