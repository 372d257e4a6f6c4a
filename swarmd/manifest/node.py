"""A node's configuration, made of a manifest and of what is the node's own choice."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import tomlkit

from swarmd.config import NUMBER_MAX, Config, RoundConfig, parse_config
from swarmd.core.values import Drive, Role
from swarmd.manifest.form import Manifest, ManifestChain
from swarmd.manifest.layout import commented

AVERAGED_WITH = ("coordinator", "credited")  # training.weights_from where the manifest says that weights are averaged
TRAIN_STAGES = 2.0  # a slow node may take so many stages' time before its stage is given up

_COMMENTS = {  # by dotted key
    "name": "shown to others on the leaderboard",
    "data": "log, rollouts, checkpoints and identity lie beside this file",
    "swarm.options": "settings of the kind",
    "swarm.coordinator": "peer id whose announcements count: the creator's node",
    "dht.listen": "port 0 takes any free one",
    "dht.announce": "addresses told to others, when those above cannot be reached from outside",
    "dht.bootstrap": "from the manifest, and from the contract where there is one",
    "dht.admission": "what others need to write",
    "dht.invitation": "this node's own; `swarmd swarm invite` makes them",
    "dht.members": "peer ids that may write; empty: everybody, or whom the contract admits",
    "dht.peer": "the identity must be this one; none is ever made in its place",
    "round.train_s": "longest a stage may train on this node",
    "coordinator.stage_s": "a stage's longest time",
    "training.offer_weights_every": "rounds; those who come late begin from them",
    "training.average_weights_every": "rounds, as the manifest has it; 0: this node's weights are its own alone",
    "training.weights_from": "whose weights are averaged with: each can put anything into this node's model",
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
    """What a node brings besides the manifest; keys mean what they mean in `swarmd.config`."""

    peer: str
    name: str = ""
    role: Role = "follower"
    data: str = "."
    identity: str = ""  # its key file, where it is not the data directory's own
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    announce: tuple[str, ...] = ()
    bootnodes: tuple[str, ...] = ()  # beyond the manifest's
    invitation: str = ""  # where the swarm asks for one
    options: dict[str, Any] = {}  # keys of [swarm.options] that are no part of the recipe
    training: dict[str, Any] = {}  # keys of [training] that are no part of the recipe
    rpc: tuple[str, ...] = ()
    sender: Literal["wallet", "proxy", "none"] = "none"
    keystore: str = "account.json"
    passphrase: str = "account.pass"
    drive: Drive = "policy"
    signer: str = ""  # the signer proxy's URL, with the organisation and the account that it signs for
    org: str = ""
    account: str = ""
    token: str = ""


def config_of(manifest: Manifest, choice: NodeChoice) -> Config:
    """The configuration that `node_text` writes down. Raises ConfigError when the choice does not fit."""
    return parse_config(node_text(manifest, choice), f"the configuration of {choice.peer}")


def node_text(manifest: Manifest, choice: NodeChoice) -> str:
    """A configuration file for a node of the swarm, with comments."""
    document = tomlkit.document()
    for line in _head(manifest):
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    for key, value in (("name", choice.name), ("role", choice.role), ("data", choice.data)):
        document.add(key, commented(value, _COMMENTS.get(key, "")))
    for name, (comment, content) in _tables(manifest, choice).items():
        document.add(name, _table(name, comment, content))
    return tomlkit.dumps(document)


def _head(manifest: Manifest) -> tuple[str, ...]:
    return (
        f'A node of the swarm "{manifest.name}", made from its manifest. Change what is this node\'s own: name,',
        "addresses, endpoints, device. What comes from the recipe is the same on every node.",
        "`swarmd config show` prints all other keys.",
        "",
        "    swarmd run --config config.toml",
    )


def _tables(manifest: Manifest, choice: NodeChoice) -> dict[str, tuple[str, dict[str, Any]]]:
    """The file's tables in order, each with its comment."""
    recipe = msgspec.to_builtins(manifest.recipe)
    recipe.pop("digest")
    shared = {name: recipe.pop(name) for name in ("kind", "stages", "tasks", "options") if name in recipe}
    if choice.options:
        shared["options"] = {**shared.get("options", {}), **choice.options}
    coordinator = {} if choice.role == "coordinator" else {"coordinator": manifest.creator}
    tables = {
        "swarm": ("from the manifest", {"id": manifest.id, **coordinator, **shared}),
        "dht": ("", _dht(manifest, choice)),
        "round": ("", {"train_s": _train_s(manifest)}),
    }
    if manifest.rounds is not None and choice.role == "coordinator":
        rounds = msgspec.to_builtins(manifest.rounds)
        rounds.pop("coordinator")
        tables["coordinator"] = ("how this node opens and closes the rounds", rounds)
    if manifest.chain is not None:
        tables["chain"] = ("from the manifest, but for endpoints and account", _chain(manifest.chain, choice))
    training = recipe | _weights(manifest, choice) | choice.training
    tables["training"] = ("the recipe; device, threads and seed are this node's own", training)
    return tables


def _weights(manifest: Manifest, choice: NodeChoice) -> dict[str, Any]:
    """All nodes train the recipe's model: the coordinator offers its weights, and who comes late takes them.

    Where the manifest says that weights are averaged, all offer theirs, and trust members that have credit.
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


def _train_s(manifest: Manifest) -> float:
    return min(max(RoundConfig().train_s, TRAIN_STAGES * _stage_s(manifest)), NUMBER_MAX)


def _stage_s(manifest: Manifest) -> float:
    if manifest.rounds is not None:
        return manifest.rounds.stage_s
    return min(float(manifest.chain.max_stage_s), NUMBER_MAX) if manifest.chain else 0.0


def _dht(manifest: Manifest, choice: NodeChoice) -> dict[str, Any]:
    others = [a for a in (*manifest.bootnodes, *choice.bootnodes) if not a.endswith(f"/p2p/{choice.peer}")]
    return (
        {
            "listen": list(choice.listen),
            "announce": list(choice.announce),
            "bootstrap": list(dict.fromkeys(others)),
            "members": list(manifest.members),
            "peer": choice.peer,
        }
        | _admission(manifest, choice)
        | ({"identity": choice.identity} if choice.identity else {})
    )


def _admission(manifest: Manifest, choice: NodeChoice) -> dict[str, Any]:
    """What differs from an open swarm."""
    content: dict[str, Any] = {}
    if manifest.membership in ("invitation", "work"):
        content["admission"] = manifest.membership
    if manifest.membership == "work":
        content["work_bits"] = manifest.work_bits
    return content | ({"invitation": choice.invitation} if choice.invitation else {})


def _chain(chain: ManifestChain, choice: NodeChoice) -> dict[str, Any]:
    content: dict[str, Any] = {
        "rpc": list(choice.rpc),
        "chain_id": chain.chain_id,
        "contract": chain.contract,
        "from_block": chain.from_block,
        "depth": chain.depth,
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


def _table(name: str, comment: str, content: dict[str, Any], nests: bool = True) -> Any:
    """A table; tables in it are tables of their own, and what is in those stands in one value each."""
    table = tomlkit.table()
    if comment:
        table.comment(comment)
    for key, value in sorted(content.items(), key=lambda item: nests and isinstance(item[1], dict)):
        about = _COMMENTS.get(f"{name}.{key}", "")
        inner = _table(f"{name}.{key}", about, value, False) if nests and isinstance(value, dict) else None
        table.add(key, inner or commented(value, about))
    return table
