"""Where a node lies, by one rule for all verbs: in DIR, else in `.` if it has a config.toml, else in ./data."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from swarmd.config import load_config
from swarmd.errors import NeverStarted, NotFoundError
from swarmd.eventlog.segment import find_log
from swarmd.paths import CONFIG, NodeDirectory, quoted

DEFAULT = Path("data")
RULE = "The node's directory; else the present one if it has a config.toml, else ./data."


class Located(NamedTuple):
    """A node: its configuration's file, where one is known, and its data directory."""

    config: Path | None
    data: Path

    @property
    def made(self) -> bool:
        """Whether there is a node, or what is needed to start one."""
        return self.config is not None or holds_log(self.data) or NodeDirectory(self.data).identity.exists()

    @property
    def next_command(self) -> str:
        """What starts a node that never ran."""
        if self.config is None:
            return f"swarmd run --config FILE --data {quoted(self.data)}"
        if self.config.name != CONFIG:
            return f"swarmd run --config {quoted(self.config)}"
        return f"swarmd run {quoted(self.config.parent)}"


def locate(directory: Path | None, config: Path | None = None) -> Located:
    """The node that is meant; whether there is one is not asked here.

    A directory may be a node's, with its config.toml, or only its data directory. One that is named together with a
    configuration comes before the one that this names, as a service has them apart.

    Raises:
        NotFoundError, ConfigError: the configuration is needed, and is not there or cannot be used.
    """
    if config is not None:
        if directory is not None and not config.exists():
            raise NotFoundError(f"there is no configuration file {config}", "`swarmd init` makes a node with one")
        return Located(config, directory or config.parent / load_config(config).data)
    place = place_of(directory)
    own = place / CONFIG
    if not own.is_file():
        return Located(None, place)
    return Located(own, place if holds_log(place) else place / load_config(own).data)


def place_of(directory: Path | None) -> Path:
    """The directory by the rule."""
    return directory or (Path() if (Path() / CONFIG).is_file() else DEFAULT)


def holds_log(place: Path) -> bool:
    """Whether it is a data directory itself, as a restored one is, whatever the configuration in it says."""
    return NodeDirectory(place).events.is_dir()


def log_of(directory: Path | None, config: Path | None = None) -> Path:
    """The directory of the located node's segments.

    Raises:
        NeverStarted: the node has no log yet.
        NotFoundError: there is no node.
        ConfigError: as `locate`.
    """
    return log_in(locate(directory, config), directory is None and config is None)


def log_in(node: Located, unnamed: bool = False) -> Path:
    """As `log_of`, for a node that was located; `unnamed`: nobody said where."""
    try:
        return find_log(node.data)
    except NotFoundError:
        refuse_unmade(node, unnamed)
        raise NeverStarted(
            f"the node in {node.data} was made and never started: it has no log", f"Start it: `{node.next_command}`"
        ) from None


def refuse_unmade(node: Located, unnamed: bool = False) -> None:
    """Raise NotFoundError where there is no node at all."""
    if node.made:
        return
    if unnamed:
        raise NotFoundError(
            f"there is no node here: neither a {CONFIG} nor ./{DEFAULT} with a log",
            "Name its directory, or its configuration with --config; `swarmd init` makes a node",
        )
    raise NotFoundError(
        f"there is no node in {node.data}: neither a log nor a {CONFIG}",
        "Name its directory, or its configuration with --config; `swarmd init` makes a node",
    )


def config_of_node(directory: Path | None, config: Path | None = None) -> Path:
    """The configuration of the node that is meant. Raises NotFoundError where there is none."""
    if config is not None:
        return config
    place = place_of(directory)
    if not (place / CONFIG).is_file():
        where = f"{place}" if directory is not None else f"the present directory, nor in ./{DEFAULT}"
        raise NotFoundError(
            f"there is no {CONFIG} in {where}",
            "Name the node's directory, or its configuration with --config; `swarmd init` makes a node",
        )
    return place / CONFIG
