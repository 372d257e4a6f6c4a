"""Where the nodes of a local swarm lie, and their configurations: templates from configs/local, filled in."""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomlkit

import swarmd
from swarmd.config import load_config
from swarmd.dht.identity import create_identity, read_identity
from swarmd.errors import ConfigError
from swarmd.eventlog.fold import load
from swarmd.paths import DataPaths

LOOPBACK = "127.0.0.1"
NODES_MAX = 64  # more than one machine can train


class NodePlace(msgspec.Struct, frozen=True):
    """One node's directory in a local swarm; the first node is the coordinator."""

    number: int
    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def identity(self) -> Path:
        return self.root / "identity.key"

    @property
    def output(self) -> Path:
        """What the daemon prints."""
        return self.root / "daemon.log"

    @property
    def paths(self) -> DataPaths:
        return DataPaths(self.root)

    @property
    def coordinates(self) -> bool:
        return self.number == 1


def node_places(directory: Path, count: int) -> tuple[NodePlace, ...]:
    """Places of `count` nodes. Raises ConfigError when that is not between 1 and `NODES_MAX`."""
    if not 1 <= count <= NODES_MAX:
        raise ConfigError(f"a local swarm has 1 to {NODES_MAX} nodes, not {count}")
    return tuple(NodePlace(number, directory.resolve() / f"node-{number}") for number in range(1, count + 1))


def lay_out(places: tuple[NodePlace, ...], rounds: int, settings: Mapping[str, Any] | None = None) -> int:
    """Make directories and identities where they are missing, and write every node's configuration.

    Args:
        places: of the nodes, the coordinator's first.
        rounds: to run on top of those already run; 0 for no end.
        settings: values for every node by dotted key, e.g. {"training.steps": 5}.

    Returns:
        Rounds in all, as the coordinator will count them; 0 for no end.

    Raises:
        ConfigError: a setting is unknown or wrong.
        IdentityError: an identity that exists cannot be read.
        LogDamaged: the coordinator's log cannot be read.
    """
    peers = [peer_of(place) for place in places]
    first = places[0]
    port = choose_port(first)
    rounds_max = rounds_run(first) + rounds if rounds else 0
    address = f"/ip4/{LOOPBACK}/tcp/{port}"
    leading = {
        "dht.listen": [address],
        "coordinator.min_peers": len(places),
        "coordinator.rounds_max": rounds_max,
    }
    following = {"swarm.coordinator": peers[0], "dht.bootstrap": [f"{address}/p2p/{peers[0]}"]}
    for place in places:
        own = {"name": place.name} | (leading if place.coordinates else following)
        write_config(place, own | dict(settings or {}))
    return rounds_max


def peer_of(place: NodePlace) -> str:
    """The node's peer id; its identity is made here when the node is new."""
    place.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.identity.exists():
        return read_identity(place.identity).peer_id
    return create_identity(place.identity).peer_id


def rounds_run(place: NodePlace) -> int:
    """Rounds that the coordinator's log has closed."""
    if not place.paths.events.is_dir():
        return 0
    state, _ = load(place.paths.events)
    return state.coordination.round if state.coordination else 0


def choose_port(place: NodePlace) -> int:
    """The port of the run before while it is free, so that followers find the coordinator again; else any free one."""
    kept = _kept_port(place)
    return kept if kept and _is_free(kept) else _free_port()


def _kept_port(place: NodePlace) -> int:
    if not place.config.exists():
        return 0
    kept = re.search(r"^listen = .*/tcp/(\d+)", place.config.read_text(encoding="utf-8"), re.MULTILINE)
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


def template(coordinates: bool) -> Path:
    """The shipped configuration that a node's is made from: in a checkout, or inside an installed wheel."""
    package = Path(swarmd.__file__).resolve().parent
    inside = package / "configs"
    configs = inside if inside.is_dir() else package.parent / "configs"
    return configs / "local" / ("coordinator.toml" if coordinates else "follower.toml")


def write_config(place: NodePlace, values: Mapping[str, Any]) -> None:
    """Fill the template in and check the outcome; comments stay. Raises ConfigError."""
    document = tomlkit.parse(template(place.coordinates).read_text(encoding="utf-8"))
    for dotted, value in values.items():
        *tables, key = dotted.split(".")
        table: Any = document
        for name in tables:
            table = table.setdefault(name, tomlkit.table())
            if not isinstance(table, dict):
                raise ConfigError(f"the setting {dotted!r} names no key: {name} is a value, not a table")
        table[key] = value
    place.config.write_text(tomlkit.dumps(document), encoding="utf-8")
    load_config(place.config)


def parse_setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE from a command line; the value is TOML, or a string without quotes. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"the setting {text!r} is no KEY=VALUE", "Write for example training.steps=5")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value
