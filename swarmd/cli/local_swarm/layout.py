"""Where the nodes of a local swarm lie, and their configurations: templates from configs/, or one's own, filled in."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit

from swarmd.cli.swarm.questions import bring_questions
from swarmd.config import Config, SwarmConfig, load_config, parse_config, read_config_text
from swarmd.daemon.swarm_check import refuse_other_swarm, swarm_of_config
from swarmd.dht.identity.identity import create_identity, read_identity
from swarmd.errors import ConfigError
from swarmd.eventlog.fold import load
from swarmd.paths import NodeDirectory, configs_directory
from swarmd.swarms.registry import check_kind, find_kind, questions_of
from swarmd.toml_text import parse_toml, read_toml
from swarmd.training.models.source import require_model

LOOPBACK = "127.0.0.1"
DATA = Config(SwarmConfig("any")).data
COORDINATOR, FOLLOWER = "coordinator.toml", "follower.toml"
NODES_MAX = 64  # more than one machine can train
ALONE: dict[str, Any] = {
    "data": ".",
    "dht.announce": [],
    "dht.members": [],
    "dht.client_mode": False,
    "dht.identity": None,
    "dht.peer": None,
    "logs.format": "text",  # daemon.log is read by people
}


class LocalNode(NodeDirectory):
    """One node's directory in a local swarm; the first node is the coordinator."""

    def __init__(self, number: int, root: Path) -> None:
        super().__init__(root)
        self.number = number
        self.name = root.name
        self.coordinates = number == 1


def node_places(directory: Path, count: int) -> tuple[LocalNode, ...]:
    """Places of `count` nodes. Raises ConfigError when that is not between 1 and `NODES_MAX`."""
    if not 1 <= count <= NODES_MAX:
        raise ConfigError(f"a local swarm has 1 to {NODES_MAX} nodes, not {count}")
    return tuple(LocalNode(number, directory.resolve() / f"node-{number}") for number in range(1, count + 1))


def lay_out(
    places: tuple[LocalNode, ...], rounds: int, settings: Mapping[str, Any] | None = None, swarm: str = ""
) -> int:
    """Make directories and identities where they are missing, and write every node's configuration.

    Args:
        places: of the nodes, the coordinator's first.
        rounds: to run on top of those already run; 0 for no end.
        settings: values for every node by dotted key, e.g. {"training.steps": 5}.
        swarm: what is trained: a kind, or the path of a node's configuration; empty: the digits.

    Returns:
        Rounds in all, as the coordinator will count them; 0 for no end.

    Raises:
        ConfigError: a setting is unknown or wrong, or there is no configuration of this kind.
        SwarmError: there is no such kind, it has other stages, or its questions are not there.
        ModelError: its model is not there.
        IdentityError: an identity that exists cannot be read.
        OtherSwarm: nodes of another swarm live there; nothing was written.
        LogDamaged: a node's log cannot be read.
    """
    source = find_source(swarm)
    first = places[0]
    _refuse_other_swarm(places, source, dict(settings or {}))
    peers = [peer_of(place) for place in places]
    port = choose_port(first)
    rounds_max = rounds_run(first) + rounds if rounds else 0
    address = f"/ip4/{LOOPBACK}/tcp/{port}"
    leading = {
        "dht.listen": [address],
        "coordinator.min_peers": len(places),
        "coordinator.rounds_max": rounds_max,
    }
    following = {"swarm.coordinator": peers[0], "dht.bootstrap": [f"{address}/p2p/{peers[0]}"]}
    models = {}
    for place in places:
        own = {"name": place.name} | (leading if place.coordinates else following)
        config = write_config(place, source.settings(place.coordinates) | own | dict(settings or {}), source)
        models[config.training.model, config.training.revision] = config.training
    for training in models.values():
        require_model(training)
    return rounds_max


def _refuse_other_swarm(places: tuple[LocalNode, ...], source: ConfigSource, settings: dict[str, Any]) -> None:
    """Raise OtherSwarm where a node of another swarm lives in one of the places, before anything is written."""
    text, origin = fill_template(source.coordinator, source.settings(True) | settings), str(source.coordinator)
    asked = swarm_of_config(parse_config(text, origin))
    home, here = places[0].root.parent, Path.cwd()
    fresh = home.with_name(f"{home.name}-{asked.id}")
    fix = f"Name another directory, for example --dir {fresh.relative_to(here) if home.parent == here else fresh}"
    for place in places:
        refuse_other_swarm(place, asked, fix)


def peer_of(place: LocalNode) -> str:
    """The node's peer id; its identity is made here when the node is new."""
    place.create()
    if place.identity.exists():
        return read_identity(place.identity).peer_id
    return create_identity(place.identity).peer_id


def rounds_run(place: LocalNode) -> int:
    """Rounds that the coordinator's log has closed."""
    if not place.events.is_dir():
        return 0
    state, _ = load(place.events)
    return state.coordination.round if state.coordination else 0


def choose_port(place: LocalNode) -> int:
    """The port of the run before while it is free, so that followers find the coordinator again; else any free one."""
    kept = _kept_port(place)
    return kept if kept and _is_free(kept) else _free_port()


def _kept_port(place: LocalNode) -> int:
    if not place.config.exists():
        return 0
    try:
        written = parse_toml(read_toml(place.config))
    except ValueError:
        return 0  # it is written anew in any case
    kept = re.search(r"/tcp/(\d+)", str(written.get("dht", {}).get("listen", "")))
    return int(kept[1]) if kept else 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class ConfigSource(NamedTuple):
    """Configurations that those of the nodes are made from."""

    coordinator: Path
    follower: Path
    local: bool = False  # made for this machine alone

    def settings(self, coordinates: bool) -> dict[str, Any]:
        """What turns a node of any network into one of this machine's; None takes a key away."""
        if self.local:
            return {}
        role = {"role": "coordinator", "swarm.coordinator": None, "dht.bootstrap": None}
        return (role if coordinates else {"role": "follower", "dht.listen": [f"/ip4/{LOOPBACK}/tcp/0"]}) | ALONE


def find_source(swarm: str) -> ConfigSource:
    """The configurations of a kind, or a file of one's own. Raises ConfigError, NotFoundError, SwarmError."""
    configs = configs_directory()
    if swarm in ("", "digits"):
        return ConfigSource(configs / "local" / COORDINATOR, configs / "local" / FOLLOWER, local=True)
    if swarm.endswith(".toml"):
        if load_config(Path(swarm)).chain is not None:
            raise ConfigError(f"{swarm} has a [chain]: the nodes of a local swarm have none", "Leave it out")
        return ConfigSource(Path(swarm), Path(swarm))
    kind = find_kind(swarm)
    source = ConfigSource(configs / kind.name / COORDINATOR, configs / kind.name / FOLLOWER)
    if not (source.coordinator.is_file() and source.follower.is_file()):
        raise ConfigError(
            f"swarmd has no configurations of the kind {kind.name!r} to start from",
            "Write one of a node, and name it: --kind FILE.toml. `swarmd swarm scaffold` makes one",
        )
    return source


def write_config(place: LocalNode, values: Mapping[str, Any], source: ConfigSource) -> Config:
    """Fill the template in and check the outcome; comments stay. Raises ConfigError, SwarmError."""
    template = source.coordinator if place.coordinates else source.follower
    place.config.write_text(fill_template(template, values), encoding="utf-8")
    config = load_config(place.config)
    check_kind(config.swarm)
    questions = questions_of(config.swarm.options)
    if questions and not Path(questions).is_absolute():
        home = template.parent / parse_toml(read_config_text(template)).get("data", DATA)
        bring_questions(home, config.swarm.options, place.root)
    return config


def fill_template(template: Path, values: Mapping[str, Any]) -> str:
    """A configuration's text with values by dotted key put in; comments stay. Raises ConfigError."""
    document = tomlkit.parse(read_config_text(template))
    for dotted, value in values.items():
        fill_in(document, dotted, value)
    return tomlkit.dumps(document)


def fill_in(document: Any, dotted: str, value: Any) -> None:
    """Set a key by its dotted name in a TOML document, or take it away with None. Raises ConfigError."""
    *tables, key = dotted.split(".")
    table = document
    for name in tables:
        table = table.setdefault(name, tomlkit.table())
        if not isinstance(table, dict):
            raise ConfigError(f"the setting {dotted!r} names no key: {name} is a value, not a table")
    if value is not None:
        table[key] = value
    elif key in table:
        del table[key]


def parse_setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE from a command line; the value is TOML, or a string without quotes. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"the setting {text!r} is no KEY=VALUE", "Write for example training.steps=5")
    try:
        return key, parse_toml(f"value = {value}")["value"]
    except ValueError:
        return key, value
